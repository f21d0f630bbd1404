#pragma once
// The statistics that a node shows as metrics only: tables as in cairn/common/kv/node_statistics.h,
// which has those that clients see, too. To move one there, move its row and add the field of the
// protocol.

#include <optional>

#include "cairn/common/kv/node_statistics.h"

namespace cairn::cache {

// clang-format off
// ROW(kind, name, metric, labels, help)
#define CAIRN_ENGINE_STATISTICS(ROW)                                                               \
  ROW(kNow, mover_queue_depth, "cairn_mover_queue_blocks", "",                                     \
      "Moves between tiers that wait in the queue.")                                               \
  ROW(kNow, hinted_bytes, "cairn_hinted_bytes", "",                                                \
      "Bytes that prefetch hints protect.")                                                        \
  ROW(kNow, retired_bytes, "cairn_retired_bytes", "",                                              \
      "Memory that left the host tier, but that same-node clients still map.")                     \
  ROW(kCounted, hints_soon, "cairn_hinted_matches_total", "next=soon",                             \
      "Matches whose client said that the conversation goes on soon.")                             \
  ROW(kCounted, hints_later, "cairn_hinted_matches_total", "next=later",                           \
      "Matches whose client said that the conversation goes on later.")                            \
  ROW(kCounted, hints_never, "cairn_hinted_matches_total", "next=never",                           \
      "Matches whose client said that the conversation is over.")                                  \
  ROW(kNow, waiting_matches, "cairn_waiting_matches", "",                                          \
      "Matches that wait for blocks which somebody writes.")                                       \
  ROW(kCounted, waited_matches, "cairn_match_waits_total", "",                                     \
      "Matches that waited for blocks which somebody wrote.")                                      \
  ROW(kCountedSeconds, match_wait_seconds, "cairn_match_wait_seconds_total", "",                   \
      "Time that matches waited for blocks which somebody wrote.")                                 \
  ROW(kCounted, announced_blocks, "cairn_announced_blocks_total", "",                              \
      "Blocks that clients announced before they computed and pushed them.")                       \
  ROW(kCounted, fetched_rows, "cairn_fetched_rows_total", "",                                      \
      "Rows of one head that fetches of rows sent.")                                               \
  ROW(kCounted, row_checked_bytes, "cairn_row_checked_bytes_total", "",                            \
      "Bytes of slices that were hashed so that rows of them could be sent.")                      \
  ROW(kCounted, matched_blocks, "", "",                                                            \
      "Blocks that Match found.")                                                                  \
  ROW(kCounted, demoted_blocks, "cairn_demoted_blocks_total", "",                                  \
      "Blocks that left a tier while a slower one keeps them.")                                    \
  ROW(kCounted, lost_blocks, "cairn_lost_blocks_total", "",                                        \
      "Copies of blocks that were lost with the GPU on which they lay.")                           \
  ROW(kCounted, expired_blocks, "cairn_expired_blocks_total", "",                                  \
      "Blocks that left a tier, or made way for the same block again, when their life was over.")  \
  ROW(kCounted, prefetched_wasted_blocks, "cairn_prefetched_blocks_total", "outcome=wasted",       \
      "How many of prefetched_blocks left the host tier without a match.")                         \
  ROW(kTotal, merged_moves, "cairn_mover_merged_total", "",                                        \
      "Requested moves that were already waiting or in progress.")                                 \
  ROW(kTotal, cancelled_moves, "cairn_mover_cancelled_total", "",                                  \
      "Moves dropped before they began, because no caller waited for them or others mattered "     \
      "more.")                                                                                     \
  ROW(kCounted, untouched_copies, "cairn_declined_copies_total", "reason=second_touch",            \
      "Copies to disk that admission skipped, because the block had no second touch.")             \
  ROW(kCounted, over_budget_copies, "cairn_declined_copies_total", "reason=write_budget",          \
      "Copies to disk that admission skipped, because the write budget was used up.")              \
  ROW(kCounted, crowded_copies, "cairn_declined_copies_total", "reason=crowded",                   \
      "Copies to disk that were put off, because too much of the room waits for its copy.")        \
  ROW(kCounted, unencodable_copies, "cairn_declined_copies_total", "reason=not_encodable",         \
      "Copies to disk that were skipped, because the codec of the disk cannot store the numbers.") \
  ROW(kCounted, failed_copies, "cairn_failed_copies_total", "",                                    \
      "Blocks whose copy to disk the node gave up after failed attempts.")                         \
  ROW(kCounted, late_copies, "cairn_late_copies_total", "",                                        \
      "Blocks whose copy to disk was written or given up later than disk.flush_after.")            \
  ROW(kCounted, copy_stalls, "cairn_copy_stalls_total", "",                                        \
      "Times that a copy to disk was under way and none ended for 30 s.")                          \
  ROW(kCounted, recoded_bytes_in, "cairn_recoded_bytes_total", "form=before",                      \
      "Bytes that a ladder encoded again for the disk, before.")                                   \
  ROW(kCounted, recoded_bytes_out, "cairn_recoded_bytes_total", "form=after",                      \
      "Bytes that a ladder encoded again for the disk, after.")                                    \
  ROW(kCounted, over_limit, "cairn_over_tenant_limit_total", "",                                   \
      "Parts that were not stored, and copies that were not made, because their tenant had all "   \
      "that it may have, and none of its blocks could go.")                                        \
  ROW(kCounted, over_pace, "cairn_over_tenant_pace_total", "",                                     \
      "Calls that were refused because their tenant had read and written all that its rate gives " \
      "it.")                                                                                       \
  ROW(kCounted, commits, "cairn_commits_total", "",                                                \
      "Parts that became visible.")                                                                \
  ROW(kCounted, expired_leases, "cairn_expired_leases_total", "",                                  \
      "Leases that expired before they were released.")                                            \
  ROW(kCounted, expired_reservations, "cairn_expired_reservations_total", "",                      \
      "Reservations that the node took back because no writer committed them in time.")            \
  ROW(kTotal, dropped_events, "cairn_events_dropped_total", "",                                    \
      "Events lost because a watcher was too slow.")

// The metrics of a tier have the label `tier` in addition.
#define CAIRN_ENGINE_TIER_STATISTICS(ROW)                                                          \
  ROW(kCounted, evicted_bytes, "cairn_evicted_bytes_total", "",                                    \
      "Bytes of blocks that left the tier to make room.")                                          \
  ROW(kCountedSeconds, evicted_age_seconds, "cairn_evicted_age_seconds_total", "",                 \
      "Time since the last use of blocks that left the tier to make room, added up.")              \
  ROW(kTotal, io_errors, "cairn_tier_io_errors_total", "",                                         \
      "Reads and writes of the tier that failed.")                                                 \
  ROW(kRate, read_bytes_per_second, "cairn_tier_read_bytes_per_second", "",                        \
      "Speed of recent reads, as the estimates of fetches use it.")                                \
  ROW(kNow, extents, "", "",                                                                       \
      "Extents that are allocated.")
// clang-format on

struct TierState : TierStat {
  CAIRN_ENGINE_TIER_STATISTICS(CAIRN_STATISTIC_FIELD)
};

struct EngineStats : NodeStatistics {
  ByTier<std::optional<TierState>> tiers;  // nullopt: the node has no such tier.
  CAIRN_ENGINE_STATISTICS(CAIRN_STATISTIC_FIELD)
};

// As for their bases, whose rows come first.
template <typename Visitor>
void ForEachStatistic(const TierState& stats, Visitor&& f) {
  ForEachStatistic(static_cast<const TierStat&>(stats), f);
  CAIRN_ENGINE_TIER_STATISTICS(CAIRN_STATISTIC_VISIT)
}
template <typename Visitor>
void ForEachStatistic(TierState& stats, Visitor&& f) {
  ForEachStatistic(static_cast<TierStat&>(stats), f);
  CAIRN_ENGINE_TIER_STATISTICS(CAIRN_STATISTIC_VISIT)
}
template <typename Visitor>
void ForEachStatistic(const EngineStats& stats, Visitor&& f) {
  ForEachStatistic(static_cast<const NodeStatistics&>(stats), f);
  CAIRN_ENGINE_STATISTICS(CAIRN_STATISTIC_VISIT)
}
template <typename Visitor>
void ForEachStatistic(EngineStats& stats, Visitor&& f) {
  ForEachStatistic(static_cast<NodeStatistics&>(stats), f);
  CAIRN_ENGINE_STATISTICS(CAIRN_STATISTIC_VISIT)
}

}  // namespace cairn::cache
