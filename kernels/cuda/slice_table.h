#pragma once
// The operations on slices for NVIDIA's GPUs, as libcairn_cuda.so carries them. Compiled by nvcc.

#include "cairn/kernels/batch/slice_table.h"

namespace cairn::kernels::cuda {

// Constant. Entries take a cudaStream_t of the calling thread's current device, and return a
// cudaError_t.
const batch::SliceTable& SliceTableOfGpu();

}  // namespace cairn::kernels::cuda
