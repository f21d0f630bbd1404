#pragma once
// How many raw bytes a native layout has where: for checks of parts, whose work must not grow with
// the layers that a part names. Immutable; thread-safe.

#include <cstdint>
#include <span>
#include <vector>

#include "cairn/common/namespace_spec.h"

namespace cairn::cache {

// The sizes of an opaque layout are empty.
class LayerSizes {
 public:
  explicit LayerSizes(const Layout& layout);

  struct Total {
    uint64_t bytes = 0;
    uint32_t layers = 0;  // The number of these layers that have bytes.
  };
  // The total of all slices of a part, in O(log groups). REQUIRES: `rect` lies on the grid.
  Total Of(const format::PartRect& rect) const;

  // A run of layers that are alike.
  struct Group {
    uint32_t begin = 0, end = 0;  // Layers [begin, end).
    uint64_t per_head = 0;        // Bytes of a layer for each head of the grid.
    uint64_t at_head_0 = 0;       // Bytes of a layer in the part that holds head 0.

    uint64_t SliceBytes(uint32_t head_begin, uint32_t head_end) const {
      return per_head * (head_end - head_begin) + (head_begin == 0 ? at_head_0 : 0);
    }
  };
  // The groups from the one that `layer` lies in on, in O(log groups).
  std::span<const Group> From(uint32_t layer) const;
  size_t MemoryBytes() const {
    return sizeof(*this) + groups_.capacity() * sizeof(Group) + sums_.capacity() * sizeof(Sums);
  }

 private:
  // The sums of all groups before a group.
  struct Sums {
    uint64_t per_head = 0;
    uint64_t at_head_0 = 0;
    uint32_t layers_per_head = 0;   // Layers with bytes for each head.
    uint32_t layers_at_head_0 = 0;  // Layers with bytes in the part that holds head 0.
  };
  Sums Before(uint32_t layer) const;

  std::vector<Group> groups_;
  std::vector<Sums> sums_;  // By group.
};

}  // namespace cairn::cache
