#include <array>

#include "kernels/cpu/reading/reading_makers.h"

namespace cairn::kernels {

const ReadingKernels& CpuReadingKernels(Isa isa) {
  static const std::array<ReadingKernels, 3> table = [] {
    std::array<ReadingKernels, 3> t;
    t[0] = MakePortableReadingKernels();
    if (Supports(Isa::kAvx2)) t[1] = MakeAvx2ReadingKernels();
    if (Supports(Isa::kAvx512)) t[2] = MakeAvx512ReadingKernels();
    return t;
  }();
  return table[isa >= Isa::kAvx512 ? 2 : static_cast<size_t>(isa)];
}

}  // namespace cairn::kernels
