#include <array>

#include "kernels/cpu/forward_makers.h"

namespace cairn::kernels {

const ForwardKernels& CpuForwardKernels(Isa isa) {
  static const std::array<ForwardKernels, 5> table = [] {
    std::array<ForwardKernels, 5> t;
    t[0] = MakePortableForwardKernels();
    if (Supports(Isa::kAvx2)) t[1] = MakeAvx2ForwardKernels();
    if (Supports(Isa::kAvx512)) t[2] = MakeAvx512ForwardKernels();
    if (Supports(Isa::kAvx512Bf16)) t[3] = AddAvx512Bf16(t[2]);
    if (Supports(Isa::kAmx)) t[4] = AddAmx(t[3]);
    return t;
  }();
  return table[static_cast<size_t>(isa)];
}

}  // namespace cairn::kernels
