#pragma once
// Makes verified slices from pieces of slices: the part of a fetch that does not know the network.

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "cairn/client/cache_client.h"
#include "clients/cpp/src/fetch_counts.h"
#include "common/hash/xxh3_stream.h"

namespace cairn::client {

// A piece as it came. Its bytes may lie in several places, in order. They are borrowed.
struct SlicePiece {
  SliceInfo slice = {};
  uint64_t offset = 0;  // The place of the bytes in the slice.
  std::vector<std::span<const std::byte>> chunks = {};
};

// Puts pieces into place, verifies each whole slice and tells the sink. It hashes bytes while it
// copies them. It does not trust the node: it checks sizes and numbers, and bounds its memory. Not
// thread-safe, one per fetch. The sink must outlive it.
class SliceAssembler {
 public:
  struct Limits {
    uint32_t blocks = 0;  // The blocks of the lease: a slice of a block beyond is refused.
    uint64_t max_slice_bytes = 64ull << 20;
    uint64_t max_open_bytes = 128ull << 20;  // Limit for slices that are not whole yet.
    bool verify = true;
    size_t max_retries = 0;  // Wrong slices that may come once more before their block has failed.
  };
  SliceAssembler(FetchSink* sink, const Limits& limits) : sink_(sink), limits_(limits) {}

  // DATA_LOSS: the node breaks the protocol. Any other error is the sink's, which refused a slice.
  // After an error the fetch ends.
  Status Take(const SlicePiece& piece);
  // The node cannot send the block.
  void Fail(uint32_t block, MissReason reason);
  const FetchCounts& counts() const { return counts_; }
  // Slices of which pieces are still missing.
  size_t open_slices() const { return open_.size(); }

  bool has_wrong_slices() const { return !wrong_.empty(); }

  // Call it between two passes over the same blocks. Returns the blocks with wrong slices, in
  // order. From now on only these slices are taken. All others have already come and are ignored.
  std::vector<uint32_t> BeginRetry();
  // Blocks whose slices were wrong in the second pass too have failed.
  void EndRetry();

 private:
  using SliceKey = std::tuple<uint32_t, uint32_t, format::PartRect>;  // Block, layer, part.
  struct Open {
    std::span<std::byte> destination;
    std::vector<std::byte> own;  // Where the sink gave no destination.
    uint64_t received = 0;
    // The hash of [0, received), as long as the pieces come in order.
    Xxh3Stream hash;
    bool in_order = true;
  };

  Status Check(const SlicePiece& piece, uint64_t piece_bytes) const;
  // Copies a piece, and hashes it into `hash` if that is given.
  void Copy(const SlicePiece& piece, std::byte* to, Xxh3Stream* hash);
  // Copies a whole slice; its hash if `verify`.
  uint64_t CopyWhole(const SlicePiece& piece, std::byte* to);
  Status Complete(const SliceInfo& slice, std::span<const std::byte> data, uint64_t xxh3);

  FetchSink* const sink_;
  const Limits limits_;
  std::map<SliceKey, Open> open_;
  uint64_t open_bytes_ = 0;
  std::set<uint32_t> failed_;
  std::set<SliceKey> wrong_;  // Not more than max_retries.
  bool retrying_ = false;
  FetchCounts counts_;
  Xxh3Stream whole_;  // The hash of a slice that came whole, in several chunks.
};

}  // namespace cairn::client
