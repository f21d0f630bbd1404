#pragma once
// How an arena is cut into segments: equal ones, but for the last, which may be smaller. An id is a
// byte offset in the arena. A value: no thread-safety of its own.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "services/cache/store/tier/host_room.h"

namespace cairn::cache {

class SegmentGrid {
 public:
  SegmentGrid() = default;
  // Both at least one page.
  SegmentGrid(uint64_t capacity, uint64_t segment_bytes)
      : capacity_(capacity), segment_bytes_(segment_bytes) {
    if (std::has_single_bit(segment_bytes)) shift_ = std::countr_zero(segment_bytes);
  }

  uint64_t capacity() const { return capacity_; }
  uint64_t segment_bytes() const { return segment_bytes_; }
  uint32_t count() const {
    return static_cast<uint32_t>((capacity_ + segment_bytes_ - 1) / segment_bytes_);
  }
  uint64_t OffsetOf(uint32_t index) const { return index * segment_bytes_; }
  uint64_t BytesOf(uint32_t index) const {
    return std::min(segment_bytes_, capacity_ - OffsetOf(index));
  }
  // A division of 64 bits takes longer than the rest of a look-up; only odd sizes need one.
  uint32_t SegmentOf(uint64_t id) const {
    return static_cast<uint32_t>(shift_ ? id >> *shift_ : id / segment_bytes_);
  }
  std::vector<uint32_t> Pages() const {
    std::vector<uint32_t> pages;
    for (uint32_t i = 0; i < count(); ++i) {
      pages.push_back(static_cast<uint32_t>(BytesOf(i) / kHostPageBytes));
    }
    return pages;
  }

 private:
  uint64_t capacity_ = 0;
  uint64_t segment_bytes_ = 1;
  std::optional<int> shift_;  // Where segment_bytes_ is a power of two.
};

}  // namespace cairn::cache
