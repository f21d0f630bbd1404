#pragma once
// Blocks that are not complete yet: their committed parts, and how many writers are at them. Not
// thread-safe.
//
// A reservation takes room in the host tier, not the key: any number of writers may reserve the
// same part, and the first commit wins. So a writer that stalls holds nobody up. Committed parts
// never overlap:
//
//   the new part ...                              Fit         what a commit does
//   touches no committed part                     kFree       adds it
//   lies in committed parts                       kCovered    nothing: somebody was faster
//   covers every committed part that it touches   kFree       takes their place
//   crosses a committed part                      kOverlaps   nothing: another cut of the grid
//   is of another pool than the committed ones    kOtherPool  nothing: the key is that block's
//
// The third row keeps a writer that stopped in the middle from holding up those that cut the grid
// into larger parts.

#include <optional>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "services/cache/store/block/part_grid.h"
#include "services/cache/store/block/pool_grid.h"
#include "services/cache/store/index/block_index.h"

namespace cairn::cache {

class PendingBlocks {
 public:
  struct Complete {
    PartPlaces parts;  // In order of their rectangles.
    std::optional<BlockKey> parent;
    float recompute_seconds = 0;
    bool at_start = false;
  };
  // A writer's facts about the block.
  struct About {
    std::optional<BlockKey> parent = std::nullopt;
    float recompute_seconds = 0;
    bool at_start = false;  // The block begins a sequence.
  };

  explicit PendingBlocks(const PoolGrid& grid) : grid_(grid) {}

  // How a part fits to the committed ones. Takes time for those of them whose layers are near.
  PartFit Fit(const BlockKey& key, const format::PartRect& rect) const;
  // A writer begins or ends with a part of the block.
  void AddWriter(const BlockKey& key);
  void RemoveWriter(const BlockKey& key);
  // True if this part would complete the block. REQUIRES: Fit says kFree.
  bool Completes(const BlockKey& key, const format::PartRect& rect) const;
  // Commits a part. Returns the block if it is complete now, and it is then no longer pending; its
  // writers still are. The expiry of the block counts from its first part. Parts that gave their
  // place to this one are appended to `replaced`. REQUIRES: Fit says kFree; the part lies in
  // host only.
  std::optional<Complete> Commit(const BlockKey& key, const PartPlace& part, const About& about,
                                 TimePoint expires, std::vector<PartPlace>* replaced);
  // True when some part of the block is here, or somebody writes one.
  bool Contains(const BlockKey& key) const;
  // True when somebody writes a part of the block.
  bool HasWriter(const BlockKey& key) const;
  bool empty() const { return blocks_.empty(); }
  // Drops committed parts of blocks that should have been complete by `now`; `all`: of every block.
  void Expire(TimePoint now, bool all, std::vector<PartPlace>* dropped);

  // Blocks with committed parts, and what these take in host.
  uint64_t incomplete_blocks() const { return incomplete_blocks_; }
  uint64_t incomplete_bytes() const { return incomplete_bytes_; }
  size_t MemoryBytes() const;
  // Committed parts that Fit has looked at so far. For tests.
  uint64_t looked_at() const { return looked_at_; }

 private:
  struct Block {
    uint32_t writers = 0;
    // They do not overlap.
    absl::btree_map<format::PartRect, PartPlace> committed;
    uint32_t tallest = 0;  // Layers of the tallest of them.
    uint32_t cells = 0;    // The cells of all of them.
    About about;
    TimePoint expires;
  };
  using Blocks = absl::flat_hash_map<BlockKey, Block>;

  // Calls `visit(place)` for the committed parts that overlap.
  template <typename Visitor>
  void ForEachOverlap(const Block& block, const format::PartRect& rect, Visitor&& visit) const;
  void Drop(Block& block, std::vector<PartPlace>* dropped);
  void EraseIfUnused(Blocks::iterator it);

  const PoolGrid grid_;
  Blocks blocks_;
  uint64_t incomplete_blocks_ = 0;
  uint64_t incomplete_bytes_ = 0;
  uint64_t parts_ = 0;  // Committed.
  mutable uint64_t looked_at_ = 0;
};

}  // namespace cairn::cache
