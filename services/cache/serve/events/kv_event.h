#pragma once
// Events of blocks in the form in which inference engines publish them, in plain structs.
//
// Structs without behaviour: as thread-safe as their owners.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "cairn/common/namespace_spec.h"

namespace cairn::cache {

// The engine whose form an event has. SGLang's events have no fields for groups of layers, and none
// that say where a place is.
enum class EventEngine : uint8_t { kVllm, kSglang };

// How events name a block whose key is the engine's own hash of 32 bytes.
enum class HashForm : uint8_t {
  kLastBits,   // The last 64 bits, as a number. vLLM, unless it is told otherwise.
  kBytes,      // All bytes. vLLM with VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0.
  kFirstBits,  // The first 64 bits, as a signed number. SGLang.
};

// The group of layers of a model that has several, which is the pool of the same number.
struct EventGroup {
  uint32_t index = 0;
  // Its layers need all tokens before. False: the node does not know what they need.
  bool full_attention = false;

  bool operator==(const EventGroup&) const = default;
};

// The fields that the blocks of one event share.
struct EventShape {
  enum class Kind : uint8_t {
    kStored,   // The blocks are in this place.
    kRemoved,  // They have left it.
    kCleared,  // No block is anywhere. The event has no other fields.
  };
  Kind kind = Kind::kCleared;
  EventEngine engine = EventEngine::kVllm;
  HashForm hashes = HashForm::kLastBits;
  std::string_view medium = {};  // The place: a constant.
  uint32_t block_tokens = 0;
  std::optional<EventGroup> group = {};

  bool operator==(const EventShape&) const = default;
};

struct KvEvent {
  EventShape shape = {};
  std::vector<BlockKey> hashes = {};  // The engine's own: without the mask of a pool.

  bool operator==(const KvEvent&) const = default;
};

}  // namespace cairn::cache
