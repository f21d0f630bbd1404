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

// The KV cache group of a model with several kinds of attention that an event is about. Blocks of
// the first group of full attention are prompts' blocks; those of other groups come and go by other
// rules.
struct EngineGroup {
  uint32_t index = 0;
  bool full_attention = true;  // Or not told.

  bool is_main() const { return index == 0 && full_attention; }
  bool operator==(const EngineGroup&) const = default;
};

// Blocks with these hashes are there, in the order of a prompt.
struct EngineBlocksStored {
  std::vector<EngineHash> hashes = {};
  // The hash of the block before the first one. nullopt: it begins a prompt.
  std::optional<EngineHash> parent = {};
  // block_tokens of them for each hash. None: the event only adds a place to blocks that are known.
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
  EngineGroup group = {};

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
