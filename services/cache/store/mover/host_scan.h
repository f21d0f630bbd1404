#pragma once
// A look at every block in host. It takes time for all of them.

#include "services/cache/store/state/node_context.h"

namespace cairn::cache {

// Blocks in host that a caller may wait for: some milliseconds.
inline constexpr uint64_t kSmallHostScan = 1 << 16;

inline uint64_t BlocksInHost(const NodeContext& context) {
  uint64_t blocks = 0;
  const auto all = context.registry.All();
  for (const NamespacePtr& ns : *all) blocks += ns->blocks_in[TierKind::kHost].load();
  return blocks;
}

// Calls visit(namespace, index, ref, pinned) for each block in host, under the lock of its
// namespace, which is let go from time to time. `pinned`: in its place. A lease may keep it too.
template <typename Visitor>
void ForEachBlockInHost(NodeContext& context, Visitor&& visit) {
  // Portions of a namespace, each of which is looked at under its lock.
  const auto portions_of = [](uint64_t blocks) -> size_t {
    return blocks < 1024 ? 1 : blocks < (1 << 20) ? 64 : 1024;
  };
  const auto all = context.registry.All();
  for (const NamespacePtr& ns_ptr : *all) {
    NamespaceState& ns = *ns_ptr;
    if (ns.blocks_in[TierKind::kHost].load() == 0) continue;
    const size_t portions = portions_of(ns.blocks.load());
    for (size_t portion = 0; portion < portions; ++portion) {
      NamespaceLock lock(ns, context.tiers);
      const BlockIndex::PinnedPaths pinned = ns.index.FindPinnedPaths();
      ns.index.ForEachInRange(portion, portions, [&](BlockRef ref) {
        ns.mu.AssertHeld();
        if (!ns.index.MetaAt(ref).in(TierKind::kHost)) return;
        visit(ns_ptr, ns.index, ref, pinned.Covers(ref));
      });
    }
  }
}

}  // namespace cairn::cache
