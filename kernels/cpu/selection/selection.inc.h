// All selection kernels for one instruction set. Lanes are those of the codecs: see lanes.inc.h.

// clang-format off: the order matters.
// The order matters: each of these uses what stands before it.
// clang-format off
#include "kernels/cpu/selection/selection_makers.h"
#include "cairn/kernels/inline_op.h"
#include "kernels/cpu/codec/lanes.inc.h"
#include "kernels/cpu/register_blocks.inc.h"
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
  k.window_attention = InlineOp<WindowAttention>::Run;
  k.accumulate_attention = InlineOp<AccumulateAttention>::Run;
  k.reduce_rows = InlineOp<ReduceRows>::Run;
  k.pool = InlineOp<Pool>::Run;
  k.chunk_means = InlineOp<ChunkMeans>::Run;
  k.entropy = InlineOp<Entropy>::Run;
  k.row_norms = InlineOp<RowNorms>::Run;
  k.sum_unit_rows = InlineOp<SumUnitRows>::Run;
  k.cosines = InlineOp<Cosines>::Run;
  k.lag_scores = InlineOp<LagScores>::Run;
  k.query_moments = InlineOp<QueryMoments>::Run;
  k.expected_logits = InlineOp<ExpectedLogits>::Run;
  k.softmax = InlineOp<Softmax>::Run;
  k.projected_norms = InlineOp<ProjectedNorms>::Run;
  k.count_non_finite = InlineOp<CountNonFiniteFloats>::Run;
  k.mark_top = InlineOp<MarkTop>::Run;
  k.gather_rows = InlineOp<GatherRows>::Run;
  k.turn_rows = InlineOp<TurnRows>::Run;
  return k;
}

}  // namespace cairn::kernels::CAIRN_KERNEL_NS
