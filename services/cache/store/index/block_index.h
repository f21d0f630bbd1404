#pragma once
// The index of one namespace: a path-compressed radix tree over block keys.
//
// A tree node is a run of blocks without branches. Its children hang at the end of the run. A key
// map leads from any key to (node, offset). A prompt is one walk: one look-up per tree node, and
// then a comparison of neighbouring keys.
//
// clang-format off
//   [A0 A1 A2 A3]──┬──[B4 B5]
//                  └──[C4 C5 C6]
// clang-format on
//
// Only complete blocks are alive. A *tombstone* is a key without bytes: the unknown parent of a
// known block, or a block that was lost above living descendants. It matches nothing, keeps the
// path, and comes to life when the block is stored again. So blocks may be inserted in any order.
//
// Per tier, the deepest blocks of each path are candidates for eviction: a node is in the tier's
// heap when it holds a block there, none of its descendants does, and nothing keeps its last block
// there. So a block never leaves before its descendants. There are two kinds of pin (pin_table.h).
// A place that was told to somebody is kept in every tier. A lease keeps a block only in the
// slowest tier that has it, so leases on blocks that are on disk take no room in host. Their copies
// in faster tiers have a heap of their own: a copy that can do without a place does not take
// theirs.
//
// Blocks may have a life: those that were not used for longer are *over*. They match nothing, and
// go before all others. No pass removes them: each reader compares the last use of a block with
// `now`.
//
// Thread-compatible: the owner locks. Nothing here does I/O. The index returns lists of the extents
// that the owner must give back to the tiers.

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "cairn/common/clock.h"
#include "cairn/common/namespace_spec.h"
#include "cairn/common/part.h"
#include "services/cache/store/block/pool_grid.h"
#include "services/cache/store/index/block_run.h"
#include "services/cache/store/index/key_map.h"
#include "services/cache/store/index/node_pool.h"
#include "services/cache/store/index/pin_table.h"
#include "services/cache/store/placement/candidate_heap.h"
#include "services/cache/store/placement/eviction_policy.h"
#include "services/cache/store/tier/tier.h"

namespace cairn::cache {

// Coarse time of the index, 16.8 ms per tick. The range is 2.2 years.
inline constexpr int kTickShift = 24;
inline uint32_t UseTicks(Duration since_start) {
  return static_cast<uint32_t>(since_start.count() >> kTickShift);
}
// The time from a use at `then` until `now`. A use may lie in the future: a hint protects a block.
inline Duration TimeSinceUse(uint32_t then, uint32_t now) {
  return Duration(int64_t{now - std::min(now, then)} << kTickShift);
}

// Where a part lies, by tier. Valid for the tiers that hold the block.
struct PartPlace {
  format::PartRect rect;
  ByTier<uint32_t> bytes = {};
  ByTier<uint64_t> extent = {};  // Ids.

  Extent In(TierKind tier) const { return {extent[tier], bytes[tier]}; }
  void Set(TierKind tier, const Extent& at) {
    extent[tier] = at.id;
    bytes[tier] = at.length;
  }
};
using PartPlaces = absl::InlinedVector<PartPlace, 1>;

struct TierExtent {
  TierKind tier;
  Extent extent;
};
using ReleaseList = std::vector<TierExtent>;

struct PoolTotals {
  uint64_t blocks = 0;
  uint64_t bytes = 0;
  bool operator==(const PoolTotals&) const = default;
};

class BlockIndex {
 public:
  // Consecutive blocks of one path, named by the last.
  struct PathRun {
    BlockRef deepest;
    uint32_t count = 0;
  };
  struct Run {
    TierKind tier;
    uint32_t blocks = 0;
    uint64_t bytes = 0;
  };
  struct Walk {
    uint32_t matched = 0;
    // The walk ended at a key that it had matched before.
    bool repeated = false;
    // The walk ended at a block that is over.
    bool over = false;
    // The match has linked roots: places in the tree from before it are no longer valid.
    bool linked = false;
    uint64_t bytes = 0;
    // Blocks that a hint brought and that were matched for the first time.
    uint32_t prefetched = 0;
    std::vector<Run> runs;
    absl::InlinedVector<PathRun, 2> path_runs;
  };
  struct Evicted {
    BlockKey key;
    uint32_t pool = 0;
    uint64_t bytes = 0;
    uint32_t last_use = 0;  // UseTicks.
    bool gone = false;      // Left its last tier.
    bool over = false;      // Its life was.
    bool demoted = false;   // A slower tier still has it.
    // A hint brought it, and it left the host tier without being used.
    bool unused_prefetch = false;
  };

  // `grid`: what makes a block of each pool complete. `policy`: which candidate goes first;
  // nullptr: the one that was not used for the longest time. `seed`: a secret for the key map.
  BlockIndex(const PoolGrid& grid, std::unique_ptr<EvictionPolicy> policy, uint64_t seed);

  // A block is over this many ticks after its last use. 0: none ever is. Takes effect at once.
  void SetLife(uint32_t ticks) { life_ = ticks; }
  bool IsOver(BlockRef ref, uint32_t now) const { return IsOver(MetaAt(ref), now); }

  // The block's place, tombstones included.
  std::optional<BlockRef> Find(const BlockKey& key) const;
  // The same for a living block.
  std::optional<BlockRef> FindAlive(const BlockKey& key) const;
  // The same for a living block that is not over at `now`.
  std::optional<BlockRef> FindServed(const BlockKey& key, uint32_t now) const {
    auto ref = FindAlive(key);
    if (ref && IsOver(*ref, now)) ref.reset();
    return ref;
  }
  // Returns, for each key, the fastest tier that holds the living block, unless it is over at
  // `now`. Keys that follow each other on a path cost one comparison each.
  void FindAll(std::span<const BlockKey> keys, std::span<std::optional<TierKind>> found,
               uint32_t now = 0) const;
  const BlockKey& KeyAt(BlockRef ref) const { return node(ref.node).run.key(ref.offset); }
  const BlockMeta& MetaAt(BlockRef ref) const { return node(ref.node).run.meta(ref.offset); }
  std::optional<BlockKey> ParentOf(BlockRef ref) const;
  PartPlaces PartsOf(BlockRef ref) const;
  // True when the block is in the tier with exactly these extents, so it was not lost and stored
  // again after the caller asked for `parts`.
  bool LiesAt(BlockRef ref, TierKind tier, const PartPlaces& parts) const;

  // Adds a complete block in one tier: `parts` make a block of their pool whole and lie there.
  // False: the block is already alive. Then nothing changes, except that the index learns a parent
  // that it did not know.
  bool Insert(const BlockKey& key, const std::optional<BlockKey>& parent, const PartPlaces& parts,
              TierKind tier, float recompute_seconds, uint32_t now);
  // Makes the root `key` follow `parent`. No effect if `key` is not a root, if this would close a
  // circle, or if it takes more than some thousand steps to tell.
  void Link(const BlockKey& key, const BlockKey& parent);

  // Finds the longest living prefix of `keys`, which may start in the middle of a path. It ends
  // before a block that is over, and before a key that was matched already: no chain of hashes has
  // a key twice. `touch`: the match counts as a use, and neighbours in `keys` that were unrelated
  // roots are linked, unless blocks of their pool stand alone. `next`: the client's expectation for
  // the conversation. `pool`: blocks of others do not match.
  Walk Match(std::span<const BlockKey> keys, uint32_t now, bool touch,
             NextUse next = NextUse::kUnknown, std::optional<uint32_t> pool = std::nullopt);

  PinId PinBlock(BlockRef ref, PinKind kind = PinKind::kPlace);
  // Appends extents that were waiting for this pin.
  void Unpin(PinId pin, ReleaseList* released);
  BlockRef PinnedBlock(PinId pin) const { return PinTable::RefOf(pin); }
  // Appends blocks [begin, end) of the `count` blocks of the path that ends at the pin, first to
  // last. Takes time for those, and for each run of blocks behind them. False: the path has fewer.
  bool PathTo(PinId pin, uint32_t count, uint32_t begin, uint32_t end,
              std::vector<BlockRef>* path) const;
  bool HasPins() const { return places_.count() > 0 || leases_.count() > 0; }

  // Adds a copy in another tier. `extents` are in the order of PartsOf. REQUIRES: alive, not in
  // this tier.
  void AddToTier(BlockRef ref, TierKind tier, std::span<const Extent> extents);
  // Takes the block out of a tier. Its extents are appended when no pin of a place that exists now
  // can see them. True when it left its last tier. REQUIRES: in this tier. Places change.
  bool RemoveFromTier(BlockRef ref, TierKind tier, ReleaseList* released);
  // The block lies in other extents of the tier now, in the order of PartsOf and of the same
  // lengths. The old ones are appended. REQUIRES: in this tier, no pin of a place.
  void Relocate(BlockRef ref, TierKind tier, std::span<const Extent> extents,
                ReleaseList* released);
  // Blocks after it on its path are in the tier, or pinned in their places.
  bool HasMoreBelow(BlockRef ref, TierKind tier) const {
    const Node& n = node(ref.node);
    const auto t = static_cast<size_t>(tier);
    return n.tail[t] > ref.offset + 1 || n.present_children[t] > 0;
  }
  // Says whether the copy in this tier waits to be copied to another one. Until then it is not
  // evicted.
  void SetDirty(BlockRef ref, TierKind tier, bool dirty);
  // The block counts as used at `tick`, which may lie in the future. It is then evicted accordingly
  // later.
  void Protect(BlockRef ref, uint32_t tick);
  // The block counts as used at `now`, if it is not over and was not used in the last `after`
  // ticks. For those who use what they matched long ago.
  void UseAgain(BlockRef ref, uint32_t now, uint32_t after);
  void MarkPrefetched(BlockRef ref);
  // The block's first token is the first of its sequence.
  void MarkAtStart(BlockRef ref);

  // The rank of the block that the tier would lose next under LRU: UseTicks of its last use (a
  // lower bound), UINT64_MAX when there is no candidate. It says which namespace gives a block,
  // whatever the policy.
  //
  // When the policy lets another candidate go, the one that LRU would have taken gets the time of
  // the one that went. So the times of a namespace are those that it would have under LRU, and its
  // policy can keep blocks, but not more of them.
  uint64_t NextRank(TierKind tier) const;
  // The same of blocks that are not leased.
  uint64_t NextUnleasedRank(TierKind tier) const;
  // Evicts the candidate that the policy names. nullopt: all blocks are kept, dirty or gone, or
  // NextRank is not less than `below`. A block that was used at `below` or later never goes, and
  // one that was used in the last half second or is protected only if LRU takes it, too. Where
  // blocks have a life, the policy is not asked: LRU order is the order in which they are over.
  // `now`: to tell what is over. `leased`: a copy of a leased block may go if no other can.
  std::optional<Evicted> EvictOne(TierKind tier, ReleaseList* released, uint64_t below = UINT64_MAX,
                                  uint32_t now = 0, bool leased = true);
  // The numbers that the policy has learned; nullopt: it does not learn.
  std::optional<LearnedPlacement> Learned() const {
    return policy_ == nullptr ? std::nullopt : policy_->Learned();
  }

  // The blocks that pins of places reach, as they are now: the beginnings of tree nodes.
  class PinnedPaths {
   public:
    // The number of such blocks at the beginning of the node.
    uint32_t Of(NodeId id) const {
      const auto it = blocks_.find(id);
      return it == blocks_.end() ? 0 : it->second;
    }
    bool Covers(BlockRef ref) const { return Of(ref.node) > ref.offset; }

   private:
    friend class BlockIndex;
    // The number of blocks at the beginning of each node.
    absl::flat_hash_map<NodeId, uint32_t> blocks_;
  };
  // O(pins + nodes that they reach).
  PinnedPaths FindPinnedPaths() const;
  // A pin of a place lies on the block or below it. Takes one step where some tier holds no block
  // below it, and else at most (blocks with pins) x (depth of each).
  bool IsPinned(BlockRef ref) const;
  // A lease lies on the block or below it.
  bool IsLeased(BlockRef ref) const { return IsLeased(node(ref.node), ref.node, ref.offset); }
  // A lease keeps the block in this tier: no slower one has it. REQUIRES: in this tier.
  bool IsHeldByLease(BlockRef ref, TierKind tier) const {
    return IsHeldByLease(node(ref.node), ref.node, ref.offset, static_cast<size_t>(tier));
  }
  // The block may not leave the tier. REQUIRES: in this tier.
  bool IsKept(BlockRef ref, TierKind tier) const {
    return IsHeldByLease(ref, tier) || IsPinned(ref);
  }
  // Evicts this block, wherever it lies in its path. REQUIRES: in this tier, not kept there.
  Evicted EvictBlock(BlockRef ref, TierKind tier, ReleaseList* released, uint32_t now = 0);

  // Joins runs of only children into one node again. For recovery, which inserts in any order.
  void Compact();
  // For an index that takes nothing in any more. Frees up to `blocks` blocks that no pin of either
  // kind reaches, and appends their extents.
  enum class Reclaimed {
    kSome,    // There is more: call it again.
    kPinned,  // All the rest is pinned. Until a pin goes, a call costs nothing.
    kAll,     // The index is empty.
  };
  Reclaimed Reclaim(size_t blocks, ReleaseList* released);

  uint64_t blocks() const { return alive_; }
  // Each block once, as it is served.
  uint64_t bytes() const { return alive_bytes_; }
  uint64_t blocks_in(TierKind tier) const { return in_tier_[tier]; }
  // The room that they take, in whole pages.
  uint64_t room_in(TierKind tier) const { return room_in_tier_[tier]; }
  // The blocks and bytes of each pool; of one, all.
  std::span<const PoolTotals> of_pools() const { return of_pool_; }
  uint32_t PoolAt(BlockRef ref) const { return MetaAt(ref).pool(); }
  // The rectangle of all parts of the block.
  const format::PartRect& WholeAt(BlockRef ref) const { return grid_.WholeOf(PoolAt(ref)); }
  size_t nodes() const { return nodes_.used(); }
  // Nodes that were stepped over in order to link, and in order to know who is pinned, since the
  // start. For tests that bound the work.
  uint64_t steps() const { return steps_; }
  // All memory of the index, measured on the real structures. Pins are their owners' (kPinBytes).
  size_t MemoryBytes() const;
  // Calls `visit(ref)` for each living block. The index must not change meanwhile.
  template <typename Visitor>
  void ForEach(Visitor&& visit) const {
    nodes_.ForEach([&](NodeId id) {
      const BlockRun& run = node(id).run;
      for (uint32_t i = 0; i < run.size(); ++i) {
        if (run.meta(i).alive()) visit(BlockRef{id, i});
      }
    });
  }
  // The same in portions, for blocks of any kind. Each block is in one of `ranges` ranges (a power
  // of two), which depends on its key and does not change. The index may change between two calls.
  template <typename Visitor>
  void ForEachInRange(size_t range, size_t ranges, Visitor&& visit) const {
    map_.ForEachInRange(range, ranges, visit);
  }
  // Recomputes every counter from scratch; false on any difference. For tests.
  bool CheckInvariants() const;

 private:
  struct Node {
    BlockRun run;
    NodeId parent = kNoNode;
    NodeId first_child = kNoNode;
    NodeId next_sibling = kNoNode;
    NodeId prev_sibling = kNoNode;
    uint32_t resident[kTierCount] = {};          // Blocks of the run in the tier.
    uint32_t tail[kTierCount] = {};              // Offset + 1 of the last of them; 0: none.
    uint32_t present_children[kTierCount] = {};  // Children that are `present`.
    ByTier<uint32_t> heap_position = {
        {CandidateHeap::kNotInHeap, CandidateHeap::kNotInHeap, CandidateHeap::kNotInHeap}};
    uint32_t max_place = 0;  // Offset + 1 of the deepest pin of a place; 0: none.
    // Children that are `leased`.
    uint32_t leased_children : 24 = 0;
    uint32_t has_lease : 1 = 0;  // Some block of the run has one.
    uint32_t leased : 1 = 0;     // The node or a descendant has one. As the parent knows it.
    // A bit for each tier: the node or a descendant holds a block, or a pin of a place. Not set in
    // tiers that are not in use.
    uint32_t present : kTierCount = 0;
    uint32_t in_leased_heap : kTierCount = 0;  // A bit for each tier: heap_position is of that one.

    bool is_in_leased_heap(size_t tier) const { return ((in_leased_heap >> tier) & 1u) != 0; }
    bool present_in(size_t tier) const { return ((present >> tier) & 1u) != 0; }
  };
  static_assert(sizeof(Node) == 88);  // There is one for each run of blocks: an index has millions.
  struct Grave {
    uint64_t sequence;  // Pins before this one may still read the bytes.
    TierExtent extent;
  };
  // Places that a walk went through, for walks that jump from path to path.
  class Visited;
  // One walk of Reclaim over all nodes.
  struct ReclaimPass {
    // Done are the nodes before this one, and of this one the blocks from `end` on.
    NodeId node = 0;
    uint32_t end = UINT32_MAX;
    PinnedPaths kept;    // As it was at the beginning.
    bool stale = false;  // A pin went since.
    bool done = false;
  };

  Node& node(NodeId id) { return nodes_[id]; }
  const Node& node(NodeId id) const { return nodes_[id]; }

  // Shape (block_index_shape.cc).
  void FreeNode(NodeId id);
  BlockRef NewRoot(const BlockKey& key);
  BlockRef AppendAfter(BlockRef parent, const BlockKey& key);
  void PushBlock(NodeId id, const BlockKey& key);
  void Split(NodeId id, uint32_t at);
  void MergeOnlyChild(NodeId id);
  void Attach(NodeId child, NodeId parent);
  void Detach(NodeId child);
  // Takes at most `steps` steps, and takes them off it.
  void LinkRoot(NodeId root, const BlockKey& parent, uint64_t* steps);
  void Trim(NodeId id);
  void TakeBlocks(NodeId to, NodeId from, uint32_t begin);
  void MovePins(NodeId to, NodeId from, uint32_t begin, uint32_t shift);

  bool IsOver(const BlockMeta& meta, uint32_t now) const {
    return life_ != 0 && uint64_t{meta.last_use} + life_ < now;
  }

  // The policy's input and answers (block_index_policy.cc).
  static BlockUse UseOf(const BlockMeta& meta, size_t tier) {
    return {meta.last_use, meta.uses, meta.group, meta.bytes[tier], meta.recompute_seconds};
  }
  uint64_t TailRank(const Node& n, size_t tier) const {
    return n.run.meta(n.tail[tier] - 1).last_use;
  }
  BlockUse TailUse(NodeId id, TierKind tier) const;
  bool RefreshOldest(TierKind tier, CandidateHeap* heap);
  NodeId ChooseVictim(TierKind tier, uint64_t below);
  uint64_t HandedOn(NodeId victim, TierKind tier) const;
  uint32_t UsePaths(const Walk& walk, uint32_t now);
  uint8_t StoredGroup(const BlockKey& key, BlockRef ref, uint32_t now) const;

  bool IsLeased(const Node& n, NodeId id, uint32_t offset) const {
    return n.leased_children > 0 || (n.has_lease != 0 && leases_.DeepestIn(id) > offset);
  }
  bool IsHeldByLease(const Node& n, NodeId id, uint32_t offset, size_t tier) const {
    return !InSlowerTier(n.run.meta(offset), tier) && IsLeased(n, id, offset);
  }
  static bool InSlowerTier(const BlockMeta& meta, size_t tier);
  // Offset + 1 of the deepest pin of any kind; 0: none.
  uint32_t DeepestPin(NodeId id) const {
    const Node& n = node(id);
    return n.has_lease != 0 ? std::max(n.max_place, leases_.DeepestIn(id)) : n.max_place;
  }

  // Pins (block_index_pins.cc).
  void AddPathsOf(const PinTable& pins, PinnedPaths* paths) const;
  void DrainGraves(ReleaseList* released);

  // Bookkeeping (block_index.cc).
  void Recount(NodeId id);
  void KeepParts(BlockMeta& meta, const PartPlaces& parts);
  void ForgetParts(const BlockMeta& meta);
  void BeginUse(size_t tier);
  void Refresh(NodeId id, size_t tier);
  CandidateHeap& HeapOf(const Node& n, size_t tier) {
    return n.is_in_leased_heap(tier) ? leased_heaps_[tier] : heaps_[tier];
  }
  void LeaveHeap(NodeId id, size_t tier);
  void Reconsider(NodeId id, size_t tier);
  void ReconsiderAll(NodeId id);
  void RefreshLeased(NodeId id);
  void RefreshAll(NodeId id);
  Walk WalkKeys(std::span<const BlockKey> keys, uint32_t now, std::optional<uint32_t> pool);

  // Adds a living block to the bytes, or takes it off them.
  void AddBytes(const BlockMeta& meta) {
    alive_bytes_ += meta.served_bytes();
    of_pool_[meta.pool()].bytes += meta.served_bytes();
  }
  void TakeBytes(const BlockMeta& meta) {
    alive_bytes_ -= meta.served_bytes();
    of_pool_[meta.pool()].bytes -= meta.served_bytes();
  }
  // Whether a block that was matched may follow the block before it: in their pool, blocks do.
  bool MayLink(BlockRef ref, const BlockKey& parent) const;

  const PoolGrid grid_;
  const std::unique_ptr<EvictionPolicy> policy_;
  const bool learns_;
  uint64_t latest_ = 0;  // UseTicks of the latest use or store.
  uint32_t life_ = 0;    // Ticks after the last use. 0: forever.
  KeyMap map_;
  NodePool<Node> nodes_;
  PinTable places_{PinKind::kPlace};
  PinTable leases_{PinKind::kLease};
  CandidateHeap heaps_[kTierCount];         // By last use; of blocks that are not leased.
  CandidateHeap leased_heaps_[kTierCount];  // Candidates among the leased ones.
  bool in_use_[kTierCount] = {};            // Tiers that held a block once.
  absl::flat_hash_map<uint64_t, std::vector<PartPlace>> many_parts_;
  uint64_t next_many_parts_ = 1;
  size_t many_parts_bytes_ = 0;
  std::vector<Grave> graves_;  // In the order of their sequences.
  size_t drained_ = 0;         // The number of first ones that are done with.
  std::unique_ptr<ReclaimPass> reclaim_;
  uint64_t steps_ = 0;
  size_t run_bytes_ = 0;
  uint64_t alive_ = 0;
  uint64_t alive_bytes_ = 0;
  absl::InlinedVector<PoolTotals, 1> of_pool_;
  ByTier<uint64_t> in_tier_;
  ByTier<uint64_t> room_in_tier_;
};

}  // namespace cairn::cache
