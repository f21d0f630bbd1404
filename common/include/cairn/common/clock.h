#pragma once
// Time as an injected dependency, so that tests of leases and timers do not wait.

#include <atomic>
#include <chrono>
#include <functional>

namespace cairn {

class CondVar;
class Mutex;

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::steady_clock::time_point;

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic.
  virtual TimePoint Now() const = 0;

  // One wait for `ready`, or for `deadline` on this clock. It may return earlier, so only
  // CondVar::WaitUntil (common/concurrency/mutex.h) calls it, in a loop. The caller holds `mu`, as
  // `ready` needs, and Wait gives it up meanwhile. `changed` is notified when `ready` may have
  // changed. This implementation is for clocks that others move: it looks every millisecond of real
  // time.
  virtual void Wait(CondVar& changed, Mutex& mu, TimePoint deadline,
                    const std::function<bool()>& ready) const;
};

class SteadyClock final : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
  void Wait(CondVar& changed, Mutex& mu, TimePoint deadline,
            const std::function<bool()>& ready) const override;
  // It is never destroyed: threads and the log use it until the process has ended.
  static SteadyClock& Get() {
    static auto* const clock = new SteadyClock;
    return *clock;
  }
};

// A clock that moves only when a test advances it. It starts in a century, so that subtracting is
// safe, and who takes its time for that of the machine waits forever and is found. When it started
// an hour after the epoch, that was found only on machines that had started less than an hour ago.
class FakeClock final : public Clock {
 public:
  TimePoint Now() const override {
    return TimePoint(std::chrono::nanoseconds(now_ns_.load(std::memory_order_acquire)));
  }
  void Advance(Duration by) { now_ns_.fetch_add(by.count(), std::memory_order_acq_rel); }

 private:
  std::atomic<int64_t> now_ns_{
      std::chrono::nanoseconds(std::chrono::hours(100 * 365 * 24)).count()};
};

inline double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace cairn
