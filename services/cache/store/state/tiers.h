#pragma once
// The tiers of a node. They are registered before the engine is made and do not change afterwards,
// so any thread may read them.

#include <cstddef>
#include <span>

#include "services/cache/store/tier/host_tier.h"
#include "services/cache/store/tier/tier.h"

namespace cairn::cache {

// Borrows the tiers: they outlive whatever uses this.
struct Tiers {
  Tiers() = default;
  explicit Tiers(HostTier* host_in) : host(host_in) { Register(host_in); }

  // Registers a tier, at most one of each kind. nullptr: no effect.
  Tiers& Add(Tier* tier) {
    Register(tier);
    return *this;
  }
  // The tier that recovery reads; at most one.
  Tiers& Add(PersistentTier* tier) {
    if (tier != nullptr) persistent = tier;
    Register(tier);
    return *this;
  }

  // nullptr: the node has none of this kind.
  Tier* Get(TierKind kind) const { return by_kind[kind]; }
  // Map gives the tier's bytes to this process. Without a virtual call, for paths that ask it of
  // every block.
  bool IsMapped(TierKind kind) const { return mapped[kind]; }
  // The kinds that the node has, fastest first.
  std::span<const TierKind> kinds() const { return {by_rank, count}; }

  HostTier* host = nullptr;              // Where the parts of writers arrive. Every node has it.
  PersistentTier* persistent = nullptr;  // nullptr: none.

 private:
  void Register(Tier* tier);

  ByTier<Tier*> by_kind;
  ByTier<bool> mapped;
  TierKind by_rank[kTierCount] = {};
  size_t count = 0;
};

}  // namespace cairn::cache
