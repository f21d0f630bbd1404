#pragma once
// The part grid of a namespace: which rectangle of parts makes a block complete. Without pools
// there is one; with pools, each has the row and the columns of its own
// (docs/inside/formats/pools.md). Immutable; thread-safe.

#include <cstdint>
#include <span>

#include "absl/container/inlined_vector.h"
#include "cairn/common/namespace_spec.h"
#include "cairn/common/part.h"

namespace cairn::cache {

class PoolGrid {
 public:
  explicit PoolGrid(const Layout& layout) {
    for (uint32_t p = 0; p < layout.PoolCount(); ++p) {
      wholes_.push_back(layout.WholeOf(p));
      const bool chained = layout.Pools().empty() || layout.Pools()[p].chained;
      chained_ |= (chained ? 1u : 0u) << p;
    }
  }
  // One pool, whose blocks follow each other.
  // NOLINTNEXTLINE(google-explicit-constructor): a rectangle is a grid of one pool.
  PoolGrid(const format::PartRect& whole) : wholes_{whole}, chained_(1) {}

  uint32_t pools() const { return static_cast<uint32_t>(wholes_.size()); }
  // The number of the pool that a part belongs to. REQUIRES: Contains(part).
  uint32_t PoolOf(const format::PartRect& part) const {
    return wholes_.size() == 1 ? 0 : part.layer_begin;
  }
  const format::PartRect& WholeOf(uint32_t pool) const { return wholes_[pool]; }
  const format::PartRect& WholeOf(const format::PartRect& part) const {
    return wholes_[PoolOf(part)];
  }
  // Its blocks have parents.
  bool IsChained(uint32_t pool) const { return ((chained_ >> pool) & 1u) != 0; }
  // The part lies within one pool.
  bool Contains(const format::PartRect& part) const {
    if (wholes_.size() > 1 && part.layer_begin >= wholes_.size()) return false;
    const format::PartRect& whole = WholeOf(part);
    return part.layer_begin >= whole.layer_begin && part.layer_end <= whole.layer_end &&
           part.head_begin >= whole.head_begin && part.head_end <= whole.head_end;
  }
  // The parts make a block of one pool complete. REQUIRES: they do not overlap, and Contains each.
  bool AreWhole(std::span<const format::PartRect> parts) const {
    if (parts.empty()) return false;
    uint32_t cells = 0;
    for (const format::PartRect& part : parts) {
      if (PoolOf(part) != PoolOf(parts.front())) return false;
      cells += part.Cells();
    }
    return cells == WholeOf(parts.front()).Cells();
  }

 private:
  absl::InlinedVector<format::PartRect, 1> wholes_;
  uint32_t chained_ = 0;  // A bit for each pool.
  static_assert(kMaxPools <= 32);
};

}  // namespace cairn::cache
