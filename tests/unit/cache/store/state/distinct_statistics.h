#pragma once
// Statistics in which no two numbers are equal: one that gets lost or mixed up is seen.

#include "services/cache/store/state/engine_statistics.h"

namespace cairn::cache::testing {

// The statistics of a node with a host and a disk tier.
inline EngineStats DistinctStatistics() {
  EngineStats stats;
  uint32_t next = 0;
  const auto number = [&next](const Statistic&, auto& value) { value = ++next; };
  ForEachStatistic(stats, number);
  for (const TierKind tier : {TierKind::kHost, TierKind::kDisk}) {
    stats.tiers[tier].emplace().tier = tier;
    ForEachStatistic(*stats.tiers[tier], number);
  }
  for (size_t i = 1; i < kNodeMissReasonCount; ++i) stats.misses[i] = ++next;
  stats.node_id = "node";
  stats.node_epoch = ++next;
  stats.uptime_seconds = ++next;
  stats.disk_io_mode = "threads/buffered";
  return stats;
}

}  // namespace cairn::cache::testing
