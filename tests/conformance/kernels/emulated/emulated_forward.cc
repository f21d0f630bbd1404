#include "tests/conformance/kernels/emulated/emulated_forward.h"

#include <atomic>

#include "kernels/cuda/forward_launches.h"
#include "tests/support/cuda_on_cpu/launch.h"

namespace cairn::kernels::testing {
namespace {

// Seeds count launches, so a failing test fails again.
struct RunInCall {
  void* stream = nullptr;

  template <typename Kernel, typename... Arguments>
  int operator()(Kernel kernel, const cuda::Shape& shape, const Arguments&... arguments) const {
    static std::atomic<uint64_t> launches = 0;
    Launch({.blocks = shape.blocks,
            .threads = shape.threads,
            .shared_bytes = shape.shared_bytes,
            .seed = launches++},
           kernel, arguments...);
    return 0;
  }
  int MapRows(const void* base, int64_t rows, int64_t cols, int64_t box_rows,
              cuda::MatrixMap* map) const {
    *map = cuda::MapOnCpu(base, rows, cols, box_rows);
    return 0;
  }
};

}  // namespace

const batch::ForwardKernels& EmulatedForwardKernels() {
  static const batch::ForwardKernels table = cuda::ForwardTable<RunInCall, true>("cuda-emulated");
  return table;
}

}  // namespace cairn::kernels::testing
