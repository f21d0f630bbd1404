#pragma once
// Copies from one place of a device's memory to another one.
//
// Thread-safe. Callbacks run on the thread that steps the EventPoller, or in Submit if that fails.

#include <memory>
#include <span>

#include "common/concurrency/mutex.h"
#include "common/device/device.h"
#include "common/device/event_poller.h"
#include "services/cache/store/tier/tier.h"

namespace cairn::cache {

class InnerCopies {
 public:
  // `poller` outlives it.
  static Result<std::unique_ptr<InnerCopies>> Create(std::shared_ptr<device::Device> device,
                                                     device::EventPoller* poller);
  // Waits for what is under way, unless the device is lost.
  ~InnerCopies();

  // Earlier writes there have ended, and nobody writes to either place until `done`, which runs
  // once. The targets do not overlap.
  void Submit(std::span<const device::CopyTask> tasks, IoCallback done);

 private:
  InnerCopies(std::shared_ptr<device::Device> device, device::EventPoller* poller)
      : device_(std::move(device)), poller_(*poller) {}

  const std::shared_ptr<device::Device> device_;
  device::EventPoller& poller_;
  Mutex mu_;
  device::Stream stream_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::cache
