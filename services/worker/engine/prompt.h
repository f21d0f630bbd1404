#pragma once
// From a request to the tokens that are computed, and from a finished turn to the tokens that the
// next turn will begin with.

#include <cstdint>
#include <string>
#include <vector>

#include "cairn/common/status.h"
#include "model/model.h"
#include "services/worker/engine/request.h"

namespace cairn::worker {

struct PreparedPrompt {
  std::vector<model::TokenId> tokens;  // 1 to context - 1.
  // The most tokens of the answer, cut to the room that the context has.
  uint32_t max_tokens = 0;
  // With drop_oldest, of a prompt that was too long: all of it, and how many tokens are dropped
  // after its first block. 0: none.
  std::vector<model::TokenId> whole = {};
  int64_t dropped = 0;
};

// How many of `tokens` tokens of a prompt go after the first block, so that it has room for
// `answer` more in `context`: whole quarters of the context, so that most turns of a chat change
// nothing. 0: it fits. -1: nothing would be left.
int64_t DroppedTokens(int64_t tokens, int64_t answer, int64_t context, int64_t block_tokens);

// Checks every field of the request and tokenises its prompt. INVALID_ARGUMENT naming field, value
// and what was expected; the chat template's error when the model has none. Thread-safe.
Result<PreparedPrompt> PreparePrompt(const model::Model& model, uint32_t context_tokens,
                                     uint32_t block_tokens, const GenerateRequest& request);

// The tokens of prompt and answer as the next turn's prompt will have them: a chat is rendered
// again with the answer in it, so that its end-of-turn marker and the tokenisation of its text are
// those of the next turn; any other prompt is followed by the answer's tokens. Empty when that is
// not possible (an answer that is not UTF-8, or more tokens than the context has).
std::vector<model::TokenId> FinishedTurn(const model::Model& model, uint32_t context_tokens,
                                         const GenerateRequest& request,
                                         const PreparedPrompt& prompt,
                                         const GenerateSummary& summary);

}  // namespace cairn::worker
