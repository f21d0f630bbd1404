#pragma once
// The tiers of a node.

#include "services/cache/tier/tier.h"

namespace cairn::cache {

struct Tiers {
  Tier* host = nullptr;
  PersistentTier* disk = nullptr;  // nullptr: none.
  Tier* Get(TierKind kind) const { return kind == TierKind::kHost ? host : disk; }
};

}  // namespace cairn::cache
