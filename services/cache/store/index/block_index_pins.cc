// Pins of blocks and of their places, the paths that they reach, and extents that wait for them.
#include <algorithm>

#include "services/cache/store/index/block_index.h"

namespace cairn::cache {

PinId BlockIndex::PinBlock(BlockRef ref, PinKind kind) {
  reclaim_.reset();
  Node& n = node(ref.node);
  if (kind == PinKind::kLease) {
    const bool deeper = n.has_lease == 0 || leases_.DeepestIn(ref.node) <= ref.offset;
    const PinId pin = leases_.Add(ref);
    n.has_lease = 1;
    if (deeper) {
      ReconsiderAll(ref.node);
      RefreshLeased(ref.node);
    }
    return pin;
  }
  const PinId pin = places_.Add(ref);
  if (n.max_place <= ref.offset) {
    n.max_place = ref.offset + 1;
    RefreshAll(ref.node);
  }
  return pin;
}

void BlockIndex::Unpin(PinId pin, ReleaseList* released) {
  const BlockRef ref = PinTable::RefOf(pin);
  const bool lease = PinTable::KindOf(pin) == PinKind::kLease;
  PinTable& pins = lease ? leases_ : places_;
  Node& n = node(ref.node);
  const uint32_t before = lease ? pins.DeepestIn(ref.node) : n.max_place;
  pins.Remove(pin);
  if (ref.offset + 1 == before) {
    const uint32_t deepest = pins.DeepestIn(ref.node);
    if (lease) {
      n.has_lease = deepest > 0;
    } else {
      n.max_place = deepest;
    }
    if (deepest != before) {
      RefreshAll(ref.node);
      if (!n.run.meta(n.run.size() - 1).alive()) Trim(ref.node);
    }
  }
  DrainGraves(released);
  if (reclaim_ == nullptr) return;
  reclaim_->stale = true;
  if (reclaim_->done) reclaim_.reset();
}

bool BlockIndex::PathTo(PinId pin, uint32_t count, uint32_t begin, uint32_t end,
                        std::vector<BlockRef>* path) const {
  if (begin == end) return true;
  BlockRef at = PinnedBlock(pin);
  const auto step_over_run = [&] {
    at.node = node(at.node).parent;
    if (at.node == kNoNode) return false;
    at.offset = node(at.node).run.size() - 1;
    return true;
  };
  for (uint32_t skip = count - end; skip > 0;) {
    if (skip <= at.offset) {
      at.offset -= skip;
      break;
    }
    skip -= at.offset + 1;
    if (!step_over_run()) return false;
  }
  const size_t first = path->size();
  for (uint32_t left = end - begin; left > 0;) {
    path->push_back(at);
    if (--left == 0) break;
    if (at.offset > 0) {
      --at.offset;
    } else if (!step_over_run()) {
      return false;
    }
  }
  std::reverse(path->begin() + static_cast<ptrdiff_t>(first), path->end());
  return true;
}

BlockIndex::PinnedPaths BlockIndex::FindPinnedPaths() const {
  PinnedPaths paths;
  AddPathsOf(places_, &paths);
  return paths;
}

void BlockIndex::AddPathsOf(const PinTable& pins, PinnedPaths* paths) const {
  pins.ForEachPoint([&](const PinPoint& point) {
    BlockRef at{point.node, point.offset};
    while (at.node != kNoNode) {
      const auto [it, first] = paths->blocks_.try_emplace(at.node, at.offset + 1);
      if (!first) {
        // The nodes above were reached by the pin before.
        it->second = std::max(it->second, at.offset + 1);
        break;
      }
      at.node = node(at.node).parent;
      if (at.node != kNoNode) at.offset = node(at.node).run.size() - 1;
    }
  });
}

bool BlockIndex::IsPinned(BlockRef ref) const {
  const Node& n = node(ref.node);
  if (n.max_place > ref.offset) return true;
  // A pin below makes a child present in every tier that is in use, with blocks there or without.
  for (size_t t = 0; t < kTierCount; ++t) {
    if (in_use_[t] && n.present_children[t] == 0) return false;
  }
  bool pinned = false;
  places_.ForEachPoint([&](const PinPoint& point) {
    NodeId at = point.node;
    while (!pinned && at != ref.node && node(at).parent != kNoNode) at = node(at).parent;
    pinned |= at == ref.node && at != point.node;
  });
  return pinned;
}

void BlockIndex::DrainGraves(ReleaseList* released) {
  const uint64_t oldest = places_.OldestSequence();
  while (drained_ < graves_.size() && graves_[drained_].sequence <= oldest) {
    released->push_back(graves_[drained_++].extent);
  }
  if (drained_ == graves_.size()) {
    graves_ = {};
    drained_ = 0;
  } else if (drained_ > graves_.size() / 2) {
    graves_.erase(graves_.begin(), graves_.begin() + static_cast<ptrdiff_t>(drained_));
    drained_ = 0;
  }
}

}  // namespace cairn::cache
