#include "services/cache/store/mover/group_emptier.h"

#include <algorithm>

namespace cairn::cache {
namespace {

constexpr Duration kPauseBetweenTries = std::chrono::seconds(1);

// Portions of a namespace, each of which is looked at under its lock.
size_t PortionsOf(uint64_t blocks) { return blocks < 1024 ? 1 : 64; }

bool LiesIn(const PartPlaces& parts, TierKind tier, const TenantGroup& group) {
  return std::any_of(parts.begin(), parts.end(), [&](const PartPlace& part) {
    return part.extent[tier] >= group.begin && part.extent[tier] < group.end;
  });
}

}  // namespace

bool GroupEmptier::EmptyFor(TierKind tier, const std::string& tenant) {
  if (context_.clock->Now() < next_try_.load() || busy_.exchange(true)) return false;
  const auto group = context_.tiers.Get(tier)->GroupToEmpty(tenant);
  bool emptied = false;
  if (group) {
    next_try_.store(context_.clock->Now() + kPauseBetweenTries);
    std::vector<Found> found;
    emptied = BlocksIn(tier, *group, &found);
    for (const Found& block : found) {
      if (!emptied) break;
      emptied = Evict(tier, *group, block);
    }
  }
  busy_.store(false);
  return emptied;
}

bool GroupEmptier::BlocksIn(TierKind tier, const TenantGroup& group, std::vector<Found>* found) {
  const auto all = context_.registry.All();
  for (const NamespacePtr& ns_ptr : *all) {
    NamespaceState& ns = *ns_ptr;
    if (ns.spec.tenant != group.tenant || ns.blocks_in[tier].load() == 0) continue;
    const size_t portions = PortionsOf(ns.blocks.load());
    for (size_t portion = 0; portion < portions; ++portion) {
      NamespaceLock lock(ns, context_.tiers);
      const BlockIndex::PinnedPaths pinned = ns.index.FindPinnedPaths();
      bool stays = false;
      ns.index.ForEachInRange(portion, portions, [&](BlockRef ref) {
        ns.mu.AssertHeld();
        const BlockMeta& meta = ns.index.MetaAt(ref);
        if (!meta.in(tier) || !LiesIn(ns.index.PartsOf(ref), tier, group)) return;
        stays |= pinned.Covers(ref) || ns.index.IsLeased(ref) || meta.dirty_in(tier);
        found->push_back({ns_ptr, ns.index.KeyAt(ref)});
      });
      if (stays) return false;
    }
  }
  return true;
}

bool GroupEmptier::Evict(TierKind tier, const TenantGroup& group, const Found& found) {
  NamespaceState& ns = *found.ns;
  NamespaceLock lock(ns, context_.tiers);
  const auto ref = ns.index.FindAlive(found.key);
  // It may have left, or lie elsewhere, since it was found.
  if (!ref || !ns.index.MetaAt(*ref).in(tier)) return true;
  if (!LiesIn(ns.index.PartsOf(*ref), tier, group)) return true;
  if (ns.dropped.load(std::memory_order_relaxed) || ns.index.IsPinned(*ref) ||
      ns.index.IsLeased(*ref) || ns.index.MetaAt(*ref).dirty_in(tier)) {
    return false;
  }
  evictor_.CountEvicted(ns, ns.index.EvictBlock(*ref, tier, &lock.released), tier);
  return true;
}

}  // namespace cairn::cache
