#pragma once
// How often a caller may come: a few times at once, and a rate after that.

#include <algorithm>

#include "cairn/common/clock.h"

namespace cairn::cache {

// A token bucket. Not thread-safe.
class CallRate {
 public:
  static constexpr double kAtOnce = 64;
  static constexpr double kPerSecond = 8;

  // False: too often.
  bool Take(TimePoint now) {
    tokens_ = std::min(kAtOnce, tokens_ + Seconds(now - at_) * kPerSecond);
    at_ = now;
    if (tokens_ < 1) return false;
    tokens_ -= 1;
    return true;
  }

 private:
  double tokens_ = kAtOnce;
  TimePoint at_{};
};

}  // namespace cairn::cache
