#pragma once
// Requests of random tokens, for benchmarks of a worker.

#include <cstddef>
#include <cstdint>
#include <utility>

#include "services/worker/engine/request.h"

namespace cairn::worker {

// A prompt of `prompt` tokens that depend on `seed`, the first `common` of them only on `family`.
// The answer has `answer` tokens.
inline GenerateRequest RandomChat(uint32_t family, size_t common, uint32_t seed, size_t prompt,
                                  uint32_t answer) {
  TokenPrompt tokens;
  uint32_t state = family * 2654435761u;
  for (size_t i = 0; i < prompt; ++i) {
    if (i == common) state = (seed + 1000) * 2654435761u;
    state = state * 1664525u + 1013904223u;
    tokens.ids.push_back(static_cast<int32_t>(100 + (state >> 12) % 40000));
  }
  GenerateRequest request;
  request.prompt = std::move(tokens);
  request.max_tokens = answer;
  request.ignore_eos = true;
  return request;
}

}  // namespace cairn::worker
