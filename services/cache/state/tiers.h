#pragma once
// The tiers of a node.

#include "services/cache/tier/host_tier.h"
#include "services/cache/tier/tier.h"

namespace cairn::cache {

struct Tiers {
  HostTier* host = nullptr;
  PersistentTier* disk = nullptr;  // nullptr: none.
  // nullptr: the node has none of this kind.
  Tier* Get(TierKind kind) const {
    switch (kind) {
      case TierKind::kHost:
        return host;
      case TierKind::kDisk:
        return disk;
      case TierKind::kDevice:
        return nullptr;
    }
    return nullptr;
  }
};

}  // namespace cairn::cache
