#pragma once
// Pins: "this block and everything above it stays", in one of two meanings:
//
//   kind     who                                      what stays
//   kPlace   a fetch, a transfer, a lease whose       every copy, where it lies: somebody has the
//            places were told to another process      address of the bytes
//   kLease   any other lease                          the block: its copy in the slowest tier that
//                                                     has it. Copies in faster tiers may go
//
// A table has pins of one kind.
//
// However many pins lie on one block, they are one *point* with a count. The points of a node are
// ordered (the deepest decides what may be evicted), so no pin costs a walk over the others. All
// pins form a list by age, so that bytes which were removed under a reader can be released once
// every pin of that time has gone. A pin takes memory only while it exists. Not thread-safe.

#include <cstdint>
#include <iterator>
#include <map>

#include "services/cache/store/index/key_map.h"

namespace cairn::cache {

enum class PinKind : uint8_t { kPlace, kLease };

// A block with pins.
struct PinPoint {
  NodeId node = kNoNode;
  uint32_t offset = 0;
  uint32_t pins : 31 = 0;
  uint32_t lease : 1 = 0;  // Its pins are leases, as all of the table.
};

// The table owns it. Others only hold its address.
struct Pin {
  PinPoint* point = nullptr;
  Pin* newer = nullptr;
  Pin* older = nullptr;
  uint64_t sequence = 0;
};
using PinId = Pin*;
inline constexpr PinId kNoPin = nullptr;

class PinTable {
 public:
  explicit PinTable(PinKind kind) : kind_(kind) {}
  ~PinTable() {
    while (oldest_ != nullptr) Remove(oldest_);
  }
  PinTable(const PinTable&) = delete;
  PinTable& operator=(const PinTable&) = delete;

  PinId Add(BlockRef ref) {
    const auto [it, added] = points_.try_emplace(At(ref.node, ref.offset));
    PinPoint& point = it->second;
    if (added) {
      point = {.node = ref.node, .offset = ref.offset, .lease = kind_ == PinKind::kLease};
    }
    ++point.pins;
    auto* const pin = new Pin{.point = &point, .older = newest_, .sequence = next_sequence_++};
    (newest_ == nullptr ? oldest_ : newest_->newer) = pin;
    newest_ = pin;
    ++count_;
    return pin;
  }

  void Remove(PinId pin) {
    (pin->older == nullptr ? oldest_ : pin->older->newer) = pin->newer;
    (pin->newer == nullptr ? newest_ : pin->newer->older) = pin->older;
    PinPoint& point = *pin->point;
    const uint32_t left = uint32_t{point.pins} - 1;
    point.pins = left;
    if (left == 0) points_.erase(At(point.node, point.offset));
    delete pin;
    --count_;
  }

  static BlockRef RefOf(PinId pin) { return {pin->point->node, pin->point->offset}; }
  static PinKind KindOf(PinId pin) {
    return pin->point->lease != 0 ? PinKind::kLease : PinKind::kPlace;
  }
  // Offset + 1 of the deepest pin of a node; 0: it has none.
  uint32_t DeepestIn(NodeId node) const {
    auto it = points_.lower_bound(At(node, 0) + (uint64_t{1} << 32));
    if (it == points_.begin()) return 0;
    --it;
    return it->second.node == node ? it->second.offset + 1 : 0;
  }
  // Pins of `from` at `begin` or below it go to `to`, where `begin` is now at `shift`. REQUIRES:
  // `to` has no pins there.
  void Move(NodeId to, NodeId from, uint32_t begin, uint32_t shift) {
    for (auto it = points_.lower_bound(At(from, begin));
         it != points_.end() && it->second.node == from;) {
      const auto next = std::next(it);
      auto moved = points_.extract(it);  // The point keeps its address.
      PinPoint& point = moved.mapped();
      point.node = to;
      point.offset = point.offset - begin + shift;
      moved.key() = At(point.node, point.offset);
      points_.insert(std::move(moved));
      it = next;
    }
  }
  // Calls `visit(const PinPoint&)` for every block with pins.
  template <typename Visitor>
  void ForEachPoint(Visitor&& visit) const {
    for (const auto& [at, point] : points_) visit(point);
  }

  size_t count() const { return count_; }
  size_t points() const { return points_.size(); }
  // Every existing pin has this sequence or a later one. Without pins: the sequence of the next
  // one.
  uint64_t OldestSequence() const {
    return oldest_ == nullptr ? next_sequence_ : oldest_->sequence;
  }
  uint64_t next_sequence() const { return next_sequence_; }

 private:
  static uint64_t At(NodeId node, uint32_t offset) { return (uint64_t{node} << 32) | offset; }

  const PinKind kind_;
  std::map<uint64_t, PinPoint> points_;
  PinId oldest_ = nullptr;
  PinId newest_ = nullptr;
  uint64_t next_sequence_ = 1;
  size_t count_ = 0;
};

// The memory of a pin, its point and malloc's overhead included. Its owner charges it.
inline constexpr size_t kPinBytes =
    sizeof(Pin) + 16 + sizeof(std::map<uint64_t, PinPoint>::value_type) + 4 * sizeof(void*) + 16;

}  // namespace cairn::cache
