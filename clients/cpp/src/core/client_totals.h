#pragma once
// The counters of a client.

#include <array>
#include <atomic>
#include <cstdint>

#include "cairn/client/client_stats.h"
#include "cairn/common/status.h"
#include "clients/cpp/src/fetch_counts.h"

namespace cairn::client {

// Totals since the client was made. Thread-safe. The order of changes is not kept: nothing is
// concluded from it.
class ClientTotals {
 public:
  void AddMatch(uint32_t matched_blocks);
  void AddFetch() { Add(counters_.fetches, 1); }
  // Adds the slices that one path delivered.
  void AddFetched(Path path, const FetchCounts& counts);
  // `near_bytes` of `bytes` took the same-node path.
  void AddPushed(uint64_t parts, uint64_t bytes, uint64_t near_bytes);
  // A call that the same-node path could not serve.
  void AddFallback() { Add(counters_.local_fallbacks, 1); }
  // A call that ended with this code.
  void AddCall(StatusCode code);

  // What is counted here. The rest of the fields are left alone.
  ClientStats Get() const;

 private:
  using Counter = std::atomic<uint64_t>;
  static void Add(Counter& counter, uint64_t n) { counter.fetch_add(n, std::memory_order_relaxed); }

#define CAIRN_COUNTER(name, ...) Counter name{0};
#define CAIRN_COUNTERS(name, size, ...) std::array<Counter, size> name{};
  struct Counters {
    CAIRN_CLIENT_COUNTED(CAIRN_COUNTER)
    CAIRN_CLIENT_LISTS(CAIRN_COUNTERS)
  };
#undef CAIRN_COUNTER
#undef CAIRN_COUNTERS

  Counters counters_;
};

}  // namespace cairn::client
