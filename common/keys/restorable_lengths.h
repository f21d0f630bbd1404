#pragma once
// The lengths of a prompt that can be restored from several pools (cairn/common/kv/joint_match.h),
// as a function of which blocks are there. Pure: no index, no lock, no I/O.
//
//                      0       4       8       12      16     units
//   full, 4 a block    [ 0 ]   [ 1 ]   [ 2 ]   [ 3 ]          all of them          -> 4, 8, 12, 16
//   window, 2, tail 4  [ ] [x] [ ] [ ] [ ] [x] [ ] [ ]        x: missing           -> 8, 16
//   state, 8, tail 1           [ 0 ]           [ 1 ]          the one that ends there
//                                                             together             -> 8, 16
//
// Each block is looked at once at most. The work is bounded by the blocks that the units fill in
// all pools, and by the lengths.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cairn/common/kv/joint_match.h"

namespace cairn {

// The needs of a length for one pool, in blocks. `units` of the length fill a block.
struct BlockNeed {
  uint32_t units = 1;  // At least 1.
  // Blocks before a length that must be there. 0: all of them.
  uint32_t tail = 0;
  uint32_t proof = 0;  // Blocks after a length that must be there, too.
  // With a tail: the blocks that the prompt's units fill. Without: the first ones that are there,
  // without a gap.
  uint32_t blocks = 0;
};

// A block that a length needs, and that is missing.
struct LostBlock {
  size_t need = 0;  // The number of the pool in `needs`.
  // BlockNeed::blocks: the prompt has no key for it, or it ends the first ones.
  uint32_t block = 0;
};

struct RestorableLengths {
  uint64_t longest = 0;  // In units. 0: none.
  // Why the next longer length is not restorable. nullopt: the caller wanted no longer one.
  std::optional<LostBlock> lost = std::nullopt;
  std::string bits = {};  // With `all`: as JointAnswer::restorable.
};

// Whether a block of `needs[need]` is there. Asked only for pools with a tail, for blocks below
// `blocks`.
using HasBlock = std::function<bool(size_t need, uint32_t block)>;

// `step`: the lengths are multiples of it, in units, at least 1. `most`: they are at most this.
RestorableLengths FindRestorable(std::span<const BlockNeed> needs, uint32_t step, uint64_t most,
                                 bool all, const HasBlock& has);

// The needs of a question that was checked (CheckQuestion), with `blocks` as with a tail.
std::vector<BlockNeed> NeedsOf(const Layout& layout, const JointQuestion& question,
                               size_t unit_keys);
// The blocks that `length` units need of a pool: [first, end), without the proof.
struct BlockRange {
  uint32_t first = 0;
  uint32_t end = 0;
};
BlockRange NeededOf(const BlockNeed& need, uint64_t length);

}  // namespace cairn
