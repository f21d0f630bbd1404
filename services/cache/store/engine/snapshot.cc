#include "services/cache/store/engine/snapshot.h"

#include <bit>

namespace cairn::cache {

Snapshot::Snapshot(const Tiers* tiers, const NamespaceRegistry& registry, const EventFilter& filter)
    : tiers_(*tiers) {
  const auto all = registry.All();
  for (const NamespacePtr& ns : *all) {
    // Nobody can read the blocks of an unreadable namespace.
    if (!ns->readable().ok()) continue;
    if (filter.Takes(ns->fingerprint, ns->spec.tenant)) namespaces_.push_back(ns);
  }
}

bool Snapshot::NextPage(std::vector<CacheEvent>* events) {
  if (namespace_ == namespaces_.size()) return false;
  NamespaceState& ns = *namespaces_[namespace_];
  {
    NamespaceLock lock(ns, tiers_);
    if (ranges_ == 0) ranges_ = std::bit_ceil(ns.index.blocks() / kPageBlocks + 1);
    // A namespace that was dropped since is told by its own event.
    if (!ns.dropped.load(std::memory_order_relaxed)) {
      ns.index.ForEachInRange(range_, ranges_, [&](BlockRef ref) {
        ns.mu.AssertHeld();
        const BlockMeta& meta = ns.index.MetaAt(ref);
        if (!meta.alive()) return;
        CacheEvent event;
        event.kind = CacheEvent::Kind::kStored;
        event.fingerprint = ns.fingerprint;
        event.key = ns.index.KeyAt(ref);
        event.parent = ns.index.ParentOf(ref);
        event.tier = meta.served_from();
        event.pool = meta.pool();
        events->push_back(event);
        // A watcher that knew one tier alone took the block for gone when it left that one.
        event.kind = CacheEvent::Kind::kTierAdded;
        for (const TierKind tier : kTiersByRank) {
          if (tier == meta.served_from() || !meta.in(tier)) continue;
          event.tier = tier;
          events->push_back(event);
        }
      });
    }
  }
  if (++range_ >= ranges_) {
    ++namespace_;
    range_ = ranges_ = 0;
  }
  return true;
}

}  // namespace cairn::cache
