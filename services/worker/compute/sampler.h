#pragma once
// Chooses the next token from logits.

#include <cstdint>
#include <span>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::worker {

struct SamplingOptions {
  // 0: greedy, the token with the highest logit (the lowest id among equals). Otherwise 0 < t <=
  // 100.
  float temperature = 0.0f;
  // Keep the k most likely tokens. 0: all.
  int32_t top_k = 0;
  // Keep the smallest set of most likely tokens with at least this probability. 0 < p <= 1.
  float top_p = 1.0f;
  uint64_t seed = 0;
};

// Names the field, its value and what was expected.
[[nodiscard]] Status Validate(const SamplingOptions& options);

// Reproducible on every machine: its own generator (SplitMix64), no library distribution.
// Thread-compatible.
class Sampler {
 public:
  // REQUIRES: Validate(options).ok().
  explicit Sampler(const SamplingOptions& options);

  // INVALID_ARGUMENT: there are no logits. INTERNAL: all of them are NaN.
  Result<int32_t> Sample(std::span<const float> logits);

 private:
  double NextUniform();  // [0, 1)

  const SamplingOptions options_;
  uint64_t state_;
  std::vector<int32_t> order_;  // Scratch.
  std::vector<double> weight_;  // Scratch.
};

}  // namespace cairn::worker
