#pragma once
// The statistics of a cache node that its Stat call answers. Each is declared once, by a row of a
// table below. From a row come
//
//   the counter           services/cache/store/state/counters.h
//   the fields            NodeStatistics and TierStat, here
//   both ends of the wire protocol/wire/node_statistics.cc
//   the metric            services/cache/serve/node/engine_metrics.cc
//   Python's dict, JSON   clients/python/src/calls.cc, tools/cairn/commands/stat_view.cc
//
// To add a statistic, add a row, the field of proto/cairn/v1/cache.proto with the same name, and
// the place that counts it. tests/ops/test_statistics.py then names the lines that people and type
// checkers read: in docs/operate/metrics.md and in clients/python/cairn/types.py. Statistics that
// are only metrics have the same kind of table in services/cache/store/state/engine_statistics.h.

#include <cstddef>
#include <cstdint>
#include <string>

#include "cairn/common/kv/miss_reason.h"
#include "cairn/common/kv/statistic.h"
#include "cairn/common/tier_kind.h"

namespace cairn {

// clang-format off
// ROW(kind, name, metric, labels, help)
#define CAIRN_NODE_STATISTICS(ROW)                                                                 \
  ROW(kNow, namespaces, "cairn_namespaces", "",                                                    \
      "Namespaces that the node knows.")                                                           \
  ROW(kNow, blocks, "cairn_index_entries", "",                                                     \
      "Complete blocks in the index.")                                                             \
  ROW(kNow, incomplete_blocks, "cairn_incomplete_blocks", "",                                      \
      "Blocks with parts missing.")                                                                \
  ROW(kNow, leases, "cairn_leases", "",                                                            \
      "Leases that clients hold.")                                                                 \
  ROW(kNow, reservations, "cairn_reservations", "",                                                \
      "Reservations that clients hold.")                                                           \
  ROW(kNow, reserved_bytes, "cairn_reserved_bytes", "",                                            \
      "Bytes that are reserved and not committed.")                                                \
  ROW(kNow, sessions, "cairn_sessions", "",                                                        \
      "Open sessions.")                                                                            \
  ROW(kNow, unflushed_bytes, "cairn_unflushed_bytes", "",                                          \
      "Committed bytes that are not on disk yet.")                                                 \
  ROW(kNow, index_bytes, "cairn_index_bytes", "",                                                  \
      "Memory of the index.")                                                                      \
  ROW(kCounted, matched_tokens, "cairn_tokens_saved_total", "",                                    \
      "Tokens that Match found, so that no worker had to compute them.")                           \
  ROW(kCounted, missed_tokens, "", "",                                                             \
      "Tokens that Match was asked for with a lease and did not find.")                            \
  ROW(kCounted, fetched_bytes, "", "",                                                             \
      "Bytes that clients fetched.")                                                               \
  ROW(kCounted, pushed_bytes, "cairn_transfer_bytes_total", "src=client,dst=host",                 \
      "Bytes that clients pushed.")                                                                \
  ROW(kTotal, fetched_host_bytes, "cairn_transfer_bytes_total", "src=host,dst=client",             \
      "The bytes of fetched_bytes that came from the host tier.")                                  \
  ROW(kTotal, fetched_disk_bytes, "cairn_transfer_bytes_total", "src=disk,dst=client",             \
      "The bytes of fetched_bytes that came from disk, for the fetch or for its match.")           \
  ROW(kCounted, promoted_blocks, "cairn_promoted_blocks_total", "",                                \
      "Blocks copied from disk to the host tier.")                                                 \
  ROW(kCounted, corrupt_blocks, "cairn_checksum_failures_total", "",                               \
      "Blocks removed because their bytes failed the checksum.")                                   \
  ROW(kCounted, prefetched_blocks, "cairn_prefetched_blocks_total", "outcome=brought",             \
      "How many of promoted_blocks because of a hint.")                                            \
  ROW(kCounted, prefetched_used_blocks, "cairn_prefetched_blocks_total", "outcome=used",           \
      "How many of prefetched_blocks were matched later.")                                         \
  ROW(kCountedSeconds, prefill_seconds_saved, "cairn_prefill_seconds_saved_total", "",             \
      "Prefill time that matches saved, at the prefill speed that clients named.")

// The metrics of a tier have the label `tier` in addition.
#define CAIRN_TIER_STATISTICS(ROW)                                                                 \
  ROW(kNow, capacity_bytes, "cairn_tier_capacity_bytes", "",                                       \
      "Capacity of the tier.")                                                                     \
  ROW(kNow, used_bytes, "cairn_tier_used_bytes", "",                                               \
      "Bytes allocated in the tier, rounding included.")                                           \
  ROW(kNow, blocks, "cairn_tier_blocks", "",                                                       \
      "Complete blocks in the tier.")                                                              \
  ROW(kTotal, read_bytes, "", "",                                                                  \
      "Bytes read from the tier.")                                                                 \
  ROW(kTotal, written_bytes, "", "",                                                               \
      "Bytes written to the tier.")                                                                \
  ROW(kCounted, evicted_blocks, "cairn_evicted_blocks_total", "",                                  \
      "Blocks that left the tier to make room.")
// clang-format on

// The numbers that the engine of a node knows for the message StatResponse of
// proto/cairn/v1/cache.proto. Totals are since start.
struct NodeStatistics {
  std::string node_id = {};
  uint64_t node_epoch = 0;
  double uptime_seconds = 0;
  std::string disk_io_mode = {};  // "io_uring/direct" and the like. Empty without a disk tier.
  CAIRN_NODE_STATISTICS(CAIRN_STATISTIC_FIELD)
  uint64_t misses[kNodeMissReasonCount] = {};  // Blocks not served, by MissReason.
};

struct TierStat {
  TierKind tier = TierKind::kHost;
  CAIRN_TIER_STATISTICS(CAIRN_STATISTIC_FIELD)
};

// Calls f(const Statistic&, value) for each row of the table, in its order. The value is a
// uint64_t& or double&, const if `stats` is.
template <typename Visitor>
void ForEachStatistic(const NodeStatistics& stats, Visitor&& f) {
  CAIRN_NODE_STATISTICS(CAIRN_STATISTIC_VISIT)
}
template <typename Visitor>
void ForEachStatistic(NodeStatistics& stats, Visitor&& f) {
  CAIRN_NODE_STATISTICS(CAIRN_STATISTIC_VISIT)
}
template <typename Visitor>
void ForEachStatistic(const TierStat& stats, Visitor&& f) {
  CAIRN_TIER_STATISTICS(CAIRN_STATISTIC_VISIT)
}
template <typename Visitor>
void ForEachStatistic(TierStat& stats, Visitor&& f) {
  CAIRN_TIER_STATISTICS(CAIRN_STATISTIC_VISIT)
}

}  // namespace cairn
