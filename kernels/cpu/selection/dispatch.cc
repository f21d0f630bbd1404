#include <array>

#include "kernels/cpu/selection/selection_makers.h"

namespace cairn::kernels {

const SelectionKernels& CpuSelectionKernels(Isa isa) {
  static const std::array<SelectionKernels, 4> table = [] {
    std::array<SelectionKernels, 4> t;
    t[0] = MakePortableSelectionKernels();
#if defined(__aarch64__)
    t[1] = MakeNeonSelectionKernels();
#else
    if (Supports(Isa::kAvx2)) t[2] = MakeAvx2SelectionKernels();
    if (Supports(Isa::kAvx512)) t[3] = MakeAvx512SelectionKernels();
#endif
    return t;
  }();
  return table[isa >= Isa::kAvx512 ? 3 : static_cast<size_t>(isa)];
}

}  // namespace cairn::kernels
