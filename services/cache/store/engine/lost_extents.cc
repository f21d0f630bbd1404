#include "services/cache/store/engine/lost_extents.h"

#include <algorithm>
#include <vector>

#include "common/log/log.h"

namespace cairn::cache {
namespace {

// Portions of a namespace, each of which is looked at under its lock.
size_t PortionsOf(uint64_t blocks) { return blocks < 1024 ? 1 : 64; }

}  // namespace

void LostExtents::Tick() {
  bool more = false;
  for (const TierKind kind : context_.tiers.kinds()) {
    const uint64_t losses = context_.tiers.Get(kind)->losses();
    more |= seen_[kind].exchange(losses) != losses;
  }
  const TimePoint now = context_.clock->Now();
  if (!more && now < next_look_.load()) return;
  next_look_.store(now + kLookAgain);
  wanted_.store(true);
  pump_.Kick();
}

bool LostExtents::Step() {
  if (!wanted_.exchange(false)) return false;
  const auto all = context_.registry.All();
  for (const TierKind kind : context_.tiers.kinds()) {
    if (context_.tiers.Get(kind)->losses() == 0) continue;
    for (const NamespacePtr& ns : *all) {
      if (ns->blocks_in[kind].load(std::memory_order_relaxed) > 0) Remove(*ns, kind);
    }
  }
  context_.progress.Notify();
  return true;
}

void LostExtents::Remove(NamespaceState& ns, TierKind kind) {
  const Tier& tier = *context_.tiers.Get(kind);
  const size_t portions = PortionsOf(ns.blocks.load(std::memory_order_relaxed));
  uint64_t removed = 0;
  for (size_t portion = 0; portion < portions; ++portion) {
    NamespaceLock lock(ns, context_.tiers);
    std::vector<BlockKey> lost;
    ns.index.ForEachInRange(portion, portions, [&](BlockRef ref) {
      ns.mu.AssertHeld();
      if (!ns.index.MetaAt(ref).in(kind)) return;
      const PartPlaces parts = ns.index.PartsOf(ref);
      if (std::any_of(parts.begin(), parts.end(),
                      [&](const PartPlace& part) { return tier.IsLost(part.In(kind)); })) {
        lost.push_back(ns.index.KeyAt(ref));
      }
    });
    // To remove one may move others: they are found again by their keys.
    for (const BlockKey& key : lost) {
      const auto ref = ns.index.FindAlive(key);
      if (!ref || !ns.index.MetaAt(*ref).in(kind)) continue;
      const uint32_t pool = ns.index.PoolAt(*ref);
      const bool left_all = ns.index.RemoveFromTier(*ref, kind, &lock.released);
      context_.PublishLeft(ns, key, kind, left_all, pool);
      ++removed;
    }
  }
  if (removed == 0) return;
  context_.counters.lost_blocks.Add(removed);
  log::Warn("blocks_lost", {{"tier", std::string(Name(kind))},
                            {"namespace", ns.fingerprint.Hex()},
                            {"blocks", log::Num(removed)}});
}

}  // namespace cairn::cache
