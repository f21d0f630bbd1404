#pragma once
// Keys of the blocks of a segment: a run of whole blocks whose rows were selected together
// (docs/methods/selections.md).
//
//   key = SHA256("cairn.segment.v1" | fingerprint | last key of the parent segment (zero for none)
//   | the token chain's key at the segment's end | u32 number of the block in the segment)
//
// The key of every block of a segment depends on the end of the segment, so a request that shares
// only some of its tokens cannot name it. A key also depends on where the parent segments ended,
// because the rows that were attended to depend on that.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cairn/common/namespace_spec.h"

namespace cairn {

// Not thread-safe: reuses one hash context.
class SegmentKeys {
 public:
  explicit SegmentKeys(const Digest& fingerprint) : fingerprint_(fingerprint) {}

  // `parent`: the last block of the segment before this one. nullopt: the segment is the first one
  // of the sequence. `end`: the ordinary key of the segment's last block, in the chain over all
  // tokens.
  BlockKey Key(const std::optional<BlockKey>& parent, const BlockKey& end, uint32_t block);
  // The keys of all blocks of the segment, in order.
  std::vector<BlockKey> Keys(const std::optional<BlockKey>& parent, const BlockKey& end,
                             uint32_t blocks);

 private:
  const Digest fingerprint_;
  Sha256 sha_;
};

}  // namespace cairn
