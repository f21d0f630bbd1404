#pragma once
// One maker per translation unit of this folder. Each architecture compiles its own of them. Call
// only where Supports(isa).

#include "cairn/kernels/forward_kernels.h"

namespace cairn::kernels {

ForwardKernels MakePortableForwardKernels();
ForwardKernels MakeNeonForwardKernels();
ForwardKernels MakeAvx2ForwardKernels();
ForwardKernels MakeAvx512ForwardKernels();
// Takes the AVX-512 table and puts its bfloat16 products in.
ForwardKernels AddAvx512Bf16(ForwardKernels kernels);
ForwardKernels AddAmx(ForwardKernels kernels);

}  // namespace cairn::kernels
