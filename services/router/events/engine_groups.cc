#include "services/router/events/engine_groups.h"

#include <algorithm>

namespace cairn::router {

std::optional<uint32_t> EngineGroups::Find(uint32_t index) const {
  const auto found = std::ranges::find(groups_, index, &Group::index);
  if (found == groups_.end()) return std::nullopt;
  return static_cast<uint32_t>(found - groups_.begin());
}

std::optional<uint32_t> EngineGroups::Add(const EngineGroup& group, uint32_t block_tokens) {
  using Kind = EngineGroup::Kind;
  if (groups_.size() >= kMost) return std::nullopt;
  Group added{.index = group.index};
  if (group.kind == Kind::kTail) {
    added.tail = TailOf((group.tail_tokens - 1) / block_tokens + 1);
    if (!added.tail) return std::nullopt;
  } else if (!KeepsAllBlocks(group)) {
    return std::nullopt;
  }
  groups_.push_back(added);
  return static_cast<uint32_t>(groups_.size() - 1);
}

std::optional<uint32_t> EngineGroups::TailOf(uint32_t blocks) {
  const auto found = std::ranges::find(tails_, blocks);
  if (found != tails_.end()) return static_cast<uint32_t>(found - tails_.begin());
  if (tails_.size() >= kMostTails) return std::nullopt;
  tails_.push_back(blocks);
  return static_cast<uint32_t>(tails_.size() - 1);
}

EngineGroups::Held EngineGroups::Of(const InGroups& places) const {
  Held held{.whole = static_cast<EnginePlaces>(~0u),
            .tails = static_cast<uint8_t>((1u << tails_.size()) - 1)};
  bool full = false;
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (!groups_[i].tail) {
      full = true;
      held.whole &= places[i].places;
    } else if (places[i].places == 0) {
      held.tails &= static_cast<uint8_t>(~(1u << *groups_[i].tail));
    }
  }
  if (!full) held.whole = 0;
  return held;
}

}  // namespace cairn::router
