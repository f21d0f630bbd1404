#pragma once
// Decodes a message of an engine's event stream (MessagePack).
//
//   batch    [ts, [event, ...], rank?]
//   event    {"type": "BlockStored", "block_hashes": [...], ...}     vLLM and SGLang now
//            ["BlockStored", block_hashes, parent, tokens, ...]      both before
//
// Hashes are bytes or integers, signed or not. Anything unknown (fields, kinds of events, more
// values in an array) is passed over. A known field of a wrong type is an error.

#include <string_view>

#include "cairn/common/status.h"
#include "services/router/events/kv_event.h"

namespace cairn::router {

// The longest message that is decoded. A batch holds what happened in one step of an engine.
inline constexpr size_t kMostBatchBytes = size_t{16} << 20;

// INVALID_ARGUMENT says where something is wrong, such as "events[3]: block_hashes[0]: got a map,
// expected an integer or bytes". Memory is bounded by a small multiple of the message's size.
Result<EngineEventBatch> DecodeBatch(std::string_view message);

}  // namespace cairn::router
