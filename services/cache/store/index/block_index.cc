#include "services/cache/store/index/block_index.h"

#include "absl/container/flat_hash_set.h"
#include "services/cache/store/tier/host_room.h"

namespace cairn::cache {
namespace {

// Steps up from a parent in order to see that it is not below its child: of one link, and of all
// links of a match. Paths have some ten nodes. A root that would take more stays a root.
constexpr uint64_t kLinkSteps = 1024;
constexpr uint64_t kMatchLinkSteps = 65536;

}  // namespace

BlockIndex::BlockIndex(const PoolGrid& grid, std::unique_ptr<EvictionPolicy> policy, uint64_t seed)
    : grid_(grid),
      policy_(std::move(policy)),
      learns_(policy_ != nullptr && policy_->Learns()),
      map_(seed),
      of_pool_(grid.pools()) {}

std::optional<BlockRef> BlockIndex::Find(const BlockKey& key) const {
  return map_.Find(key, [this](BlockRef ref) -> const BlockKey& { return KeyAt(ref); });
}

std::optional<BlockRef> BlockIndex::FindAlive(const BlockKey& key) const {
  auto ref = Find(key);
  if (ref && !MetaAt(*ref).alive()) ref.reset();
  return ref;
}

void BlockIndex::FindAll(std::span<const BlockKey> keys, std::span<std::optional<TierKind>> found,
                         uint32_t now) const {
  BlockRef next;
  for (size_t i = 0; i < keys.size(); ++i) {
    std::optional<BlockRef> ref;
    if (next.node != kNoNode && next.offset < node(next.node).run.size() &&
        KeyAt(next) == keys[i]) {
      ref = next;
    } else {
      ref = Find(keys[i]);
    }
    if (!ref) {
      found[i] = std::nullopt;
      next = {};
      continue;
    }
    const BlockMeta& meta = MetaAt(*ref);
    found[i] = IsOver(meta, now) ? std::nullopt : meta.fastest();
    next = {ref->node, ref->offset + 1};
  }
}

std::optional<BlockKey> BlockIndex::ParentOf(BlockRef ref) const {
  const Node& n = node(ref.node);
  if (ref.offset > 0) return n.run.key(ref.offset - 1);
  if (n.parent == kNoNode) return std::nullopt;
  const BlockRun& run = node(n.parent).run;
  return run.key(run.size() - 1);
}

PartPlaces BlockIndex::PartsOf(BlockRef ref) const {
  const BlockMeta& meta = MetaAt(ref);
  if (meta.flags & BlockMeta::kManyParts) {
    const auto& parts = many_parts_.at(meta.extent[0]);
    return PartPlaces(parts.begin(), parts.end());
  }
  return {PartPlace{WholeAt(ref), meta.bytes, meta.extent}};
}

bool BlockIndex::LiesAt(BlockRef ref, TierKind tier, const PartPlaces& parts) const {
  if (!MetaAt(ref).in(tier)) return false;
  const size_t t = static_cast<size_t>(tier);
  const PartPlaces now = PartsOf(ref);
  return std::equal(now.begin(), now.end(), parts.begin(), parts.end(),
                    [t](const PartPlace& a, const PartPlace& b) {
                      return a.rect == b.rect && a.extent[t] == b.extent[t];
                    });
}

bool BlockIndex::Insert(const BlockKey& key, const std::optional<BlockKey>& parent,
                        const PartPlaces& parts, TierKind tier, float recompute_seconds,
                        uint32_t now) {
  latest_ = std::max<uint64_t>(latest_, now);
  const bool has_parent = parent.has_value() && *parent != key;
  auto ref = Find(key);
  if (ref && has_parent) {
    Link(key, *parent);
    ref = Find(key);
  }
  if (ref && MetaAt(*ref).alive()) return false;
  if (!ref) {
    if (has_parent) {
      const auto above = Find(*parent);
      ref = AppendAfter(above ? *above : NewRoot(*parent), key);
    } else {
      ref = NewRoot(key);
    }
  }
  BlockMeta& meta = node(ref->node).run.meta(ref->offset);
  meta = BlockMeta{};
  meta.SetPool(grid_.PoolOf(parts[0].rect));
  meta.last_use = now;
  meta.recompute_seconds = recompute_seconds;
  if (learns_) meta.group = StoredGroup(key, *ref, now);
  const size_t t = static_cast<size_t>(tier);
  for (const PartPlace& part : parts) {
    meta.bytes[t] += part.bytes[t];
    room_in_tier_[t] += HostRoom(part.bytes[t]);
  }
  if (parts.size() == 1) {
    meta.extent[t] = parts[0].extent[t];
  } else {
    KeepParts(meta, parts);
  }
  meta.tiers |= BlockMeta::Bit(tier);
  ++alive_;
  ++of_pool_[meta.pool()].blocks;
  AddBytes(meta);
  ++in_tier_[t];
  Node& n = node(ref->node);
  ++n.resident[t];
  n.tail[t] = std::max(n.tail[t], ref->offset + 1);
  BeginUse(t);
  RefreshAll(ref->node);
  return true;
}

void BlockIndex::AddToTier(BlockRef ref, TierKind tier, std::span<const Extent> extents) {
  Node& n = node(ref.node);
  BlockMeta& meta = n.run.meta(ref.offset);
  const size_t t = static_cast<size_t>(tier);
  if (meta.flags & BlockMeta::kManyParts) {
    auto& parts = many_parts_.at(meta.extent[0]);
    for (size_t i = 0; i < parts.size(); ++i) parts[i].Set(tier, extents[i]);
  } else {
    meta.extent[t] = extents[0].id;
  }
  TakeBytes(meta);
  meta.bytes[t] = 0;
  for (const Extent& extent : extents) {
    meta.bytes[t] += extent.length;
    room_in_tier_[t] += HostRoom(extent.length);
  }
  meta.tiers |= BlockMeta::Bit(tier);
  AddBytes(meta);
  ++in_tier_[t];
  ++n.resident[t];
  n.tail[t] = std::max(n.tail[t], ref.offset + 1);
  BeginUse(t);
  Refresh(ref.node, t);
  // A lease no longer keeps what a slower tier has now.
  if (n.leased != 0) ReconsiderAll(ref.node);
}

// A pin of a place is noted up to the root in a tier that holds nothing of the path. In tiers that
// hold nothing at all, which a node may not even have, this waits until it is needed.
void BlockIndex::BeginUse(size_t tier) {
  if (in_use_[tier]) return;
  in_use_[tier] = true;
  places_.ForEachPoint([&](const PinPoint& point) { Refresh(point.node, tier); });
}

bool BlockIndex::RemoveFromTier(BlockRef ref, TierKind tier, ReleaseList* released) {
  Node& n = node(ref.node);
  BlockMeta& meta = n.run.meta(ref.offset);
  const size_t t = static_cast<size_t>(tier);
  for (const PartPlace& part : PartsOf(ref)) {
    const TierExtent extent{tier, part.In(tier)};
    room_in_tier_[t] -= HostRoom(extent.extent.length);
    if (places_.count() > 0) {
      graves_.push_back({places_.next_sequence(), extent});
    } else {
      released->push_back(extent);
    }
  }
  TakeBytes(meta);
  meta.tiers &= static_cast<uint8_t>(~BlockMeta::Bit(tier));
  meta.dirty &= static_cast<uint8_t>(~BlockMeta::Bit(tier));
  meta.bytes[t] = 0;
  AddBytes(meta);
  if (tier == TierKind::kHost) {
    meta.flags &= static_cast<uint8_t>(~BlockMeta::kPrefetched);
  }
  --in_tier_[t];
  --n.resident[t];
  if (n.tail[t] == ref.offset + 1) {
    while (n.tail[t] > 0 && !n.run.meta(n.tail[t] - 1).in(tier)) --n.tail[t];
  }
  const bool gone = !meta.alive();
  if (gone) {
    --alive_;
    --of_pool_[meta.pool()].blocks;
    if (learns_) policy_->Left(n.run.key(ref.offset), UseOf(meta, t));
    ForgetParts(meta);
    meta.flags = 0;
  }
  Refresh(ref.node, t);
  // A lease may keep what is left of the block.
  if (n.leased != 0) ReconsiderAll(ref.node);
  if (gone) Trim(ref.node);
  return gone;
}

void BlockIndex::SetDirty(BlockRef ref, TierKind tier, bool dirty) {
  BlockMeta& meta = node(ref.node).run.meta(ref.offset);
  if (dirty) {
    meta.dirty |= BlockMeta::Bit(tier);
  } else {
    meta.dirty &= static_cast<uint8_t>(~BlockMeta::Bit(tier));
  }
  Reconsider(ref.node, static_cast<size_t>(tier));
}

void BlockIndex::Protect(BlockRef ref, uint32_t tick) {
  // Ranks in the heaps stay lower bounds.
  BlockMeta& meta = node(ref.node).run.meta(ref.offset);
  meta.last_use = std::max(meta.last_use, tick);
}

void BlockIndex::UseAgain(BlockRef ref, uint32_t now, uint32_t after) {
  const BlockMeta& meta = MetaAt(ref);
  if (uint64_t{meta.last_use} + after < now && !IsOver(meta, now)) Protect(ref, now);
}

void BlockIndex::MarkPrefetched(BlockRef ref) {
  node(ref.node).run.meta(ref.offset).flags |= BlockMeta::kPrefetched;
}

void BlockIndex::MarkAtStart(BlockRef ref) {
  node(ref.node).run.meta(ref.offset).flags |= BlockMeta::kAtStart;
}

void BlockIndex::Link(const BlockKey& key, const BlockKey& parent) {
  const auto ref = Find(key);
  if (!ref || ref->offset != 0 || node(ref->node).parent != kNoNode || key == parent) return;
  uint64_t steps = kLinkSteps;
  LinkRoot(ref->node, parent, &steps);
}

bool BlockIndex::MayLink(BlockRef ref, const BlockKey& parent) const {
  const uint32_t pool = PoolAt(ref);
  if (!grid_.IsChained(pool)) return false;
  if (grid_.pools() == 1) return true;
  const auto above = FindAlive(parent);
  return above && PoolAt(*above) == pool;
}

BlockIndex::Walk BlockIndex::Match(std::span<const BlockKey> keys, uint32_t now, bool touch,
                                   NextUse next, std::optional<uint32_t> pool) {
  Walk walk = WalkKeys(keys, now, pool);
  if (!touch) return walk;
  latest_ = std::max<uint64_t>(latest_, now);
  // The prompt says what follows what: roots whose parents nobody named find their place now.
  bool linked = false;
  uint64_t steps = kMatchLinkSteps;
  size_t at = 0;
  for (size_t s = 0; s + 1 < walk.path_runs.size(); ++s) {
    at += walk.path_runs[s].count;
    const auto ref = Find(keys[at]);
    if (!ref || ref->offset != 0 || node(ref->node).parent != kNoNode) continue;
    if (!MayLink(*ref, keys[at - 1])) continue;
    LinkRoot(ref->node, keys[at - 1], &steps);
    linked = true;
  }
  if (linked) walk = WalkKeys(keys, now, pool);
  walk.linked = linked;
  if (learns_) {
    MatchedRequest request{.keys = keys, .matched = walk.matched, .next = next, .now = now};
    if (walk.matched > 0) {
      const BlockMeta& last = MetaAt(walk.path_runs.back().deepest);
      request.last = UseOf(last, static_cast<size_t>(last.served_from()));
    }
    policy_->BeginRequest(request);
  }
  walk.prefetched = UsePaths(walk, now);
  return walk;
}

// A walk that goes down a path meets no block twice, so only one that jumps remembers its blocks.
class BlockIndex::Visited {
 public:
  bool jumped() const { return jumped_; }
  // From now on blocks are remembered one by one.
  void Jump() {
    jumped_ = true;
    for (const Span& span : spans_) {
      for (uint32_t i = 0; i < span.count; ++i) Add({span.first.node, span.first.offset + i});
    }
    spans_.clear();
  }
  // False: the block was here before. REQUIRES: jumped.
  bool Add(BlockRef ref) { return places_.insert((uint64_t{ref.node} << 32) | ref.offset).second; }
  // REQUIRES: not jumped.
  void Add(BlockRef first, uint32_t count) { spans_.push_back({first, count}); }

 private:
  struct Span {
    BlockRef first;
    uint32_t count;
  };

  bool jumped_ = false;
  absl::InlinedVector<Span, 16> spans_;
  absl::flat_hash_set<uint64_t> places_;
};

BlockIndex::Walk BlockIndex::WalkKeys(std::span<const BlockKey> keys, uint32_t now,
                                      std::optional<uint32_t> pool) {
  Walk walk;
  Visited visited;
  BlockRef last;
  while (walk.matched < keys.size() && !walk.repeated && !walk.over) {
    const auto ref = Find(keys[walk.matched]);
    if (!ref) break;
    const Node& n = node(ref->node);
    const bool follows = last.node != kNoNode && ref->offset == 0 && n.parent == last.node &&
                         last.offset + 1 == node(last.node).run.size();
    if (last.node != kNoNode && !follows && !visited.jumped()) visited.Jump();
    const bool remember = visited.jumped();
    const uint32_t limit = static_cast<uint32_t>(
        std::min<size_t>(n.run.size() - ref->offset, keys.size() - walk.matched));
    const BlockKey* const run_keys = n.run.keys() + ref->offset;
    const BlockKey* const wanted = keys.data() + walk.matched;
    uint32_t taken = 0;
    for (; taken < limit; ++taken) {
      if (std::memcmp(run_keys + taken, wanted + taken, sizeof(BlockKey)) != 0) break;
      const BlockMeta& meta = n.run.meta(ref->offset + taken);
      if (!meta.alive() || (pool && meta.pool() != *pool)) break;
      if (IsOver(meta, now)) {
        walk.over = true;
        break;
      }
      if (remember && !visited.Add({ref->node, ref->offset + taken})) {
        walk.repeated = true;
        break;
      }
      const TierKind tier = meta.served_from();
      if (walk.runs.empty() || walk.runs.back().tier != tier) walk.runs.push_back({tier, 0, 0});
      ++walk.runs.back().blocks;
      walk.runs.back().bytes += meta.bytes_in(tier);
    }
    if (taken == 0) break;
    if (!remember) visited.Add(*ref, taken);
    if (!follows) walk.path_runs.emplace_back();
    last = {ref->node, ref->offset + taken - 1};
    walk.path_runs.back().deepest = last;
    walk.path_runs.back().count += taken;
    walk.matched += taken;
  }
  for (const Run& run : walk.runs) walk.bytes += run.bytes;
  return walk;
}

void BlockIndex::Relocate(BlockRef ref, TierKind tier, std::span<const Extent> extents,
                          ReleaseList* released) {
  BlockMeta& meta = node(ref.node).run.meta(ref.offset);
  for (const PartPlace& part : PartsOf(ref)) released->push_back({tier, part.In(tier)});
  if (meta.flags & BlockMeta::kManyParts) {
    auto& parts = many_parts_.at(meta.extent[0]);
    for (size_t i = 0; i < parts.size(); ++i) parts[i].Set(tier, extents[i]);
  } else {
    meta.extent[tier] = extents[0].id;
  }
}

void BlockIndex::KeepParts(BlockMeta& meta, const PartPlaces& parts) {
  meta.flags |= BlockMeta::kManyParts;
  meta.extent[0] = next_many_parts_++;
  many_parts_.emplace(meta.extent[0], std::vector<PartPlace>(parts.begin(), parts.end()));
  many_parts_bytes_ += parts.size() * sizeof(PartPlace) + 16;
}

void BlockIndex::ForgetParts(const BlockMeta& meta) {
  if ((meta.flags & BlockMeta::kManyParts) == 0) return;
  const auto it = many_parts_.find(meta.extent[0]);
  many_parts_bytes_ -= it->second.size() * sizeof(PartPlace) + 16;
  many_parts_.erase(it);
  if (many_parts_.empty()) many_parts_.rehash(0);
}

void BlockIndex::Recount(NodeId id) {
  Node& n = node(id);
  for (size_t t = 0; t < kTierCount; ++t) n.resident[t] = n.tail[t] = 0;
  for (uint32_t i = 0; i < n.run.size(); ++i) {
    for (size_t t = 0; t < kTierCount; ++t) {
      if (!n.run.meta(i).in(static_cast<TierKind>(t))) continue;
      ++n.resident[t];
      n.tail[t] = i + 1;
    }
  }
}

void BlockIndex::RefreshAll(NodeId id) {
  for (size_t t = 0; t < kTierCount; ++t) Refresh(id, t);
  RefreshLeased(id);
}

// Corrects `leased` from this node upwards, as far as it changes.
void BlockIndex::RefreshLeased(NodeId id) {
  for (;;) {
    Node& n = node(id);
    ++steps_;
    const bool leased = n.has_lease != 0 || n.leased_children > 0;
    if (leased == (n.leased != 0)) return;
    n.leased = leased;
    if (n.parent == kNoNode) return;
    id = n.parent;
    if (leased) {
      ++node(id).leased_children;
    } else {
      --node(id).leased_children;
    }
    ReconsiderAll(id);
  }
}

void BlockIndex::ReconsiderAll(NodeId id) {
  for (size_t t = 0; t < kTierCount; ++t) {
    if (in_use_[t]) Reconsider(id, t);
  }
}

bool BlockIndex::InSlowerTier(const BlockMeta& meta, size_t tier) {
  for (const TierKind other : kTiersByRank) {
    if (Faster(static_cast<TierKind>(tier), other) && meta.in(other)) return true;
  }
  return false;
}

// Corrects `present` from this node upwards, as far as it changes.
void BlockIndex::Refresh(NodeId id, size_t tier) {
  while (in_use_[tier]) {
    Node& n = node(id);
    ++steps_;
    Reconsider(id, tier);
    const bool present = n.resident[tier] > 0 || n.present_children[tier] > 0 || n.max_place > 0;
    if (present == n.present_in(tier)) return;
    n.present ^= 1u << tier;
    if (n.parent == kNoNode) return;
    if (present) {
      ++node(n.parent).present_children[tier];
    } else {
      --node(n.parent).present_children[tier];
    }
    id = n.parent;
  }
}

// Puts the node into the heap of the tier where it belongs now, or takes it out.
void BlockIndex::Reconsider(NodeId id, size_t tier) {
  Node& n = node(id);
  const bool dirty =
      n.tail[tier] > 0 && n.run.meta(n.tail[tier] - 1).dirty_in(static_cast<TierKind>(tier));
  const bool candidate = n.resident[tier] > 0 && n.present_children[tier] == 0 &&
                         n.tail[tier] > n.max_place && !dirty &&
                         !IsHeldByLease(n, id, n.tail[tier] - 1, tier);
  const bool leased = candidate && IsLeased(n, id, n.tail[tier] - 1);
  const auto kind = static_cast<TierKind>(tier);
  const bool filed = n.heap_position[tier] != CandidateHeap::kNotInHeap;
  if (filed && (!candidate || leased != n.is_in_leased_heap(tier))) LeaveHeap(id, tier);
  if (!candidate) return;
  if (policy_ != nullptr && !leased) policy_->Enter(kind, id, TailUse(id, kind));
  const uint32_t bit = 1u << tier;
  n.in_leased_heap = leased ? n.in_leased_heap | bit : n.in_leased_heap & ~bit;
  const auto set_position = [this, tier](uint32_t i, uint32_t p) {
    node(i).heap_position[tier] = p;
  };
  if (n.heap_position[tier] == CandidateHeap::kNotInHeap) {
    HeapOf(n, tier).Push(id, TailRank(n, tier), set_position);
  } else {
    HeapOf(n, tier).Update(n.heap_position[tier], TailRank(n, tier), set_position);
  }
}

// The policy knows those that are not leased. REQUIRES: in a heap.
void BlockIndex::LeaveHeap(NodeId id, size_t tier) {
  const Node& n = node(id);
  if (policy_ != nullptr && !n.is_in_leased_heap(tier)) {
    policy_->Exit(static_cast<TierKind>(tier), id);
  }
  HeapOf(n, tier).Remove(n.heap_position[tier],
                         [this, tier](uint32_t i, uint32_t p) { node(i).heap_position[tier] = p; });
}

size_t BlockIndex::MemoryBytes() const {
  size_t total = sizeof(*this) + map_.MemoryBytes() + run_bytes_ + nodes_.MemoryBytes() +
                 graves_.capacity() * sizeof(Grave) + many_parts_bytes_ +
                 many_parts_.capacity() * (sizeof(std::vector<PartPlace>) + 9);
  for (const CandidateHeap& heap : heaps_) total += heap.MemoryBytes();
  for (const CandidateHeap& heap : leased_heaps_) total += heap.MemoryBytes();
  if (policy_ != nullptr) total += policy_->MemoryBytes();
  return total;
}

bool BlockIndex::CheckInvariants() const {
  uint64_t alive = 0, bytes = 0, blocks = 0;
  ByTier<uint64_t> in_tier, room_in_tier;
  absl::InlinedVector<PoolTotals, 1> of_pool(of_pool_.size());
  size_t run_bytes = 0;
  absl::flat_hash_map<NodeId, uint32_t> place_pins, lease_pins;  // Offset + 1 of the deepest.
  const auto note = [](absl::flat_hash_map<NodeId, uint32_t>& deepest, const PinPoint& point) {
    deepest[point.node] = std::max(deepest[point.node], point.offset + 1);
  };
  places_.ForEachPoint([&](const PinPoint& point) { note(place_pins, point); });
  leases_.ForEachPoint([&](const PinPoint& point) { note(lease_pins, point); });
  const auto deepest = [](const absl::flat_hash_map<NodeId, uint32_t>& pins, NodeId id) {
    const auto it = pins.find(id);
    return it == pins.end() ? 0 : it->second;
  };
  bool sound = true;
  nodes_.ForEach([&](NodeId id) {
    const Node& n = node(id);
    const uint32_t max_place = deepest(place_pins, id), max_lease = deepest(lease_pins, id);
    if (n.run.empty()) {
      sound &= max_place == 0 && max_lease == 0;
      return;
    }
    run_bytes += n.run.MemoryBytes();
    uint32_t resident[kTierCount] = {}, tail[kTierCount] = {}, children[kTierCount] = {};
    for (uint32_t i = 0; i < n.run.size(); ++i) {
      ++blocks;
      sound &= Find(n.run.key(i)) == BlockRef{id, i};
      if (n.run.meta(i).alive()) {
        ++alive;
        bytes += n.run.meta(i).served_bytes();
        PoolTotals& totals = of_pool[n.run.meta(i).pool()];
        ++totals.blocks;
        totals.bytes += n.run.meta(i).served_bytes();
      }
      for (size_t t = 0; t < kTierCount; ++t) {
        if (!n.run.meta(i).in(static_cast<TierKind>(t))) continue;
        ++resident[t];
        ++in_tier[t];
        for (const PartPlace& part : PartsOf({id, i})) room_in_tier[t] += HostRoom(part.bytes[t]);
        tail[t] = i + 1;
      }
    }
    uint32_t leased_children = 0;
    for (NodeId c = n.first_child; c != kNoNode; c = node(c).next_sibling) {
      sound &= node(c).parent == id && !node(c).run.empty();
      for (size_t t = 0; t < kTierCount; ++t) children[t] += node(c).present_in(t);
      leased_children += node(c).leased;
    }
    sound &= max_place == n.max_place && max_place <= n.run.size() && max_lease <= n.run.size();
    sound &= leased_children == n.leased_children && (max_lease > 0) == (n.has_lease != 0) &&
             (max_lease > 0 || leased_children > 0) == (n.leased != 0);
    const BlockMeta& last = n.run.meta(n.run.size() - 1);
    sound &=
        n.first_child != kNoNode || last.alive() || std::max(max_place, max_lease) >= n.run.size();
    for (size_t t = 0; t < kTierCount; ++t) {
      const bool present = in_use_[t] && (resident[t] > 0 || children[t] > 0 || max_place > 0);
      const bool dirty = tail[t] > 0 && n.run.meta(tail[t] - 1).dirty_in(static_cast<TierKind>(t));
      const bool held = tail[t] > 0 && (leased_children > 0 || tail[t] <= max_lease) &&
                        !InSlowerTier(n.run.meta(tail[t] - 1), t);
      const bool candidate =
          resident[t] > 0 && children[t] == 0 && tail[t] > max_place && !dirty && !held;
      sound &= resident[t] == n.resident[t] && tail[t] == n.tail[t] &&
               children[t] == n.present_children[t] && present == n.present_in(t) &&
               candidate == (n.heap_position[t] != CandidateHeap::kNotInHeap);
      const bool leased = tail[t] > 0 && (leased_children > 0 || tail[t] <= max_lease);
      sound &= !candidate || leased == n.is_in_leased_heap(t);
    }
  });
  sound &= of_pool == of_pool_;
  return sound && alive == alive_ && bytes == alive_bytes_ && blocks == map_.size() &&
         run_bytes == run_bytes_ && in_tier == in_tier_ && room_in_tier == room_in_tier_;
}

}  // namespace cairn::cache
