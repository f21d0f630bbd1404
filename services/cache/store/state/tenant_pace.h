#pragma once
// How fast a tenant reads and writes.
//
// The time until which it has paid grows with each byte (the generic cell rate algorithm, ITU-T
// I.371). A tenant that was idle has a second of its rate at once. More may be spent than there is:
// then nothing new begins until the debt is over. So nothing is cut short, and over any time a
// tenant gets its rate, a second of it, and the calls that were under way.

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "cairn/common/clock.h"

namespace cairn::cache {

// Thread-safe, without a lock.
class TenantPace {
 public:
  static constexpr uint64_t kNoLimit = UINT64_MAX;
  static constexpr Duration kBurst = std::chrono::seconds(1);
  // However much is spent at once. A higher rate comes into force after that.
  static constexpr Duration kMostDebt = std::chrono::minutes(1);

  // At least 1.
  void SetRate(uint64_t bytes_per_second) {
    rate_.store(bytes_per_second, std::memory_order_relaxed);
  }
  uint64_t rate() const { return rate_.load(std::memory_order_relaxed); }

  // How long it is until something may begin. 0: it may now.
  Duration Debt(TimePoint now) const {
    if (rate() == kNoLimit) return Duration(0);
    const int64_t paid = paid_until_.load(std::memory_order_relaxed);
    return paid > Count(now) ? Duration(paid - Count(now)) : Duration(0);
  }

  void Spend(uint64_t bytes, TimePoint now) {
    const uint64_t rate = this->rate();
    if (rate == kNoLimit) return;
    const double seconds = static_cast<double>(bytes) / static_cast<double>(rate);
    const int64_t takes = Count(TimePoint(std::chrono::duration_cast<Duration>(
        std::chrono::duration<double>(std::min(seconds, kMostSeconds)))));
    const int64_t least = Count(now - kBurst), most = Count(now + kMostDebt);
    int64_t paid = paid_until_.load(std::memory_order_relaxed);
    int64_t next = 0;
    do {
      next = std::min(std::max(paid, least) + takes, most);
    } while (!paid_until_.compare_exchange_weak(paid, next, std::memory_order_relaxed));
  }

 private:
  static constexpr double kMostSeconds = 120;  // More than the longest debt.
  static int64_t Count(TimePoint time) { return time.time_since_epoch().count(); }
  std::atomic<uint64_t> rate_{kNoLimit};
  std::atomic<int64_t> paid_until_{INT64_MIN};
};

}  // namespace cairn::cache
