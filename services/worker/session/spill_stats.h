#pragma once
// The statistics of prompts that spill their KV. Totals.

#include <cstdint>

#include "cairn/common/kv/statistic.h"
#include "services/worker/session/fetched_bytes.h"

namespace cairn::worker {

// clang-format off
// ROW(kind, name, metric, labels, help)
#define CAIRN_SPILL_READ_STATISTICS(ROW)                                                           \
  ROW(kTotal, windows, "", "",                                                                     \
      "Windows of spilt KV that attention read.")                                                  \
  ROW(kTotal, late_windows, "cairn_worker_spilled_windows_total", "result=late",                   \
      "Windows that attention had to wait for.")                                                   \
  ROW(kCountedSeconds, wait_seconds, "cairn_worker_spilled_wait_seconds_total", "",                \
      "Time that attention waited for spilt KV.")

#define CAIRN_SPILL_STATISTICS(ROW)                                                                \
  ROW(kTotal, prompts, "cairn_worker_spilled_prompts_total", "",                                   \
      "Prompts that never fit into the KV pool, and were spilt to the cache node.")                \
  ROW(kTotal, spilled_tokens, "cairn_worker_spilled_tokens_total", "result=spilled",               \
      "Tokens whose pages were given back.")                                                       \
  ROW(kTotal, lost_tokens, "cairn_worker_spilled_tokens_total", "result=lost",                     \
      "Tokens that were spilt, and computed again because the node had them no more.")             \
  ROW(kTotal, repeated_passes, "cairn_worker_spilled_repeats_total", "",                           \
      "Forward passes that were repeated because spilt KV did not come.")
// clang-format on

// The cost of reading it back.
struct SpillReadStats {
  BytesByTier bytes;
  CAIRN_SPILL_READ_STATISTICS(CAIRN_STATISTIC_FIELD)

  SpillReadStats& operator+=(const SpillReadStats& other) {
    bytes += other.bytes;
    CAIRN_SPILL_READ_STATISTICS(CAIRN_STATISTIC_ADD)
    return *this;
  }
};

struct SpillStats {
  CAIRN_SPILL_STATISTICS(CAIRN_STATISTIC_FIELD)
  SpillReadStats read;

  SpillStats& operator+=(const SpillStats& other) {
    CAIRN_SPILL_STATISTICS(CAIRN_STATISTIC_ADD)
    read += other.read;
    return *this;
  }
};

// Calls f(const Statistic&, value) for each row of the tables, in their order.
template <typename Visitor>
void ForEachStatistic(const SpillReadStats& stats, Visitor&& f) {
  CAIRN_SPILL_READ_STATISTICS(CAIRN_STATISTIC_VISIT)
}
template <typename Visitor>
void ForEachStatistic(const SpillStats& stats, Visitor&& f) {
  CAIRN_SPILL_STATISTICS(CAIRN_STATISTIC_VISIT)
  ForEachStatistic(stats.read, f);
}

}  // namespace cairn::worker
