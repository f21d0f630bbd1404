#pragma once
// The groups into which the policy `cairn` sorts blocks. Blocks of a group are expected to be used
// again alike, so the policy learns one curve for each group.
//
//   0           unknown: the node never saw a request for the block
//   1 .. 24     turn of the conversation (0, 1, 2 and later) x new blocks of the request (log2)
//   25 .. 27    the last block of a request, by turn
//   28 .. 33    blocks that several conversations begin with, by uses (log2)
//   34 ..       requests with a hint, 7 groups each: turn x few or many new blocks, the last block
//
// Constants and arithmetic only.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>

#include "cairn/common/next_use.h"

namespace cairn::cache {

using BlockGroup = uint8_t;

inline constexpr int kTurns = 3;
inline constexpr int kSizes = 8;
inline constexpr int kSharedLevels = 6;
inline constexpr BlockGroup kUnknownGroup = 0;
inline constexpr BlockGroup kFirstTurnGroup = 1;
inline constexpr BlockGroup kFirstTailGroup = kFirstTurnGroup + kTurns * kSizes;
inline constexpr BlockGroup kFirstSharedGroup = kFirstTailGroup + kTurns;
inline constexpr BlockGroup kFirstHintedGroup = kFirstSharedGroup + kSharedLevels;
inline constexpr int kGroupsPerHint = 2 * kTurns + 1;
inline constexpr int kGroupCount = kFirstHintedGroup + (kNextUseCount - 1) * kGroupsPerHint;

// The meaning of a group for its blocks.
struct GroupMeaning {
  int turn = 0;
  bool shared = false;
  NextUse next = NextUse::kUnknown;
};

constexpr BlockGroup SharedGroup(uint32_t uses) {
  const int level = std::bit_width(uses | 1u) - 1;
  return static_cast<BlockGroup>(kFirstSharedGroup + std::min(level, kSharedLevels - 1));
}
constexpr bool IsShared(BlockGroup group) {
  return group >= kFirstSharedGroup && group < kFirstHintedGroup;
}

// The group for the blocks of a request that is turn `turn` of its conversation and has `blocks`
// new blocks.
constexpr BlockGroup RequestGroup(int turn, uint32_t blocks, NextUse next) {
  turn = std::clamp(turn, 0, kTurns - 1);
  const int size = std::min<int>(std::bit_width(blocks), kSizes - 1);
  if (next == NextUse::kUnknown) {
    return static_cast<BlockGroup>(kFirstTurnGroup + turn * kSizes + size);
  }
  const int first = kFirstHintedGroup + (static_cast<int>(next) - 1) * kGroupsPerHint;
  return static_cast<BlockGroup>(first + 2 * turn + (size > kSizes / 2 ? 1 : 0));
}
// The group of the last block of such a request.
constexpr BlockGroup TailGroup(int turn, NextUse next) {
  if (next == NextUse::kUnknown) {
    return static_cast<BlockGroup>(kFirstTailGroup + std::clamp(turn, 0, kTurns - 1));
  }
  return static_cast<BlockGroup>(kFirstHintedGroup + static_cast<int>(next) * kGroupsPerHint - 1);
}

constexpr GroupMeaning MeaningOf(BlockGroup group) {
  if (group >= kFirstHintedGroup) {
    const int at = group - kFirstHintedGroup;
    return {.turn = std::min(at % kGroupsPerHint / 2, kTurns - 1),
            .next = static_cast<NextUse>(at / kGroupsPerHint + 1)};
  }
  if (group >= kFirstSharedGroup) return {.shared = true};
  if (group >= kFirstTailGroup) return {.turn = group - kFirstTailGroup};
  if (group >= kFirstTurnGroup) return {.turn = (group - kFirstTurnGroup) / kSizes};
  return {};
}

// "turn 1, 8 to 15 new blocks": for people.
std::string GroupName(BlockGroup group);

}  // namespace cairn::cache
