// The shape of the tree: nodes, splitting, linking, trimming. Counters are corrected by
// block_index.cc.

#include "services/cache/store/index/block_index.h"

namespace cairn::cache {

void BlockIndex::FreeNode(NodeId id) {
  Node& n = node(id);
  for (size_t t = 0; t < kTierCount; ++t) {
    if (n.heap_position[t] != CandidateHeap::kNotInHeap) LeaveHeap(id, t);
  }
  run_bytes_ -= n.run.MemoryBytes();
  nodes_.Free(id);
}

void BlockIndex::PushBlock(NodeId id, const BlockKey& key) {
  Node& n = node(id);
  run_bytes_ -= n.run.MemoryBytes();
  n.run.PushBack(key, BlockMeta{});
  run_bytes_ += n.run.MemoryBytes();
  map_.Insert(key, BlockRef{id, n.run.size() - 1});
}

BlockRef BlockIndex::NewRoot(const BlockKey& key) {
  const NodeId id = nodes_.Take();
  PushBlock(id, key);
  return {id, 0};
}

BlockRef BlockIndex::AppendAfter(BlockRef parent, const BlockKey& key) {
  if (parent.offset + 1 < node(parent.node).run.size()) Split(parent.node, parent.offset + 1);
  if (node(parent.node).first_child == kNoNode) {
    PushBlock(parent.node, key);
    return {parent.node, node(parent.node).run.size() - 1};
  }
  const BlockRef child = NewRoot(key);
  Attach(child.node, parent.node);
  return child;
}

// Moves blocks [begin, end of run) of `from` to the end of `to`, and their map entries.
void BlockIndex::TakeBlocks(NodeId to, NodeId from, uint32_t begin) {
  Node& source = node(from);
  Node& target = node(to);
  const uint32_t shift = target.run.size();
  for (uint32_t i = begin; i < source.run.size(); ++i) {
    map_.Move(source.run.key(i), {from, i}, {to, shift + i - begin});
  }
  run_bytes_ -= source.run.MemoryBytes() + target.run.MemoryBytes();
  target.run.TakeTail(source.run, begin);
  run_bytes_ += source.run.MemoryBytes() + target.run.MemoryBytes();
}

// Pins of `from` at `begin` or below it go to `to`, `shift` further.
void BlockIndex::MovePins(NodeId to, NodeId from, uint32_t begin, uint32_t shift) {
  if (node(from).max_place > begin) {
    places_.Move(to, from, begin, shift);
    node(from).max_place = places_.DeepestIn(from);
    node(to).max_place = places_.DeepestIn(to);
  }
  if (node(from).has_lease != 0) {
    leases_.Move(to, from, begin, shift);
    node(from).has_lease = leases_.DeepestIn(from) > 0;
    node(to).has_lease = leases_.DeepestIn(to) > 0;
  }
}

// Blocks [at, size) become a child that takes over the children.
void BlockIndex::Split(NodeId id, uint32_t at) {
  const NodeId lower = nodes_.Take();
  Node& upper_node = node(id);
  Node& lower_node = node(lower);
  lower_node.first_child = upper_node.first_child;
  upper_node.first_child = kNoNode;
  for (NodeId c = lower_node.first_child; c != kNoNode; c = node(c).next_sibling) {
    node(c).parent = lower;
  }
  for (size_t t = 0; t < kTierCount; ++t) {
    lower_node.present_children[t] = upper_node.present_children[t];
    upper_node.present_children[t] = 0;
  }
  lower_node.leased_children = upper_node.leased_children;
  upper_node.leased_children = 0;
  TakeBlocks(lower, id, at);
  MovePins(lower, id, at, 0);
  Recount(id);
  Recount(lower);
  RefreshAll(lower);
  Attach(lower, id);
}

// REQUIRES: exactly one child.
void BlockIndex::MergeOnlyChild(NodeId id) {
  const NodeId child = node(id).first_child;
  Detach(child);
  const uint32_t shift = node(id).run.size();
  TakeBlocks(id, child, 0);
  MovePins(id, child, 0, shift);
  Node& n = node(id);
  n.first_child = node(child).first_child;
  for (NodeId c = n.first_child; c != kNoNode; c = node(c).next_sibling) node(c).parent = id;
  for (size_t t = 0; t < kTierCount; ++t) {
    n.present_children[t] = node(child).present_children[t];
    n.resident[t] += node(child).resident[t];
    if (node(child).tail[t] > 0) n.tail[t] = shift + node(child).tail[t];
  }
  n.leased_children = node(child).leased_children;
  FreeNode(child);
  RefreshAll(id);
}

void BlockIndex::Attach(NodeId child, NodeId parent) {
  Node& c = node(child);
  Node& p = node(parent);
  c.parent = parent;
  c.prev_sibling = kNoNode;
  c.next_sibling = p.first_child;
  if (p.first_child != kNoNode) node(p.first_child).prev_sibling = child;
  p.first_child = child;
  for (size_t t = 0; t < kTierCount; ++t) {
    if (c.present_in(t)) ++p.present_children[t];
  }
  if (c.leased != 0) ++p.leased_children;
  RefreshAll(parent);
}

void BlockIndex::Detach(NodeId child) {
  Node& c = node(child);
  if (c.parent == kNoNode) return;
  Node& p = node(c.parent);
  (c.prev_sibling == kNoNode ? p.first_child : node(c.prev_sibling).next_sibling) = c.next_sibling;
  if (c.next_sibling != kNoNode) node(c.next_sibling).prev_sibling = c.prev_sibling;
  const NodeId parent = c.parent;
  c.parent = c.prev_sibling = c.next_sibling = kNoNode;
  for (size_t t = 0; t < kTierCount; ++t) {
    if (c.present_in(t)) --p.present_children[t];
  }
  if (c.leased != 0) --p.leased_children;
  RefreshAll(parent);
}

void BlockIndex::LinkRoot(NodeId root, const BlockKey& parent, uint64_t* steps) {
  auto place = Find(parent);
  if (!place) place = NewRoot(parent);
  // The parent may be a descendant: keys that contradict each other. A root without children has
  // none but its own blocks.
  if (place->node == root) return;
  if (node(root).first_child != kNoNode) {
    for (NodeId up = node(place->node).parent; up != kNoNode; up = node(up).parent) {
      if (up == root || *steps == 0) return;
      --*steps;
      ++steps_;
    }
  }
  if (place->offset + 1 < node(place->node).run.size()) Split(place->node, place->offset + 1);
  Attach(root, place->node);
  // Only a short run is copied to the end of a longer one: then no block moves more than log(n)
  // times.
  const Node& p = node(place->node);
  if (p.first_child == root && node(root).next_sibling == kNoNode &&
      node(root).run.size() <= p.run.size()) {
    MergeOnlyChild(place->node);
  }
}

// Removes dead ends: tombstones without descendants and pins of either kind, from here upwards.
void BlockIndex::Trim(NodeId id) {
  while (id != kNoNode) {
    Node& n = node(id);
    if (n.first_child != kNoNode) return;
    run_bytes_ -= n.run.MemoryBytes();
    const uint32_t pinned = DeepestPin(id);
    while (!n.run.empty()) {
      const uint32_t last = n.run.size() - 1;
      if (n.run.meta(last).alive() || pinned > last) break;
      map_.Erase(n.run.key(last), {id, last});
      n.run.PopBack();
    }
    run_bytes_ += n.run.MemoryBytes();
    if (!n.run.empty()) return;
    const NodeId parent = n.parent;
    Detach(id);
    FreeNode(id);
    id = parent;
  }
}

void BlockIndex::Compact() {
  std::vector<NodeId> tops;
  nodes_.ForEach([&](NodeId id) {
    if (node(id).run.empty()) return;
    // From the top of each chain only, so that every block moves once.
    const NodeId parent = node(id).parent;
    if (parent != kNoNode && node(parent).first_child == id && node(id).next_sibling == kNoNode) {
      return;
    }
    tops.push_back(id);
  });
  for (const NodeId id : tops) {
    while (node(id).first_child != kNoNode && node(node(id).first_child).next_sibling == kNoNode) {
      MergeOnlyChild(id);
    }
  }
}

BlockIndex::Reclaimed BlockIndex::Reclaim(size_t blocks, ReleaseList* released) {
  DrainGraves(released);
  if (reclaim_ == nullptr) {
    reclaim_ = std::make_unique<ReclaimPass>();
    AddPathsOf(places_, &reclaim_->kept);
    AddPathsOf(leases_, &reclaim_->kept);
  }
  ReclaimPass& pass = *reclaim_;
  if (pass.done) return Reclaimed::kPinned;
  // Evicting a block may free its node.
  const auto length = [this](NodeId id) { return nodes_.InMemory(id) ? node(id).run.size() : 0; };
  while (pass.node < nodes_.end()) {
    uint32_t keep = pass.kept.Of(pass.node);
    // From the end of the run: what follows a block leaves before it, and dead ends are trimmed.
    pass.end = std::min(pass.end, length(pass.node));
    // A node may have taken in its only child, with the pins of it.
    if (pass.end > 0) keep = std::max(keep, DeepestPin(pass.node));
    while (pass.end > keep) {
      if (blocks-- == 0) return Reclaimed::kSome;
      const BlockRef ref{pass.node, --pass.end};
      for (const TierKind tier : kTiersByRank) {
        if (ref.offset < length(ref.node) && MetaAt(ref).in(tier)) {
          EvictBlock(ref, tier, released);
        }
      }
      pass.end = std::min(pass.end, length(ref.node));
    }
    ++pass.node;
    pass.end = UINT32_MAX;
  }
  if (!HasPins()) {
    reclaim_.reset();
    return alive_ == 0 && graves_.empty() ? Reclaimed::kAll : Reclaimed::kSome;
  }
  map_.ShrinkToFit();
  if (pass.stale) {
    reclaim_.reset();
    return Reclaimed::kSome;
  }
  pass.done = true;
  pass.kept = {};
  return Reclaimed::kPinned;
}

}  // namespace cairn::cache
