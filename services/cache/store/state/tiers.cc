#include "services/cache/store/state/tiers.h"

#include "cairn/common/status.h"

namespace cairn::cache {

void Tiers::Register(Tier* tier) {
  if (tier == nullptr) return;
  CAIRN_CHECK(by_kind[tier->kind()] == nullptr);
  by_kind[tier->kind()] = tier;
  mapped[tier->kind()] = tier->mapped();
  count = 0;
  for (const TierKind kind : kTiersByRank) {
    if (by_kind[kind] != nullptr) by_rank[count++] = kind;
  }
}

}  // namespace cairn::cache
