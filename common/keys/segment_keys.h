#pragma once
// Keys of the blocks of a segment: a run of whole blocks whose rows were selected together
// (docs/selections.md).
//
//   key = SHA256("cairn.segment.v1" | fingerprint | last key of the parent segment (zero for none)
//   | the token chain's key at the segment's end | u32 number of the block in the segment)
//
// Every block of a segment names the segment's end, so whoever shares only some of its tokens
// cannot name it. A key stands for where the parents ended, too: the rows that were attended to
// depend on it.

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

  // `parent`: the last block of the segment before it; nullopt: the segment begins the sequence.
  // `end`: the ordinary key of the segment's last block in the chain over all tokens.
  BlockKey Key(const std::optional<BlockKey>& parent, const BlockKey& end, uint32_t block);
  // Of all its blocks, in order.
  std::vector<BlockKey> Keys(const std::optional<BlockKey>& parent, const BlockKey& end,
                             uint32_t blocks);

 private:
  const Digest fingerprint_;
  Sha256 sha_;
};

}  // namespace cairn
