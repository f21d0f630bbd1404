#pragma once
// Makes room in a tier: the lowest-ranked leaf of all namespaces goes first. Thread-safe.

#include "services/cache/state/node_context.h"

namespace cairn::cache {

// Of the parts of a block, in their order.
using Extents = absl::InlinedVector<Extent, 1>;

class Evictor {
 public:
  explicit Evictor(NodeContext* context) : context_(*context) {}

  // Takes room, evicting as much as it needs. RESOURCE_EXHAUSTED when everything left is leased,
  // waits for its copy to disk, or belongs to blocks that are not complete. `below`: only blocks of
  // a lower rank are evicted. `room`: for whom, in the host tier.
  Result<Extent> Reserve(TierKind tier, uint32_t bytes, uint64_t below = UINT64_MAX,
                         const RoomFor& room = {});
  // Room for every part of a block, or nothing; in order. `lengths`: of the parts. `keep_free`:
  // bytes of the tier that must be free then.
  Result<Extents> ReserveAll(TierKind tier, std::span<const uint32_t> lengths,
                             uint64_t keep_free = 0, uint64_t below = UINT64_MAX,
                             const RoomFor& room = {});
  void ReleaseAll(TierKind tier, std::span<const Extent> extents);
  // Evicts one block. False when there is none to evict. `owner`, if set: only of its tenant.
  // Looks at every namespace's published rank: O(namespaces + log blocks).
  bool EvictOne(TierKind tier, uint64_t below = UINT64_MAX,
                const std::optional<OwnerId>& owner = std::nullopt);
  // Sealed room of the namespace's tenant in host; other tiers do not tell tenants apart.
  RoomFor RoomOf(const NamespaceState& ns, TierKind tier = TierKind::kHost) const {
    if (tier != TierKind::kHost) return {};
    return {context_.tiers.host->FindOwner(ns.spec.tenant), Lending::kSealed};
  }

  // Evicts what the persistent tier wants to be rid of together, but for leased blocks and, as far
  // as the tier lets them stay, those that were used since they were written there. A block may go
  // before what builds on it: that is older still, and goes next. False when nothing went.
  bool EvictGroup();

 private:
  void CountEvicted(const NamespaceState& ns, const BlockIndex::Evicted& evicted, TierKind tier);
  Result<Extent> ReserveHost(uint32_t bytes, uint64_t below, const RoomFor& room);

  NodeContext& context_;
};

}  // namespace cairn::cache
