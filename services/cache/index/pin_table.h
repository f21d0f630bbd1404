#pragma once
// Pins: "this block and everything above it stays". A lease is one pin per path, a transfer is one
// pin for its time.
//
// Pins of a node form a list (the deepest decides what may be evicted); all pins form a list by
// age, so that bytes which were removed under a reader can be released once every pin of that time
// has gone. Not thread-safe.

#include <cstdint>
#include <vector>

#include "services/cache/index/key_map.h"

namespace cairn::cache {

using PinId = uint32_t;
inline constexpr PinId kNoPin = UINT32_MAX;

struct Pin {
  NodeId node = kNoNode;
  uint32_t offset = 0;
  PinId next_in_node = kNoPin;
  PinId prev_in_node = kNoPin;
  PinId newer = kNoPin;
  PinId older = kNoPin;
  uint64_t sequence = 0;
};

class PinTable {
 public:
  // Not yet in a node's list.
  PinId Add(BlockRef ref) {
    PinId id;
    if (!free_.empty()) {
      id = free_.back();
      free_.pop_back();
    } else {
      id = static_cast<PinId>(pins_.size());
      pins_.emplace_back();
    }
    pins_[id] =
        Pin{.node = ref.node, .offset = ref.offset, .older = newest_, .sequence = next_sequence_++};
    if (newest_ != kNoPin) pins_[newest_].newer = id;
    newest_ = id;
    if (oldest_ == kNoPin) oldest_ = id;
    ++count_;
    return id;
  }

  void Remove(PinId id) {
    const Pin& pin = pins_[id];
    (pin.older == kNoPin ? oldest_ : pins_[pin.older].newer) = pin.newer;
    (pin.newer == kNoPin ? newest_ : pins_[pin.newer].older) = pin.older;
    free_.push_back(id);
    --count_;
  }

  Pin& operator[](PinId id) { return pins_[id]; }
  const Pin& operator[](PinId id) const { return pins_[id]; }
  size_t count() const { return count_; }
  template <typename Visitor>
  void ForEach(Visitor&& visit) const {
    for (PinId id = oldest_; id != kNoPin; id = pins_[id].newer) visit(pins_[id]);
  }
  // Every existing pin has this sequence or a later one. Without pins: the sequence of the next
  // one.
  uint64_t OldestSequence() const {
    return oldest_ == kNoPin ? next_sequence_ : pins_[oldest_].sequence;
  }
  uint64_t next_sequence() const { return next_sequence_; }
  size_t MemoryBytes() const {
    return pins_.capacity() * sizeof(Pin) + free_.capacity() * sizeof(PinId);
  }

 private:
  std::vector<Pin> pins_;
  std::vector<PinId> free_;
  PinId oldest_ = kNoPin;
  PinId newest_ = kNoPin;
  uint64_t next_sequence_ = 1;
  size_t count_ = 0;
};

}  // namespace cairn::cache
