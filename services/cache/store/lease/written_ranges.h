#pragma once
// Which bytes of a reservation were written, as ranges that neither overlap nor touch.
// Thread-compatible.
//
// Writers send a part from its first byte to its last, on one stream or a few, so there is one
// range or a few. The number of ranges is bounded, so that pieces without order cost a bounded
// amount of memory and time.

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"

namespace cairn::cache {

class WrittenRanges {
 public:
  static constexpr size_t kMaxRanges = 64;

  // Adds the bytes [begin, end). False: they touch none of kMaxRanges ranges, and nothing was
  // added. O(kMaxRanges); O(1) for bytes that follow those before.
  bool Add(uint32_t begin, uint32_t end);
  // The first byte that was not written.
  uint32_t FirstMissing() const;

 private:
  struct Range {
    uint32_t begin = 0, end = 0;
  };
  absl::InlinedVector<Range, 1> ranges_;  // In order.
};

}  // namespace cairn::cache
