#include "services/cache/store/placement/cairn/block_group.h"

#include <fmt/format.h>

namespace cairn::cache {
namespace {

std::string TurnName(int turn) {
  return fmt::format("turn {}{}", turn, turn + 1 == kTurns ? " or later" : "");
}

std::string SizeName(int size) {
  const int first = size == 0 ? 0 : 1 << (size - 1);
  if (size + 1 == kSizes) return fmt::format("{} or more", first);
  return size < 2 ? fmt::format("{}", first) : fmt::format("{} to {}", first, 2 * first - 1);
}

}  // namespace

std::string GroupName(BlockGroup group) {
  if (group == kUnknownGroup) return "unknown";
  const GroupMeaning meaning = MeaningOf(group);
  if (meaning.shared) {
    const int level = group - kFirstSharedGroup;
    if (level + 1 == kSharedLevels) return fmt::format("shared, {} or more uses", 1 << level);
    return fmt::format("shared, from {} uses", 1 << level);
  }
  if (group >= kFirstHintedGroup) {
    const int at = (group - kFirstHintedGroup) % kGroupsPerHint;
    if (at + 1 == kGroupsPerHint) return fmt::format("{}, last block", Name(meaning.next));
    return fmt::format("{}, {}, {} new blocks", Name(meaning.next), TurnName(meaning.turn),
                       at % 2 == 0 ? "few" : "many");
  }
  if (group >= kFirstTailGroup) return fmt::format("{}, last block", TurnName(meaning.turn));
  return fmt::format("{}, {} new blocks", TurnName(meaning.turn),
                     SizeName((group - kFirstTurnGroup) % kSizes));
}

}  // namespace cairn::cache
