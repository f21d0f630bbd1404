#pragma once
// Second stage of a selection: how many rows each layer and KV head keeps. Integers throughout.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cairn/kernels/selection/selection_kernels.h"
#include "kernels/selections/head_scores.h"
#include "kernels/selections/stages/grid.h"

namespace cairn::selections {

struct BudgetQuestion {
  int32_t layers = 0;
  int64_t tokens = 0;
  int64_t keep = 0;                       // In units of 1 / kKeepUnits.
  std::span<const double> layer_weights;  // The weights of ScorerRun::LayerWeight.
  const Scores* scores = nullptr;         // For budgets that hang on them.
  const Marks* marks = nullptr;
};

// Rows that each head of a layer keeps in the mean, for each layer.
using LayerBudget = std::function<std::vector<int64_t>(const BudgetQuestion&)>;

// The same for all.
LayerBudget EvenLayers();
// Falling from the first layer to the last in even steps; the mean is an even budget's (PyramidKV).
// `beside`: the budget that falls does not include the window, so that every budget has its
// pyramid, and the last layer keeps at least one row more than the window (the authors' form). Else
// the window is in the pyramid, and budgets are even where the last layer would keep fewer rows
// (kvpress's form).
LayerBudget PyramidLayers(int64_t window, int64_t beta, bool beside);
// In proportion to the layers' weights, each at least window + 1 and at most all (CAKE).
LayerBudget WeightedLayers(int64_t window);
// The layers of largest weight keep the first `sinks` and the last `recent` rows, as many layers as
// the whole budget asks for; the others keep all (after SimLayerKV).
LayerBudget LazyLayers(int64_t sinks, int64_t recent);
// Gives each layer a number of rows, in addition to its marked ones, so that all layers hold about
// the same share of their scores' sum (PrefixKV): first come the rows before which the least of
// that sum lies in their layer; if that is equal, the row of the lower layer. REQUIRES: scores and
// marks are those of a layer, equal for its heads.
LayerBudget PrefixLayers();

// Splits the layers' rows among their heads. `rows`: of each layer, as a LayerBudget gives them.
// Returns the rows of each head, [layers][heads]; marked rows count.
struct SplitQuestion {
  const Scores& scores;
  const Marks& marks;
  std::span<const int64_t> rows;
  const kernels::SelectionKernels& kernels;
  kernels::Stream& stream;
};
using HeadSplit = std::function<std::vector<int64_t>(const SplitQuestion&)>;

HeadSplit EvenHeads();
// Each head its best alpha thousandths of an even share, then the best of the layer (Ada-KV,
// kvpress's form). Ties: the lower head, then the earlier row.
HeadSplit FlooredHeads(int64_t alpha);
// (1 - alpha) of what each head has among the best rows of the layer, and alpha of an even share;
// fractions by largest remainders, of equal ones the lower head's first (Ada-KV, the authors'
// form). Marked rows are kept in addition.
HeadSplit MixedHeads(int64_t alpha);
// One of the two.
inline HeadSplit AdaptiveHeads(int64_t alpha, bool mix = false) {
  return mix ? MixedHeads(alpha) : FlooredHeads(alpha);
}
// The best rows of the whole model.
HeadSplit WholeModel();
// The heads of the largest scores in the whole model keep all rows, as many as its budget has room
// for when each other one keeps its marked rows and `recent` more, and no more than an even share;
// the next head has what is left over. Ties: the lower layer, then the lower head. Scores of
// another shape: even budgets.
HeadSplit RankedHeads(HeadScores scores, int64_t recent);
// In addition to its marked rows each head has 1 - 1000 / beta of an even share, and of the rest of
// the model's rows a part in proportion to its score, by largest remainders (HeadKV). A head that
// cannot use its part leaves the rest to those that can. Scores below 0 count as 0. Scores of
// another shape, or all 0: even budgets. REQUIRES: beta >= 1000.
HeadSplit ScoredHeads(HeadScores scores, int64_t beta);

// Rows of an even share that a head keeps whatever the others have: at least one unless alpha is 0.
constexpr int64_t SafeRows(int64_t rows, int64_t alpha) {
  if (alpha == 0) return 0;
  const int64_t safe = rows * alpha / 1000;
  return safe < 1 ? 1 : safe;
}

}  // namespace cairn::selections
