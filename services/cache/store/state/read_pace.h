#pragma once
// How fast the recent reads from one tier were, all of them together. Thread-safe.
//
// Bytes and busy time are both forgotten with the same half-life, counted in busy time: a tier that
// nobody reads from keeps its pace, and one that stalls loses it, also before its read has ended.

#include <algorithm>
#include <cmath>

#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"

namespace cairn::cache {

class ReadPace {
 public:
  static constexpr double kHalfLifeSeconds = 2;

  explicit ReadPace(const Clock* clock) : clock_(clock) {}

  // A read begins, and ends with a number of bytes (0: it failed). While several run, time counts
  // once.
  void Begin() {
    const TimePoint now = clock_->Now();
    MutexLock lock(mu_);
    Advance(now);
    ++under_way_;
  }
  void End(uint64_t bytes) {
    const TimePoint now = clock_->Now();
    MutexLock lock(mu_);
    Advance(now);
    --under_way_;
    bytes_ += static_cast<double>(bytes);
  }
  // A read that the caller timed itself.
  void Add(uint64_t bytes, Duration took) {
    MutexLock lock(mu_);
    Forget(Seconds(took));
    bytes_ += static_cast<double>(bytes);
  }

  // 0 until something was read, and where the clock stands still.
  double BytesPerSecond() const {
    MutexLock lock(mu_);
    return seconds_ > 0 ? bytes_ / seconds_ : 0;
  }

 private:
  void Advance(TimePoint now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (under_way_ > 0) Forget(Seconds(now - last_));
    last_ = now;
  }
  void Forget(double busy) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (busy <= 0) return;
    const double kept = std::exp2(-busy / kHalfLifeSeconds);
    bytes_ *= kept;
    seconds_ = seconds_ * kept + busy;
  }

  const Clock* const clock_;
  mutable Mutex mu_;
  uint64_t under_way_ ABSL_GUARDED_BY(mu_) = 0;
  TimePoint last_ ABSL_GUARDED_BY(mu_);
  double bytes_ ABSL_GUARDED_BY(mu_) = 0;
  double seconds_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace cairn::cache
