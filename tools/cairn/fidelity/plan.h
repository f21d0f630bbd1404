#pragma once
// From texts to tokens: what is asked of the workers.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/status.h"
#include "tools/cairn/fidelity/texts.h"

namespace cairn::cli {

// Context tokens are whole blocks, so that nothing of the context is computed again.
struct FidelityShape {
  uint32_t block_tokens = 64;
  uint32_t context_tokens = 1536;  // Tokens of a document.
  uint32_t continuation_tokens = 256;
  // Tokens of a needle context; fewer when a context has too little hay.
  uint32_t needle_tokens = 1024;
};

struct ScoredContinuation {
  std::vector<int32_t> tokens;
  // Tokens [answer_begin, size) are predicted: those of a document from its second on (the first
  // follows the context, whose logits nobody has), those of an answer.
  size_t answer_begin = 1;
};

struct ScoredText {
  std::string name;
  std::vector<int32_t> context;
  std::vector<ScoredContinuation> continuations;
  // Questions, whose answers are right or wrong; else a document.
  bool needles() const { return continuations.front().answer_begin > 1; }
};

// Text to ids; names of special tokens in it count.
using TokenizeFunction = std::function<Result<std::vector<int32_t>>(const std::string& text)>;

// INVALID_ARGUMENT naming a text that is too short.
Result<std::vector<ScoredText>> PlanFidelity(const FidelitySuite& suite, const FidelityShape& shape,
                                             const TokenizeFunction& tokenize);

// For other implementations that measure the same tokens: {"suite", "split", "texts": [{"name",
// "context", "continuations": [{"tokens", "answer_begin"}]}]}.
std::string PlanJson(const std::string& suite, const std::string& split,
                     const std::vector<ScoredText>& plan);

}  // namespace cairn::cli
