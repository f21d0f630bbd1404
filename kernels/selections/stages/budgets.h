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
  std::span<const double> layer_weights;  // Of ScorerRun::LayerWeight.
};

// Rows that each head of a layer keeps in the mean, for each layer.
using LayerBudget = std::function<std::vector<int64_t>(const BudgetQuestion&)>;

// The same for all.
LayerBudget EvenLayers();
// Falling from the first layer to the last in even steps; the mean is an even budget's (PyramidKV,
// kvpress's form). An even budget where the last layer would keep fewer than `window` rows.
LayerBudget PyramidLayers(int64_t window, int64_t beta);
// In proportion to the layers' weights, each at least window + 1 and at most all (CAKE).
LayerBudget WeightedLayers(int64_t window);
// The layers of largest weight keep the first `sinks` and the last `recent` rows, as many layers as
// the whole budget asks for; the others keep all (after SimLayerKV).
LayerBudget LazyLayers(int64_t sinks, int64_t recent);

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
HeadSplit AdaptiveHeads(int64_t alpha);
// The best rows of the whole model.
HeadSplit WholeModel();
// The heads of the largest scores in the whole model keep all rows, as many as its budget has room
// for when each other one keeps its marked rows and `recent` more, and no more than an even share;
// the next head has what is left over. Ties: the lower layer, then the lower head. Scores of
// another shape: even budgets.
HeadSplit RankedHeads(HeadScores scores, int64_t recent);

// Rows of an even share that a head keeps whatever the others have: at least one unless alpha is 0.
constexpr int64_t SafeRows(int64_t rows, int64_t alpha) {
  if (alpha == 0) return 0;
  const int64_t safe = rows * alpha / 1000;
  return safe < 1 ? 1 : safe;
}

}  // namespace cairn::selections
