#pragma once
// Makes room in a tier: the lowest-ranked leaf of all namespaces goes first. Thread-safe.

#include "services/cache/engine/node_context.h"

namespace cairn::cache {

class Evictor {
 public:
  explicit Evictor(NodeContext* context) : context_(*context) {}

  // Takes room, evicting as much as it needs. RESOURCE_EXHAUSTED when everything left is leased,
  // waits for its copy to disk, or belongs to blocks that are not complete.
  Result<Extent> Reserve(TierKind tier, uint32_t bytes);
  // Room for every part of a block, or nothing. The extents' ids, in order. `keep_free`: bytes of
  // the tier that must be free then.
  Result<absl::InlinedVector<uint64_t, 1>> ReserveAll(TierKind tier, const PartPlaces& parts,
                                                      uint64_t keep_free = 0);
  void ReleaseAll(TierKind tier, const PartPlaces& parts, std::span<const uint64_t> ids);
  // Evicts one block. False when there is none to evict.
  // Looks at every namespace's published rank: O(namespaces + log blocks).
  bool EvictOne(TierKind tier);

 private:
  NodeContext& context_;
};

}  // namespace cairn::cache
