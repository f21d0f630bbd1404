#pragma once
// The kernels of kernels/cuda as a backend, run on the CPU by tests/support/cuda_on_cpu. Each
// launch has another order of threads and blocks.

#include "cairn/kernels/backend.h"

namespace cairn::kernels::testing {

// "cuda-emulated": codecs, slices and batches of the forward pass, on the host's memory. Except
// under sanitizers it says that it runs inline, so that whole codecs are tested on it. Lives as
// long as the process. Thread-safe.
const Backend& EmulatedBackend();

}  // namespace cairn::kernels::testing
