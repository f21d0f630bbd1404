// All selection kernels for one instruction set. Lanes are those of the codecs: see lanes.h.

// clang-format off: the order matters.
// The order matters: each of these uses what stands before it.
// clang-format off
#include "kernels/cpu/selection/selection_makers.h"
#include "kernels/cpu/codec/lanes.h"
#include "kernels/cpu/selection/tile.inc.h"
#include "kernels/cpu/selection/softmax.inc.h"
#include "kernels/cpu/selection/attention.inc.h"
#include "kernels/cpu/selection/rows.inc.h"
#include "kernels/cpu/selection/scores.inc.h"
// clang-format on
// clang-format on

namespace cairn::kernels::CAIRN_KERNEL_NS {

static SelectionKernels Table(const char* name) {
  SelectionKernels k;
  k.name = name;
  k.window_attention = WindowAttention;
  k.accumulate_attention = AccumulateAttention;
  k.reduce_rows = ReduceRows;
  k.pool = Pool;
  k.chunk_means = ChunkMeans;
  k.entropy = Entropy;
  k.row_norms = RowNorms;
  k.sum_unit_rows = SumUnitRows;
  k.cosines = Cosines;
  k.lag_scores = LagScores;
  k.query_moments = QueryMoments;
  k.expected_logits = ExpectedLogits;
  k.softmax = Softmax;
  k.projected_norms = ProjectedNorms;
  k.count_non_finite = CountNonFiniteFloats;
  k.mark_top = MarkTop;
  k.gather_rows = GatherRows;
  k.turn_rows = TurnRows;
  return k;
}

}  // namespace cairn::kernels::CAIRN_KERNEL_NS
