#include <array>

#include "kernels/cpu/reading/reading_makers.h"

namespace cairn::kernels {

const ReadingKernels& CpuReadingKernels(Isa isa) {
  static const std::array<ReadingKernels, 4> table = [] {
    std::array<ReadingKernels, 4> t;
    t[0] = MakePortableReadingKernels();
#if defined(__aarch64__)
    t[1] = MakeNeonReadingKernels();
#else
    if (Supports(Isa::kAvx2)) t[2] = MakeAvx2ReadingKernels();
    if (Supports(Isa::kAvx512)) t[3] = MakeAvx512ReadingKernels();
#endif
    return t;
  }();
  return table[isa >= Isa::kAvx512 ? 3 : static_cast<size_t>(isa)];
}

}  // namespace cairn::kernels
