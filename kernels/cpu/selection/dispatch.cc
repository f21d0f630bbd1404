#include <array>

#include "kernels/cpu/selection/selection_makers.h"

namespace cairn::kernels {

const SelectionKernels& CpuSelectionKernels(Isa isa) {
  static const std::array<SelectionKernels, 3> table = [] {
    std::array<SelectionKernels, 3> t;
    t[0] = MakePortableSelectionKernels();
    if (Supports(Isa::kAvx2)) t[1] = MakeAvx2SelectionKernels();
    if (Supports(Isa::kAvx512)) t[2] = MakeAvx512SelectionKernels();
    return t;
  }();
  return table[isa >= Isa::kAvx512 ? 2 : static_cast<size_t>(isa)];
}

}  // namespace cairn::kernels
