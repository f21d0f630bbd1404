#pragma once
// Rates over the last minute, in a bounded number of buckets.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "cairn/common/clock.h"

namespace cairn::router {

// Sums of numbers over the last 60 seconds, in buckets of one second. Times do not go back. Not
// thread-safe.
class WindowSum {
 public:
  static constexpr int64_t kSeconds = 60;

  void Add(double value, TimePoint now);
  // The sum of the whole window.
  double Sum(TimePoint now) const;
  // Seconds that it spans: since the first value, at most kSeconds, at least 1.
  double Span(TimePoint now) const;

 private:
  void MoveTo(int64_t second);

  std::array<double, kSeconds> buckets_{};
  int64_t last_ = 0;              // The second of the newest bucket.
  std::optional<int64_t> first_;  // The slot of the first value.
};

// Arrivals per second. Not thread-safe.
class ArrivalWindow {
 public:
  void Arrived(TimePoint now) { sum_.Add(1, now); }
  double PerSecond(TimePoint now) const { return sum_.Sum(now) / sum_.Span(now); }

 private:
  WindowSum sum_;
};

// The share of time that something was busy, from samples: each holds until the next one. Not
// thread-safe.
class UseWindow {
 public:
  // Seconds that a sample holds at most: a worker may have stopped to report.
  static constexpr double kLongestSample = 1;

  void Sample(bool busy, TimePoint now);
  // 0 to 1. 0 while there are no samples.
  double Share(TimePoint now) const;

 private:
  WindowSum busy_;
  WindowSum seen_;
  bool known_ = false;
  bool busy_now_ = false;
  TimePoint since_{};
};

}  // namespace cairn::router
