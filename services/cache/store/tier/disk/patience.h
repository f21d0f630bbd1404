#pragma once
// How long a caller waits for the device, and whether it has given up.

#include <algorithm>
#include <chrono>
#include <functional>

#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"

namespace cairn::cache::disk {

struct Patience {
  TimePoint deadline = TimePoint::max();
  std::function<bool()> cancelled = {};  // May be empty. Asked every tenth of a second.

  // Waits until `ready`. `what` the device has not done then: "synced". CANCELLED,
  // DEADLINE_EXCEEDED.
  template <typename Ready>
  Status Wait(CondVar& changed, Mutex& mu, const Clock& clock, const char* what,
              const Ready& ready) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    constexpr std::chrono::milliseconds kAskEvery{100};
    for (;;) {
      const TimePoint ask = clock.Now() + kAskEvery;
      if (changed.WaitUntil(mu, clock, cancelled ? std::min(deadline, ask) : deadline, ready)) {
        return OkStatus();
      }
      if (cancelled && cancelled()) {
        return Errorf(StatusCode::kCancelled, "disk tier: flush: the caller gave up");
      }
      if (clock.Now() >= deadline) {
        return Errorf(StatusCode::kDeadlineExceeded, "disk tier: flush: the device has not {}",
                      what);
      }
    }
  }
};

}  // namespace cairn::cache::disk
