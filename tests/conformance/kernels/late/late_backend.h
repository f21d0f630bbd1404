#pragma once
// A backend for tests: the arithmetic of the reference, run late on a stream, in memory that the
// host cannot touch. It behaves as one on a GPU does, without any GPU. A suite that passes on it
// puts its inputs into the backend's memory, waits before it reads, and copies results back.

#include "cairn/kernels/backend.h"

namespace cairn::kernels::testing {

// "late". Lives as long as the process. Thread-safe.
const Backend& LateBackend();

}  // namespace cairn::kernels::testing
