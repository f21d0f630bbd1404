// The messages of the index to its eviction policy, and which block it gives away.
#include "services/cache/store/index/block_index.h"

namespace cairn::cache {
namespace {

// Half a second. A block that was used less than that ago leaves only if LRU takes it.
constexpr uint32_t kFreshTicks = 30;

}  // namespace

uint8_t BlockIndex::StoredGroup(const BlockKey& key, BlockRef ref, uint32_t now) const {
  const Node& n = node(ref.node);
  const BlockMeta* parent = nullptr;
  if (ref.offset > 0) {
    parent = &n.run.meta(ref.offset - 1);
  } else if (n.parent != kNoNode) {
    const BlockRun& run = node(n.parent).run;
    parent = &run.meta(run.size() - 1);
  }
  std::optional<uint8_t> parent_group;
  if (parent != nullptr && parent->alive()) parent_group = parent->group;
  return policy_->Stored(key, parent_group, now);
}

// Blocks that a hint brought and that are used for the first time.
uint32_t BlockIndex::UsePaths(const Walk& walk, uint32_t now) {
  uint32_t prefetched = 0;
  for (const PathRun& path : walk.path_runs) {
    BlockRef at = path.deepest;
    for (uint32_t left = path.count; left > 0;) {
      Node& n = node(at.node);
      const uint32_t here = std::min(left, at.offset + 1);
      // Neighbours are mostly alike, and are told to the policy together.
      BlockUse before;
      uint32_t alike = 0;
      const auto tell = [&](uint32_t first) {
        if (alike == 0) return;
        const uint8_t group = policy_->Used(before, alike);
        for (uint32_t i = first; i < first + alike; ++i) n.run.meta(i).group = group;
        alike = 0;
      };
      for (uint32_t i = 0; i < here; ++i) {
        const uint32_t offset = at.offset - i;
        BlockMeta& meta = n.run.meta(offset);
        if (learns_) {
          const bool as_before = alike > 0 && meta.last_use == before.last_use &&
                                 meta.group == before.group && meta.uses == before.uses;
          if (!as_before) {
            tell(offset + 1);
            before = UseOf(meta, static_cast<size_t>(meta.served_from()));
          }
          ++alike;
        }
        meta.last_use = std::max(meta.last_use, now);
        prefetched += (meta.flags & BlockMeta::kPrefetched) != 0;
        meta.flags &= static_cast<uint8_t>(~BlockMeta::kPrefetched);
        if (meta.uses != UINT8_MAX) ++meta.uses;
      }
      tell(at.offset + 1 - here);
      left -= here;
      at.node = n.parent;
      if (left > 0) at.offset = node(at.node).run.size() - 1;
    }
  }
  return prefetched;
}

uint64_t BlockIndex::NextRank(TierKind tier) const {
  const CandidateHeap& leased = leased_heaps_[static_cast<size_t>(tier)];
  const uint64_t rank = NextUnleasedRank(tier);
  return leased.empty() ? rank : std::min(rank, leased.top().rank);
}

uint64_t BlockIndex::NextUnleasedRank(TierKind tier) const {
  const CandidateHeap& heap = heaps_[static_cast<size_t>(tier)];
  return heap.empty() ? UINT64_MAX : heap.top().rank;
}

BlockUse BlockIndex::TailUse(NodeId id, TierKind tier) const {
  const Node& n = node(id);
  const size_t t = static_cast<size_t>(tier);
  return UseOf(n.run.meta(n.tail[t] - 1), t);
}

// Makes the heap's first entry exact. False: there is none.
bool BlockIndex::RefreshOldest(TierKind tier, CandidateHeap* heap) {
  const size_t t = static_cast<size_t>(tier);
  while (!heap->empty()) {
    const CandidateHeap::Entry top = heap->top();
    const Node& n = node(top.id);
    const uint64_t rank = TailRank(n, t);
    if (rank <= top.rank) return true;
    // It was used since: ranks in the heap are lower bounds.
    heap->Update(n.heap_position[t], rank,
                 [this, t](uint32_t i, uint32_t p) { node(i).heap_position[t] = p; });
  }
  return false;
}

// The time that the candidate which LRU would have taken gets when the victim goes instead.
uint64_t BlockIndex::HandedOn(NodeId victim, TierKind tier) const {
  const size_t t = static_cast<size_t>(tier);
  const Node& n = node(victim);
  // It may have got the time of another one before.
  return std::max(TailRank(n, t), heaps_[t].RankAt(n.heap_position[t]));
}

// Among those that are not leased. REQUIRES: RefreshOldest, whose block was used before `below`.
NodeId BlockIndex::ChooseVictim(TierKind tier, uint64_t below) {
  CandidateHeap& heap = heaps_[static_cast<size_t>(tier)];
  const NodeId oldest = heap.top().id;
  if (policy_ == nullptr || life_ != 0) return oldest;
  std::optional<CandidateId> victim;
  BlockUse use;
  do {
    victim = policy_->Victim(tier);
    if (!victim) return oldest;
    use = TailUse(*victim, tier);
  } while (policy_->Spare(tier, *victim, use));
  // Nor the beginning of a path that is being stored, nor what a hint protects.
  if (use.last_use >= below || use.last_use + kFreshTicks > latest_) return oldest;
  const Node& leaves = node(*victim);
  policy_->Evict(tier, leaves.run.key(leaves.tail[static_cast<size_t>(tier)] - 1));
  if (*victim == oldest) return oldest;
  const size_t t = static_cast<size_t>(tier);
  const uint64_t handed_on = HandedOn(*victim, tier);
  if (handed_on > heap.top().rank) {
    heap.Update(node(oldest).heap_position[t], handed_on,
                [this, t](uint32_t i, uint32_t p) { node(i).heap_position[t] = p; });
  }
  return *victim;
}

std::optional<BlockIndex::Evicted> BlockIndex::EvictOne(TierKind tier, ReleaseList* released,
                                                        uint64_t below, uint32_t now, bool leased) {
  const size_t t = static_cast<size_t>(tier);
  const uint64_t oldest = RefreshOldest(tier, &heaps_[t]) ? heaps_[t].top().rank : UINT64_MAX;
  CandidateHeap& heap = leased_heaps_[t];
  const uint64_t oldest_leased =
      leased && RefreshOldest(tier, &heap) ? heap.top().rank : UINT64_MAX;
  NodeId victim;
  if (oldest < below) {
    victim = ChooseVictim(tier, below);
    // A lease keeps a block as a policy does: the namespace does not have more of them.
    if (oldest_leased < oldest) {
      heap.Update(node(heap.top().id).heap_position[t], HandedOn(victim, tier),
                  [this, t](uint32_t i, uint32_t p) { node(i).heap_position[t] = p; });
    }
  } else if (oldest_leased < below) {
    victim = heap.top().id;
  } else {
    return std::nullopt;
  }
  return EvictBlock({victim, node(victim).tail[t] - 1}, tier, released, now);
}

BlockIndex::Evicted BlockIndex::EvictBlock(BlockRef ref, TierKind tier, ReleaseList* released,
                                           uint32_t now) {
  Evicted evicted{.key = KeyAt(ref),
                  .pool = PoolAt(ref),
                  .bytes = MetaAt(ref).bytes_in(tier),
                  .last_use = MetaAt(ref).last_use,
                  .over = IsOver(ref, now),
                  .unused_prefetch =
                      tier == TierKind::kHost && (MetaAt(ref).flags & BlockMeta::kPrefetched) != 0};
  // No pin of a place is on it or below it, so nobody can be reading it: its extents need no grave.
  const size_t graves = graves_.size();
  for (const TierKind other : kTiersByRank) {
    evicted.demoted |= Faster(tier, other) && MetaAt(ref).in(other);
  }
  evicted.gone = RemoveFromTier(ref, tier, released);
  while (graves_.size() > graves) {
    released->push_back(graves_.back().extent);
    graves_.pop_back();
  }
  return evicted;
}

}  // namespace cairn::cache
