#pragma once
// The forward pass's kernels of kernels/cuda, run on the CPU by tests/support/cuda_on_cpu.

#include "cairn/kernels/batch/forward_kernels.h"

namespace cairn::kernels::testing {

// "cuda-emulated", on the host's memory; streams are ignored, everything runs inside the call. Each
// launch has another order of threads and blocks. Lives as long as the process. Thread-safe.
const batch::ForwardKernels& EmulatedForwardKernels();

}  // namespace cairn::kernels::testing
