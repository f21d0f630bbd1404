#include "services/cache/store/state/counters.h"

namespace cairn::cache {

#define CAIRN_COPY(kind, name, ...) CAIRN_IF_COUNTED(kind, stats->name = name.Get();)
#define CAIRN_COPY_TIER(kind, name, ...) CAIRN_IF_COUNTED(kind, state->name = name[tier].Get();)

void Counters::CopyTo(EngineStats* stats) const {
  CAIRN_NODE_STATISTICS(CAIRN_COPY)
  CAIRN_ENGINE_STATISTICS(CAIRN_COPY)
  for (const TierKind tier : kTiersByRank) {
    std::optional<TierState>& state = stats->tiers[tier];
    if (!state) continue;
    CAIRN_TIER_STATISTICS(CAIRN_COPY_TIER)
    CAIRN_ENGINE_TIER_STATISTICS(CAIRN_COPY_TIER)
  }
  for (size_t i = 0; i < kNodeMissReasonCount; ++i) stats->misses[i] = misses[i].Get();
  stats->fetched_host_bytes = fetched_from[TierKind::kHost].Get();
  stats->fetched_disk_bytes = fetched_from[TierKind::kDisk].Get();
}

}  // namespace cairn::cache
