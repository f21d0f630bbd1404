#pragma once
// The fields of a request of OpenAI's API that a simulated engine reads.
//
// A prompt's text stands for blocks of a trace: kBlockChars characters are one block of kTraceBlock
// tokens, and equal characters are the same block. The last block may be shorter. So a prompt has
// 1/32 of the text that it would have with four characters for each token, in the same proportions.

#include <cstdint>
#include <string>
#include <vector>

#include "benchmarks/model/requests.h"
#include "cairn/common/status.h"

namespace cairn::compare {

inline constexpr size_t kBlockChars = 64;
inline constexpr int64_t kCharTokens = simulated::kTraceBlock / static_cast<int64_t>(kBlockChars);

struct EngineAsk {
  bool chat = false;
  bool stream = false;
  bool include_usage = false;  // stream_options.include_usage
  std::string text;            // The text of the prompt, or of all messages.
  int64_t max_tokens = 16;
};

// INVALID_ARGUMENT names the field.
Result<EngineAsk> ParseEngineAsk(bool chat, const std::string& body);

// As the model of a worker has it. REQUIRES: the text is not empty.
simulated::Request RequestOf(const EngineAsk& ask);

// The tokens that the engine says a text has: four bytes each.
std::vector<uint32_t> TokensOf(const std::string& text);

}  // namespace cairn::compare
