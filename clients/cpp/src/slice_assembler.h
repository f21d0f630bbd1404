#pragma once
// From pieces of slices to verified slices: the part of a fetch that does not know the network.

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "cairn/client/cache_client.h"

namespace cairn::client {

// A piece as it came. Its bytes may lie in several places, in order; they are borrowed.
struct SlicePiece {
  SliceInfo slice = {};
  uint64_t offset = 0;  // Of the bytes in the slice.
  std::vector<std::span<const std::byte>> chunks = {};
};

// Puts pieces into place, verifies each whole slice, tells the sink. What the node says is not
// trusted: sizes and numbers are checked, and memory is bounded. Not thread-safe; one per fetch.
// The sink outlives it.
class SliceAssembler {
 public:
  struct Limits {
    uint32_t blocks = 0;  // Of the lease: a slice of a block beyond is refused.
    uint64_t max_slice_bytes = 64ull << 20;
    uint64_t max_open_bytes = 128ull << 20;  // Of slices that are not whole yet.
  };
  struct Counts {
    uint64_t slices = 0;  // Verified.
    uint64_t corrupt = 0;
    uint64_t bytes[kTierCount] = {};  // Verified.
  };

  SliceAssembler(FetchSink* sink, const Limits& limits) : sink_(sink), limits_(limits) {}

  // DATA_LOSS when the node does not keep to the protocol; the sink's status when it refuses a
  // slice. The fetch ends then.
  Status Take(const SlicePiece& piece);
  // The node cannot send the block.
  void Fail(uint32_t block, MissReason reason);
  const Counts& counts() const { return counts_; }
  // Slices of which pieces are still missing.
  size_t open_slices() const { return open_.size(); }

 private:
  using SliceKey = std::tuple<uint32_t, uint32_t, format::PartRect>;  // Block, layer, part.
  struct Open {
    std::span<std::byte> destination;
    std::vector<std::byte> own;  // Where the sink gave no destination.
    uint64_t received = 0;
  };

  Status Check(const SlicePiece& piece, uint64_t piece_bytes) const;
  Status Complete(const SliceInfo& slice, std::span<const std::byte> data);

  FetchSink* const sink_;
  const Limits limits_;
  std::map<SliceKey, Open> open_;
  uint64_t open_bytes_ = 0;
  std::set<uint32_t> failed_;
  Counts counts_;
};

}  // namespace cairn::client
