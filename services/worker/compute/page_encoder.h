#pragma once
// Encodes pages of computed KV where forward passes compute, when that is a device: what leaves it
// for a cache node is encoded already.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "cairn/kernels/codec/slice_kernels.h"

namespace cairn::worker {

// Thread-safe.
class PageEncoder {
 public:
  struct Page {
    uint64_t stamp = 0;  // KvSequence::PageStamp. 0: unknown, so it is not encoded.
    int64_t first_position = 0;
  };
  // The slices of all layers, behind each other, and XXH3-64 of each. The bytes are those that the
  // CPU's codec makes.
  struct Encoded {
    std::span<const std::byte> bytes;
    std::span<const uint64_t> lengths;
    std::span<const uint64_t> hashes;
  };
  // Gets page `page`. The memory that `encoded` names lives until the function returns.
  using Take = std::function<void(size_t page, const Encoded& encoded)>;

  virtual ~PageEncoder() = default;
  // Encodes those of the pages that the device has, and waits for them; no forward pass does.
  // Calls `take` for each, in order, on this thread. Not for those that are not on the device or
  // have numbers that are not finite, nor where the device is busy with other pages, has no memory
  // for it or fails.
  virtual void Encode(const kernels::SliceForm& form, std::span<const Page> pages,
                      const Take& take) = 0;
};

}  // namespace cairn::worker
