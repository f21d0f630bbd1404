#pragma once
// batch/unit_table.h for NVIDIA's GPUs, as libcairn_cuda.so carries it. Compiled by nvcc.

#include "cairn/kernels/batch/unit_table.h"

namespace cairn::kernels::cuda {

// Constant. Entries take a cudaStream_t of the calling thread's current device, and return a
// cudaError_t.
const batch::UnitTable& UnitTableOfGpu();

}  // namespace cairn::kernels::cuda
