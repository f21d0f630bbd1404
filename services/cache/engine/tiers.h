#pragma once
// The tiers of a node.

#include "services/cache/tier/host_tier.h"
#include "services/cache/tier/tier.h"

namespace cairn::cache {

struct Tiers {
  HostTier* host = nullptr;
  PersistentTier* disk = nullptr;  // nullptr: none.
  Tier* Get(TierKind kind) const {
    return kind == TierKind::kHost ? static_cast<Tier*>(host) : disk;
  }
};

}  // namespace cairn::cache
