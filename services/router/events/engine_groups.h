#pragma once
// The groups of layers of one engine's model, as its events tell of them, and what the places of a
// block in each of them mean for a prompt.
//
// vLLM evicts the blocks of each group by themselves. A prompt's first n blocks can be used if the
// groups of full attention have all of them, and each other group has the last few before the end:
// those that its window sees, or the one behind which its state stands.
//
//   full attention   ■ ■ ■ ■ ■ ■ ■ ·
//   window           · · ■ ■ · ■ ■ ·
//                          ▲     ▲     ends for a window of two blocks

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "services/router/events/kv_event.h"

namespace cairn::router {

// Places of a block, a bit for each tier at the engine and each tier elsewhere.
using EnginePlaces = uint8_t;

// Not thread-safe.
class EngineGroups {
 public:
  // More than any model in vLLM has (MiniMax-01: 8).
  static constexpr size_t kMost = 16;
  // Groups with windows of the same size count as one.
  static constexpr size_t kMostTails = 4;

  // One block in one group. vLLM may have it several times in its memory, such as when two requests
  // computed it at the same time, or when it was there in some groups alone. It tells of each copy
  // that comes or goes.
  struct InGroup {
    EnginePlaces places = 0;
    uint8_t copies = 0;  // In the engine's own memory. 255: or more.

    bool operator==(const InGroup&) const = default;
  };
  using InGroups = std::array<InGroup, kMost>;

  // A group's position in InGroups. nullopt: no event said what it needs.
  std::optional<uint32_t> Find(uint32_t index) const;
  // Adds a group that Find does not know. nullopt: the event does not say what it needs, or there
  // are too many.
  std::optional<uint32_t> Add(const EngineGroup& group, uint32_t block_tokens);
  void Clear() { *this = {}; }

  // A block in all groups together.
  struct Held {
    EnginePlaces whole = 0;  // Places where all groups of full attention have it.
    // A bit for each of tails(): all groups of this kind have it somewhere.
    uint8_t tails = 0;
  };
  Held Of(const InGroups& places) const;
  // How many blocks before a prompt's end the groups that are not of full attention need: each
  // number once, at least 1.
  const std::vector<uint32_t>& tails() const { return tails_; }

 private:
  struct Group {
    uint32_t index = 0;
    std::optional<uint32_t> tail = {};  // Its number in tails_. nullopt: full attention.
  };
  std::optional<uint32_t> TailOf(uint32_t blocks);

  std::vector<Group> groups_;
  std::vector<uint32_t> tails_;
};

}  // namespace cairn::router
