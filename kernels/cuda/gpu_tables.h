#pragma once
// The tables of kernels for NVIDIA's GPUs, as libcairn_cuda.so carries them. Compiled by nvcc.
//
// All are constant. Entries take a cudaStream_t of the calling thread's current device, and return
// a cudaError_t.

#include "cairn/kernels/batch/forward_kernels.h"
#include "cairn/kernels/batch/slice_table.h"
#include "cairn/kernels/batch/unit_table.h"

namespace cairn::kernels::cuda {

const batch::ForwardKernels& ForwardTableOfGpu();
// REQUIRES, to call attend_pooled_prompt: a device of compute capability 9.0, whose driver encodes
// maps of matrices.
const batch::ForwardKernels& ForwardTableOfGpu90a();
const batch::SliceTable& SliceTableOfGpu();
const batch::UnitTable& UnitTableOfGpu();

}  // namespace cairn::kernels::cuda
