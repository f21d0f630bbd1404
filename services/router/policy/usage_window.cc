#include "services/router/policy/usage_window.h"

#include <algorithm>
#include <numeric>

namespace cairn::router {
namespace {

int64_t SecondOf(TimePoint now) {
  return std::chrono::floor<std::chrono::seconds>(now.time_since_epoch()).count();
}

}  // namespace

void WindowSum::MoveTo(int64_t second) {
  if (!first_) {
    first_ = second;
    last_ = second;
  }
  if (second - last_ >= kSeconds) {
    buckets_.fill(0);
    last_ = second;
  }
  while (last_ < second) buckets_[static_cast<size_t>(++last_ % kSeconds)] = 0;
}

void WindowSum::Add(double value, TimePoint now) {
  MoveTo(std::max<int64_t>(SecondOf(now), 0));
  buckets_[static_cast<size_t>(last_ % kSeconds)] += value;
}

double WindowSum::Sum(TimePoint now) const {
  if (!first_) return 0;
  const int64_t old = SecondOf(now) - last_;
  if (old <= 0) return std::accumulate(buckets_.begin(), buckets_.end(), 0.0);
  double sum = 0;
  // The bucket of the second s is too old at s + kSeconds.
  for (int64_t second = last_ - kSeconds + 1 + old; second <= last_; ++second) {
    sum += buckets_[static_cast<size_t>((second % kSeconds + kSeconds) % kSeconds)];
  }
  return sum;
}

double WindowSum::Span(TimePoint now) const {
  if (!first_) return 1;
  const TimePoint begin = TimePoint(std::chrono::seconds(*first_));
  return std::clamp(Seconds(now - begin), 1.0, static_cast<double>(kSeconds));
}

void UseWindow::Sample(bool busy, TimePoint now) {
  if (known_ && now > since_) {
    const double seconds = std::min(Seconds(now - since_), kLongestSample);
    seen_.Add(seconds, now);
    if (busy_now_) busy_.Add(seconds, now);
  }
  if (!known_ || now > since_) since_ = now;
  known_ = true;
  busy_now_ = busy;
}

double UseWindow::Share(TimePoint now) const {
  const double seen = seen_.Sum(now);
  return seen > 0 ? std::clamp(busy_.Sum(now) / seen, 0.0, 1.0) : 0;
}

}  // namespace cairn::router
