#pragma once
// Encodes a batch of events as vLLM and SGLang do, in MessagePack.
//
//   batch    [ts, [event, ...], 0]
//   event    {"type": "BlockStored", "block_hashes": [...], ...}     kMaps: both engines now
//            ["BlockStored", block_hashes, parent, tokens, ...]      kArrays: both before
//
// A node knows no tokens: events have none, and no parent. They say that blocks which the engine's
// own events explained are in one place more.

#include <span>
#include <string>

#include "services/cache/serve/events/kv_event.h"

namespace cairn::cache {

enum class EventEncoding : uint8_t { kMaps, kArrays };

// `time`: seconds since 1970.
std::string EncodeBatch(double time, std::span<const KvEvent> events, EventEncoding encoding);

}  // namespace cairn::cache
