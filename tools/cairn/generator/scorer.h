#pragma once
// A worker's logits over a given continuation.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cairn/common/status.h"
#include "services/worker/engine/request.h"

namespace cairn::cli {

// Not thread-safe.
class Scorer {
 public:
  virtual ~Scorer() = default;

  // Ids of the text; names of special tokens in it become these tokens.
  virtual Result<std::vector<int32_t>> Tokenize(const std::string& text) = 0;

  // Row i of `logits` [rows][vocabulary] tells what follows continuation[first + i].
  using OnRows = std::function<void(size_t first, size_t rows, std::span<const float> logits)>;
  // `context`: whole blocks; where the recipe selects, the shared prefix. Errors: those of the
  // worker's Score, UNAVAILABLE when it is away.
  virtual Result<worker::GenerateSummary> Score(std::span<const int32_t> context,
                                                std::span<const int32_t> continuation,
                                                bool no_cache, const OnRows& on_rows) = 0;
};

// Does not wait for the worker. INVALID_ARGUMENT for an address that cannot be used.
Result<std::unique_ptr<Scorer>> ConnectScorer(const std::string& address);

}  // namespace cairn::cli
