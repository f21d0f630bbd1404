#pragma once
// Launches of the emulated backend.

#include <atomic>
#include <cstdint>

#include "kernels/cuda/shape.h"
#include "tests/support/cuda_on_cpu/launch.h"

namespace cairn::kernels::testing {

// Runs a kernel inside the call. Seeds count launches, so a failing test fails again.
struct RunNow {
  template <typename Kernel, typename... Arguments>
  void operator()(Kernel kernel, const cuda::Shape& shape, const Arguments&... arguments) const {
    Launch({.blocks = shape.blocks,
            .threads = shape.threads,
            .shared_bytes = shape.shared_bytes,
            .seed = launches++},
           kernel, arguments...);
  }

 private:
  static inline std::atomic<uint64_t> launches = 0;
};

}  // namespace cairn::kernels::testing
