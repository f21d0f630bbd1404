#pragma once
// The forward pass's table for NVIDIA's GPUs, as libcairn_cuda.so carries it. Compiled by nvcc.

#include "cairn/kernels/batch/forward_kernels.h"

namespace cairn::kernels::cuda {

// Constant. Entries take a cudaStream_t of the calling thread's current device, and return a
// cudaError_t. REQUIRES, to call attend_pooled_prompt of the second one: a device of compute
// capability 9.0, whose driver encodes maps of matrices.
const batch::ForwardKernels& ForwardTableOfGpu();
const batch::ForwardKernels& ForwardTableOfGpu90a();

}  // namespace cairn::kernels::cuda
