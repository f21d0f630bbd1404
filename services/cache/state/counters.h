#pragma once
// Totals of the engine since start. Relaxed: each is read for itself, never to order anything.

#include <atomic>
#include <cstdint>

#include "cairn/common/kv/miss_reason.h"
#include "services/cache/tier/tier.h"

namespace cairn::cache {

class Counter {
 public:
  void Add(uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  void Sub(uint64_t n = 1) { value_.fetch_sub(n, std::memory_order_relaxed); }
  uint64_t Get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

struct Counters {
  Counter matched_blocks, matched_tokens, missed_tokens, fetched_bytes, pushed_bytes,
      promoted_blocks, demoted_blocks, corrupt_blocks, expired_leases, expired_reservations,
      commits, failed_copies, prefetched_blocks, prefetched_used_blocks, prefetched_wasted_blocks;
  Counter misses[kNodeMissReasonCount];
  // Of fetched_bytes, by the tier that they were read from for this fetch or its match.
  ByTier<Counter> fetched_from;
  ByTier<Counter> evicted_blocks, evicted_bytes;
  Counter declined_copies[2];  // Copies to disk: without a second touch, over the budget.
  Counter unencodable_copies;  // As many more: numbers that the codec of the disk cannot store.
  Counter late_copies;         // Settled later than disk.flush_after.
  Counter recoded_bytes_in, recoded_bytes_out;  // Of copies to disk under a ladder.
  Counter saved_nanoseconds;                    // Of prefill.
};

}  // namespace cairn::cache
