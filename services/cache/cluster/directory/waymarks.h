#pragma once
// Waymarks: the few blocks that a node announces to others, one in about 512 tokens.
//
// A block is a waymark by its content alone, so whoever writes it and whoever looks for it agree
// without knowing positions. A node evicts a prompt from its end, so a node that has a waymark
// nearly always has what is before it. How much it really has, only a Match with it says.

#include <cstdint>
#include <span>
#include <vector>

#include "cairn/common/hash.h"
#include "cairn/common/namespace_spec.h"

namespace cairn::cache {

// The hash of a block in its namespace. Equal in all nodes, forever.
using WaymarkHash = uint64_t;

inline constexpr uint32_t kTokensPerWaymark = 512;

WaymarkHash HashForWaymark(const Digest& fingerprint, const BlockKey& key);
// One in kTokensPerWaymark / block_tokens blocks; each block if that is less than one.
bool IsWaymark(WaymarkHash hash, uint32_t block_tokens);

// A waymark of a prompt: block number `position` of the keys.
struct PromptWaymark {
  WaymarkHash hash = 0;
  uint32_t position = 0;
};
// All waymarks of `keys`, in order.
std::vector<PromptWaymark> WaymarksOf(const Digest& fingerprint, std::span<const BlockKey> keys,
                                      uint32_t block_tokens);

inline constexpr size_t kMostAsked = 16;
// Which waymarks of a prompt are worth a question, in order, at most kMostAsked: the first half are
// the next ones, the others are spread evenly to the end, the last one among them.
std::vector<PromptWaymark> WaymarksToAsk(std::span<const PromptWaymark> waymarks);

}  // namespace cairn::cache
