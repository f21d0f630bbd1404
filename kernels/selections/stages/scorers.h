#pragma once
// The scorers: what each looks at and how it ranks. Cards of the methods are in their folders.

#include <cstdint>
#include <memory>

#include "kernels/selections/stages/scorer.h"

namespace cairn::selections {

using ScorerPtr = std::unique_ptr<const Scorer>;

// How scores of neighbours are pooled, and whether before or after the mean over the query group.
// Means may change places; a maximum of means keeps other rows than a mean of maxima. Values of the
// parameter `maxpool`.
enum class Pooling : int64_t { kMean = 0, kMax = 1, kMaxOfGroup = 2 };

// Attention of the last `window` queries, pooled over 2 * reach + 1 neighbours, mean over rows and
// group (SnapKV).
ScorerPtr WindowScorer(int64_t window, int64_t reach, Pooling pooling);

// Attention of the last query, mean over all query heads: equal for all KV heads (TOVA).
ScorerPtr LastQueryScorer();

// Attention that each row got from all queries, summed; the last `recent` thousandths of the budget
// are the most recent rows (H2O).
ScorerPtr AccumulatedScorer(int64_t recent);

// The same sums, mean over all query heads: equal for all KV heads. The first `sinks` rows and the
// last one stay (PrefixKV).
ScorerPtr LayerSumsScorer(int64_t sinks);

// As AccumulatedScorer, of attention whose logits got noise of the standard Gumbel distribution,
// drawn again for each query and row (Keyformer, at its first temperature, 1).
ScorerPtr NoisyScorer(int64_t recent, uint64_t seed);

// Largest attention that any query of the window or head of the group pays, no less than the mean,
// times the values' projected norms; rows holding `mass` thousandths of the mean attention are
// marked (DefensiveKV). `relative`: the mass is a share of the attention to ranked rows, as in the
// authors' program, else of all attention, of which the window has its part.
ScorerPtr DefensiveScorer(int64_t window, int64_t reach, int64_t mass, bool relative);

// Mean plus gamma variances of the window's attention. LayerWeight is CAKE's preference, with
// temperatures in tenths.
ScorerPtr VarianceScorer(int64_t window, int64_t reach, int64_t gamma, int64_t space_tenths,
                         int64_t time_tenths);

// -||k||.
ScorerPtr KeyNormScorer();

// -cos(k, mean of the unit keys).
ScorerPtr KeyDifferenceScorer();

// Rank in its block of `lag` rows by spread relative to the next block; the first `sinks` rows and
// the last whole block with what follows it stay (LagKV).
ScorerPtr LagScorer(int64_t sinks, int64_t lag);

// Attention expected of the next `future` queries, plus epsilon, times ||v|| (ExpectedAttention).
ScorerPtr ExpectedScorer(int64_t sinks, int64_t future, float epsilon);

// Recency; the first `sinks` rows stay.
ScorerPtr RecencyScorer(int64_t sinks);

// Recency. LayerWeight is the attention that the last `queries` queries pay to the first `sinks`
// rows and to the `recent` rows before each of them, in the mean.
ScorerPtr LazinessScorer(int64_t sinks, int64_t recent, int64_t queries);

}  // namespace cairn::selections
