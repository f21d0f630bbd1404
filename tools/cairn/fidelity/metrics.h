#pragma once
// The measures of fidelity, and how sure the numbers are.

#include <cstdint>
#include <span>
#include <vector>

namespace cairn::cli {

// The distance of two rows of logits for the same position.
struct Divergence {
  double kl = 0;        // KL(full || other) in nats, log-softmax in float64.
  double full_nll = 0;  // -log of the probability of the token that really follows.
  double other_nll = 0;
  bool same_top1 = false;
};
// REQUIRES: full.size() == other.size(), next < full.size(), no NaN.
Divergence Compare(std::span<const float> full, std::span<const float> other, int32_t next);

// The index of the largest; the first of equal ones.
int32_t ArgMax(std::span<const float> logits);

// Root mean square of the difference over that of the numbers, of all keys and of all values.
struct KvError {
  double k = 0;
  double v = 0;
};

struct Interval {
  double mean = 0;
  double low = 0;  // 95 %, percentile bootstrap over the groups.
  double high = 0;
};

// A ratio of sums over groups (documents, contexts): sum(value) / sum(weight). Groups are what is
// drawn again, since the numbers of one group depend on each other. Deterministic. No groups:
// zeros.
struct Group {
  double value = 0;
  double weight = 0;
};
Interval Bootstrap(std::span<const Group> groups);

}  // namespace cairn::cli
