#pragma once
// How many lines an event may write. Clients can cause lines at will, so each event has a rate of
// its own.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"

namespace cairn::log {

// A token bucket for each name of an event. Thread-safe.
class LineLimiter {
 public:
  static constexpr double kBurst = 100;      // Lines.
  static constexpr double kPerSecond = 10;   // Lines that come back.
  static constexpr size_t kMaxEvents = 512;  // Further names share one bucket.

  // nullopt: the event wrote too much, and its line is left out. Otherwise the number of its lines
  // that were left out since the last one that was not.
  std::optional<uint64_t> Admit(std::string_view event, TimePoint now) {
    MutexLock lock(mu_);
    Bucket& bucket = Find(event, now);
    const double back = Seconds(now - bucket.at) * kPerSecond;
    bucket.tokens = std::min(kBurst, bucket.tokens + std::max(0.0, back));
    bucket.at = now;
    if (bucket.tokens < 1) {
      ++bucket.left_out;
      left_out_.fetch_add(1, std::memory_order_relaxed);
      return std::nullopt;
    }
    bucket.tokens -= 1;
    return std::exchange(bucket.left_out, 0);
  }
  uint64_t left_out() const { return left_out_.load(std::memory_order_relaxed); }

 private:
  struct Bucket {
    TimePoint at;
    double tokens = kBurst;
    uint64_t left_out = 0;
  };
  Bucket& Find(std::string_view event, TimePoint now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto it = buckets_.find(event);
    if (it != buckets_.end()) return it->second;
    if (buckets_.size() >= kMaxEvents) return others_;
    return buckets_.emplace(event, Bucket{.at = now}).first->second;
  }

  Mutex mu_;
  std::map<std::string, Bucket, std::less<>> buckets_ ABSL_GUARDED_BY(mu_);
  Bucket others_ ABSL_GUARDED_BY(mu_);
  std::atomic<uint64_t> left_out_{0};
};

}  // namespace cairn::log
