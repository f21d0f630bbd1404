#pragma once
// An inference engine's events about its KV blocks, in plain structs: those of vLLM and SGLang.
//
// Events of both engines mean the same; batch_decoder.h reads their encodings. Structs without
// behaviour: as thread-safe as their owners.

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "cairn/common/tier_kind.h"

namespace cairn::router {

// An engine's own hash of a block: a number of 64 bits, or the last 16 of its bytes. Engines give
// their hashes no meaning beyond equality, and two engines may give one text two hashes.
struct EngineHash {
  uint64_t high = 0;  // 0 for numbers and hashes of 8 bytes.
  uint64_t low = 0;

  bool operator==(const EngineHash&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const EngineHash& hash) {
    return H::combine(std::move(h), hash.high, hash.low);
  }
};

// Where an engine says that blocks are.
struct EngineMedium {
  TierKind tier = TierKind::kDevice;
  // At another place, from which the engine can load them, such as a cache node. The same block may
  // be in the engine's own memory, too.
  bool remote = false;

  bool operator==(const EngineMedium&) const = default;
};

// The group of layers that an event is about. A model with several kinds of attention has several
// groups, and a prompt's beginning can be used only if each of them has what its kind needs of it.
struct EngineGroup {
  enum class Kind : uint8_t {
    kUntold,
    kFull,   // All tokens from the first one on.
    kTail,   // The last `tail_tokens` alone: a window, or a state.
    kOther,  // Nobody says what it needs.
  };
  uint32_t index = 0;
  Kind kind = Kind::kUntold;
  uint32_t tail_tokens = 0;  // At least 1 for kTail.

  bool operator==(const EngineGroup&) const = default;
};

// Whether it has full attention, as the first group does unless its events say otherwise. Each
// event about it has all blocks of its tokens.
inline bool KeepsAllBlocks(const EngineGroup& group) {
  return group.kind == EngineGroup::Kind::kFull ||
         (group.kind == EngineGroup::Kind::kUntold && group.index == 0);
}

// Blocks with these hashes are there, in the order of a prompt.
struct EngineBlocksStored {
  std::vector<EngineHash> hashes = {};
  // The hash of the block before the first one. nullopt: it begins a prompt.
  std::optional<EngineHash> parent = {};
  // block_tokens of them for each hash. None: the event only adds a place to blocks that are known,
  // or it is about a group of which only some of the blocks are kept.
  std::vector<int32_t> tokens = {};
  uint32_t block_tokens = 0;
  std::optional<EngineMedium> medium = EngineMedium{};  // nullopt: a word that nobody knows.
  EngineGroup group = {};
  // How many of the first blocks depend on nothing but tokens. Others depend on an adapter, an
  // image, a salt or the like, and so does each block after them.
  uint32_t plain_blocks = 0;

  bool operator==(const EngineBlocksStored&) const = default;
};

// Blocks with these hashes are no longer there.
struct EngineBlocksRemoved {
  std::vector<EngineHash> hashes = {};
  std::optional<EngineMedium> medium = EngineMedium{};  // As above.
  EngineGroup group = {};                               // Only its index is told.

  bool operator==(const EngineBlocksRemoved&) const = default;
};

// No block is there any more.
struct EngineBlocksCleared {
  bool operator==(const EngineBlocksCleared&) const = default;
};

using EngineEvent = std::variant<EngineBlocksStored, EngineBlocksRemoved, EngineBlocksCleared>;

struct EngineEventBatch {
  std::vector<EngineEvent> events = {};
  uint32_t unknown = 0;  // Events of other kinds, which later versions may have.

  bool operator==(const EngineEventBatch&) const = default;
};

}  // namespace cairn::router
