#pragma once
// The counters of a client.

#include <array>
#include <atomic>
#include <cstdint>

#include "cairn/client/cache_client.h"
#include "clients/cpp/src/fetch_counts.h"

namespace cairn::client {

// Totals since the client was made. Thread-safe. The order of changes is not kept: nothing is
// concluded from it.
class ClientTotals {
 public:
  void AddMatch(uint32_t matched_blocks);
  void AddFetch() { Add(fetches_, 1); }
  // Adds the slices that one path delivered.
  void AddFetched(Path path, const FetchCounts& counts);
  // `near_bytes` of `bytes` took the same-node path.
  void AddPushed(uint64_t parts, uint64_t bytes, uint64_t near_bytes);
  // A call that the same-node path could not serve.
  void AddFallback() { Add(fallbacks_, 1); }
  // A call that ended with this code.
  void AddCall(StatusCode code);

  // The totals. Fields of the present state are left alone.
  ClientStats Get() const;

 private:
  using Counter = std::atomic<uint64_t>;
  static void Add(Counter& counter, uint64_t n) { counter.fetch_add(n, std::memory_order_relaxed); }

  Counter matches_{0}, matched_blocks_{0}, fetches_{0}, fetched_slices_{0}, corrupt_slices_{0},
      fetched_rows_{0}, corrupt_rows_{0}, lent_bytes_{0}, pushed_parts_{0}, pushed_bytes_{0},
      pushed_near_bytes_{0}, fallbacks_{0};
  std::array<Counter, kTierCount> fetched_bytes_{};
  std::array<Counter, kPathCount> fetched_by_path_{};
  std::array<Counter, 17> by_code_{};
};

}  // namespace cairn::client
