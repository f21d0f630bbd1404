#pragma once
// The keys of prompts for engines that are not Cairn's workers. The follower of an engine's events
// and the lookup of a prompt have to derive the same ones.
//
// The model is no part of it: a lookup asks what one engine holds, and each engine is a holder of
// its own in the index, so that equal tokens of two models share an entry and nothing else.

#include <cstdint>

#include "cairn/common/hash.h"

namespace cairn::router {

enum class EngineKeys : uint8_t {
  kTokens,  // Blocks are the engine's own: of as many token ids as the engine says.
  kText,    // Blocks are pieces of the prompt's text, four bytes of it for each "token".
};

// Keys are those of BlockKeyChain(fingerprint), for all full blocks from the first one on.
struct EngineNamespace {
  Digest fingerprint = {};
  uint32_t block_tokens = 0;

  bool operator==(const EngineNamespace&) const = default;
};

// `block_tokens`: at least 1. Pure.
EngineNamespace MakeEngineNamespace(EngineKeys keys, uint32_t block_tokens);

}  // namespace cairn::router
