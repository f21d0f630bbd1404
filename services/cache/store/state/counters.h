#pragma once
// Totals of the engine since start. Any thread may add and read. Relaxed: each is read for itself,
// never to order anything.

#include <atomic>
#include <cstdint>

#include "cairn/common/kv/miss_reason.h"
#include "services/cache/store/state/engine_statistics.h"

namespace cairn::cache {

// Any thread may use it at any time.
class Counter {
 public:
  void Add(uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  uint64_t Get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// It cannot wrap, whatever clients make the node add.
class SecondsCounter {
 public:
  void Add(double seconds) { seconds_.fetch_add(seconds, std::memory_order_relaxed); }
  double Get() const { return seconds_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> seconds_{0};
};

// Keeps `code` for rows of a table that are counted, and drops it for others.
#define CAIRN_IF_COUNTED(kind, code) CAIRN_IF_COUNTED_##kind(code)
#define CAIRN_IF_COUNTED_kNow(code)
#define CAIRN_IF_COUNTED_kRate(code)
#define CAIRN_IF_COUNTED_kTotal(code)
#define CAIRN_IF_COUNTED_kCounted(code) code
#define CAIRN_IF_COUNTED_kCountedSeconds(code) code

#define CAIRN_COUNTER(kind, name, ...) CAIRN_IF_COUNTED(kind, CounterFor<StatisticKind::kind> name;)
#define CAIRN_TIER_COUNTER(kind, name, ...) \
  CAIRN_IF_COUNTED(kind, ByTier<CounterFor<StatisticKind::kind>> name;)

// One counter for each row of kind kCounted and kCountedSeconds, with the row's name.
struct Counters {
  template <StatisticKind kKind>
  using CounterFor =
      std::conditional_t<kKind == StatisticKind::kCountedSeconds, SecondsCounter, Counter>;

  CAIRN_NODE_STATISTICS(CAIRN_COUNTER)
  CAIRN_ENGINE_STATISTICS(CAIRN_COUNTER)
  CAIRN_TIER_STATISTICS(CAIRN_TIER_COUNTER)
  CAIRN_ENGINE_TIER_STATISTICS(CAIRN_TIER_COUNTER)
  Counter misses[kNodeMissReasonCount];
  // The part of fetched_bytes by the tier that the bytes were read from for this fetch or its
  // match.
  ByTier<Counter> fetched_from;

  // Fills in everything that is counted; of the tiers, for those that are there.
  void CopyTo(EngineStats* stats) const;
};

#undef CAIRN_COUNTER
#undef CAIRN_TIER_COUNTER

}  // namespace cairn::cache
