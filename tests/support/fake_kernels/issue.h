#pragma once
// How launches of CUDA kernels become work of the fake device.

#include <atomic>
#include <functional>
#include <memory>

#include "kernels/cuda/device_sm90.h"
#include "kernels/cuda/shape.h"
#include "tests/support/cuda_on_cpu/launch.h"
#include "tests/support/fake_device/control.h"
#include "tests/support/fake_kernels/touched.h"

namespace cairn::kernels::testing {

// The device on whose streams launches go. Set before the first one.
inline const device::fake::FakeControl* fake_control = nullptr;

// A launcher as kernels/cuda/forward_launches.h describes it: each kernel is a piece of work that
// the emulation runs when it happens.
struct IssueKernel {
  void* stream = nullptr;
  const char* what = "a kernel";
  // The memory that each kernel touches. Null: the device is not told. Outlives the call.
  const Touched* touched = nullptr;

  template <typename... Parameters, typename... Arguments>
  int operator()(void (*kernel)(Parameters...), const cuda::Shape& shape,
                 const Arguments&... arguments) const {
    static std::atomic<uint64_t> launches = 0;
    const LaunchShape launch{.blocks = shape.blocks,
                             .threads = shape.threads,
                             .shared_bytes = shape.shared_bytes,
                             .seed = launches++};
    using Work = std::function<void()>;
    // A launch copies its arguments.
    auto work = std::make_unique<Work>([=] { Launch(launch, kernel, arguments...); });
    static const Touched kNothing;
    const Touched& t = touched == nullptr ? kNothing : *touched;
    const device::Code code = fake_control->issue(
        stream, what, t.reads.data(), t.reads.size(), t.writes.data(), t.writes.size(),
        [](void* context) { (*static_cast<Work*>(context))(); },
        [](void* context) { delete static_cast<Work*>(context); }, work.get());
    // The device drops what it did not take, too.
    (void)work.release();
    return static_cast<int>(code);
  }

  int MapRows(const void* base, int64_t rows, int64_t cols, int64_t box_rows,
              cuda::MatrixMap* map) const {
    *map = cuda::MapOnCpu(base, rows, cols, box_rows);
    return 0;
  }
};

}  // namespace cairn::kernels::testing
