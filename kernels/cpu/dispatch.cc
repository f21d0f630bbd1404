#include <array>

#include "kernels/cpu/forward_makers.h"

namespace cairn::kernels {

const ForwardKernels& CpuForwardKernels(Isa isa) {
  static const std::array<ForwardKernels, 6> table = [] {
    std::array<ForwardKernels, 6> t;
    t[0] = MakePortableForwardKernels();
#if defined(__aarch64__)
    t[1] = MakeNeonForwardKernels();
#else
    if (Supports(Isa::kAvx2)) t[2] = MakeAvx2ForwardKernels();
    if (Supports(Isa::kAvx512)) t[3] = MakeAvx512ForwardKernels();
    if (Supports(Isa::kAvx512Bf16)) t[4] = AddAvx512Bf16(t[3]);
    if (Supports(Isa::kAmx)) t[5] = AddAmx(t[4]);
#endif
    return t;
  }();
  return table[static_cast<size_t>(isa)];
}

}  // namespace cairn::kernels
