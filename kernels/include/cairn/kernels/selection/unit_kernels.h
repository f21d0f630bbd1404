#pragma once
// The selection kernels for many units at a time, for hardware on which a launch costs more than a
// unit. A unit is what one call of SelectionKernels gets, mostly one head of one layer: a segment
// of a model with 32 layers and 32 query heads has 1024 of them.
//
// An operation does to each unit what the entry of that name in SelectionKernels does, to the last
// bit. Units of one call may differ in every field, but none may write what another one reads or
// writes. The list of units lies in the host's memory, and a launch copies it; what units point to
// is the backend's memory. An empty list is allowed.

#include <cstdint>

#include "cairn/kernels/selection/selection_kernels.h"
#include "cairn/kernels/stream.h"

namespace cairn::kernels {

template <typename Args>
struct UnitsArgs {
  const Args* units = nullptr;
  int64_t count = 0;
};
template <typename Args>
using UnitsOp = void (*)(Stream&, const UnitsArgs<Args>&);

// As MarkTopArgs, when another operation has computed the number: afterwards *rows of the numbers
// have marks, or all if there are fewer. Numbers that were marked before keep their marks.
struct MarkBudgetArgs {
  const float* scores = nullptr;
  int64_t n = 0;
  const int64_t* rows = nullptr;  // 1
  uint8_t* marks = nullptr;       // [n], 0 or 1
};

// Budgets that heads compete for. Each head first takes its best rows until it has `least`, then
// the best rows of all heads are taken until there are `total`. Rows with marks are taken before.
// Between equal scores the lower head is first, then the earlier row. With all heads of a layer
// these are Ada-KV's budgets (kernels/selections/stages: AdaptiveHeads), with those of all layers
// and least = 0 the best rows of the whole model.
struct SplitBudgetArgs {
  const float* scores = nullptr;   // [heads][tokens]
  const uint8_t* marks = nullptr;  // [heads][tokens], 0 or 1
  int64_t heads = 0;
  int64_t tokens = 0;
  int64_t least = 0;
  int64_t total = 0;
  uint8_t* taken = nullptr;  // [heads][tokens]: marks of the rows that were taken.
  int64_t* rows = nullptr;   // [heads]: how many these are.
};

// The operations of methods on scores between the operations above, so that no score has to come to
// the host.

// y[i] of one or two rows of scores. `y` may be `x` or `other`.
enum class Combination {
  kNegative,  // -x
  kMean,      // (x + other) * 0.5
};
struct CombineScoresArgs {
  Combination combination = Combination::kNegative;
  const float* x = nullptr;
  const float* other = nullptr;  // kMean alone.
  int64_t n = 0;
  float* y = nullptr;
};

// y[i] = how many numbers are smaller than x[i], or equal and before it. With a number that is not
// finite, y = x, so that it is seen later. Every number is compared with every other.
struct RankScoresArgs {
  const float* x = nullptr;
  int64_t n = 0;
  float* y = nullptr;  // [n]; not x.
};

// taken[c] = 1 where a row of chunk c has a mark in one of the heads, else 0.
struct ChunkMarksArgs {
  const uint8_t* marks = nullptr;  // [heads][tokens], 0 or 1
  int64_t heads = 0;
  int64_t tokens = 0;
  int64_t chunk = 1;
  uint8_t* taken = nullptr;  // [ceil(tokens / chunk)]
};

// Marks the rows of the chunks that are taken, in all heads; other marks stay.
struct SpreadMarksArgs {
  const uint8_t* taken = nullptr;  // [ceil(tokens / chunk)], 0 or 1
  int64_t heads = 0;
  int64_t tokens = 0;
  int64_t chunk = 1;
  uint8_t* marks = nullptr;  // [heads][tokens], 0 or 1
};

struct SelectionUnitKernels {
  // "reference", Name(isa), or the name of another backend.
  const char* name = nullptr;

  UnitsOp<WindowAttentionArgs> window_attention = nullptr;
  UnitsOp<AccumulateAttentionArgs> accumulate_attention = nullptr;
  UnitsOp<ReduceRowsArgs> reduce_rows = nullptr;
  UnitsOp<PoolArgs> pool = nullptr;
  UnitsOp<ChunkMeansArgs> chunk_means = nullptr;
  UnitsOp<EntropyArgs> entropy = nullptr;
  UnitsOp<RowNormsArgs> row_norms = nullptr;
  UnitsOp<SumUnitRowsArgs> sum_unit_rows = nullptr;
  UnitsOp<CosinesArgs> cosines = nullptr;
  UnitsOp<LagScoresArgs> lag_scores = nullptr;
  UnitsOp<QueryMomentsArgs> query_moments = nullptr;
  UnitsOp<ExpectedLogitsArgs> expected_logits = nullptr;
  UnitsOp<SoftmaxArgs> softmax = nullptr;
  UnitsOp<ProjectedNormsArgs> projected_norms = nullptr;
  UnitsOp<CountFloatsArgs> count_non_finite = nullptr;
  UnitsOp<MarkTopArgs> mark_top = nullptr;
  UnitsOp<GatherRowsArgs> gather_rows = nullptr;
  UnitsOp<TurnRowsArgs> turn_rows = nullptr;

  UnitsOp<MarkBudgetArgs> mark_budget = nullptr;
  UnitsOp<SplitBudgetArgs> split_budget = nullptr;
  UnitsOp<CombineScoresArgs> combine_scores = nullptr;
  UnitsOp<RankScoresArgs> rank_scores = nullptr;
  UnitsOp<ChunkMarksArgs> chunk_marks = nullptr;
  UnitsOp<SpreadMarksArgs> spread_marks = nullptr;
};

}  // namespace cairn::kernels
