#pragma once
// Blocks that are not complete yet: committed parts and rectangles that writers have reserved. Not
// thread-safe.

#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "services/cache/block/part_grid.h"
#include "services/cache/index/block_index.h"

namespace cairn::cache {

class PendingBlocks {
 public:
  struct Complete {
    PartPlaces parts;  // In order of their rectangles.
    std::optional<BlockKey> parent;
    float recompute_seconds = 0;
    bool at_start = false;
  };

  explicit PendingBlocks(const format::PartRect& whole) : whole_(whole) {}

  // Reserves a rectangle for one writer. Anything but kFree changes nothing.
  PartFit Claim(const BlockKey& key, const format::PartRect& rect);
  void Unclaim(const BlockKey& key, const format::PartRect& rect);
  // True if this part would complete the block.
  bool Completes(const BlockKey& key, const format::PartRect& rect) const;
  // Commits a claimed part. Returns the block if it is complete now, and it is then no longer
  // pending. The expiry of the block counts from its first part. `at_start`: the block begins a
  // sequence. REQUIRES: claimed; the part lies in one tier.
  std::optional<Complete> Commit(const BlockKey& key, const PartPlace& part,
                                 const std::optional<BlockKey>& parent, float recompute_seconds,
                                 TimePoint expires, bool at_start = false);
  // True when some part of the block is here.
  bool Contains(const BlockKey& key) const;
  // Drops committed parts of blocks that should have been complete by `now`; `all`: of every block.
  void Expire(TimePoint now, bool all, std::vector<PartPlace>* dropped);

  // Blocks with committed parts, and their bytes.
  uint64_t incomplete_blocks() const { return incomplete_blocks_; }
  uint64_t incomplete_bytes() const { return incomplete_bytes_; }
  size_t MemoryBytes() const;

 private:
  struct Block {
    absl::InlinedVector<format::PartRect, 2> claimed;
    PartPlaces committed;
    std::optional<BlockKey> parent;
    float recompute_seconds = 0;
    bool at_start = false;
    TimePoint expires;
  };
  const format::PartRect whole_;
  absl::flat_hash_map<BlockKey, Block> blocks_;
  uint64_t incomplete_blocks_ = 0;
  uint64_t incomplete_bytes_ = 0;
};

}  // namespace cairn::cache
