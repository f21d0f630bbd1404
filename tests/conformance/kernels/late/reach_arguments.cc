#include "tests/conformance/kernels/late/reach_arguments.h"

namespace cairn::kernels::testing {
namespace {

template <typename... T>
void ReachAll(Access& access, T**... pointers) {
  (access.Reach(pointers), ...);
}

void ReachMatrix(Access& access, PackedView* w) {
  const std::byte* data = w->data();
  access.Reach(&data);
  *w = w->At(data);
}

void ReachRows(Access& access, TokenRows* rows) { access.Reach(&rows->kv, rows->end); }

}  // namespace

void Reach(Access& access, RmsNormArgs* a) { ReachAll(access, &a->x, &a->weight, &a->y); }

void Reach(Access& access, RopeArgs* a) { ReachAll(access, &a->x, &a->cosine, &a->sine); }

void Reach(Access& access, SwiGluArgs* a) { ReachAll(access, &a->gate, &a->up, &a->y); }

void Reach(Access& access, ToHalfArgs* a) { ReachAll(access, &a->x, &a->y); }

void Reach(Access& access, FromHalfArgs* a) { ReachAll(access, &a->x, &a->y); }

void Reach(Access& access, ToBfloat16Args* a) { ReachAll(access, &a->x, &a->y); }

void Reach(Access& access, ArgMaxArgs* a) { ReachAll(access, &a->x, &a->index); }

void Reach(Access& access, MatVecArgs* a) {
  ReachMatrix(access, &a->w);
  ReachAll(access, &a->x, &a->activation, &a->y);
}

void Reach(Access& access, GemmArgs* a) {
  ReachMatrix(access, &a->w);
  ReachAll(access, &a->a, &a->a_bf16, &a->y, &a->scratch);
}

void Reach(Access& access, AttentionArgs* a) {
  access.Reach(&a->kv, a->more ? 0 : a->first_position + a->rows);
  access.Reach(&a->prefix, a->prefix_rows);
  ReachAll(access, &a->q, &a->out, &a->scratch, &a->state);
}

void Reach(Access& access, AttentionPartArgs* a) {
  // An empty part may lie behind the pages.
  access.Reach(&a->kv, a->begin < a->end ? a->end : 0);
  ReachAll(access, &a->q, &a->acc, &a->max, &a->sum, &a->scratch);
}

void Reach(Access& access, AttentionMergeArgs* a) {
  ReachAll(access, &a->acc, &a->max, &a->sum, &a->out);
}

void ReachParams(Access& access, TurboParams* params) { access.Reach(&params->signs); }

void Reach(Access& access, CountNonFiniteArgs* a) { ReachAll(access, &a->x.data, &a->count); }

void Reach(Access& access, LatticeEncodeArgs* a) {
  ReachAll(access, &a->x.data, &a->step, &a->out, &a->faults);
}

void Reach(Access& access, LatticeDecodeArgs* a) {
  ReachAll(access, &a->in, &a->y.data, &a->faults);
}

void Reach(Access& access, WindowAttentionArgs* a) {
  ReachRows(access, &a->keys);
  ReachAll(access, &a->q, &a->out, &a->scratch);
}

void Reach(Access& access, AccumulateAttentionArgs* a) {
  ReachRows(access, &a->keys);
  ReachAll(access, &a->q, &a->sums, &a->weights, &a->scratch);
}

void Reach(Access& access, ReduceRowsArgs* a) { ReachAll(access, &a->x, &a->y); }

void Reach(Access& access, PoolArgs* a) { ReachAll(access, &a->x, &a->y); }

void Reach(Access& access, ChunkMeansArgs* a) { ReachAll(access, &a->x, &a->y); }

void Reach(Access& access, EntropyArgs* a) { ReachAll(access, &a->p, &a->entropy); }

void Reach(Access& access, RowNormsArgs* a) {
  ReachRows(access, &a->x);
  ReachAll(access, &a->norms, &a->scratch);
}

void Reach(Access& access, SumUnitRowsArgs* a) {
  ReachRows(access, &a->x);
  ReachAll(access, &a->norms, &a->sum);
}

void Reach(Access& access, CosinesArgs* a) {
  ReachRows(access, &a->x);
  ReachAll(access, &a->norms, &a->v, &a->cosines, &a->scratch);
}

void Reach(Access& access, LagScoresArgs* a) {
  ReachRows(access, &a->x);
  ReachRows(access, &a->next);
  ReachAll(access, &a->scores, &a->scratch);
}

void Reach(Access& access, QueryMomentsArgs* a) { ReachAll(access, &a->q, &a->sum, &a->products); }

void Reach(Access& access, ExpectedLogitsArgs* a) {
  ReachRows(access, &a->keys);
  ReachAll(access, &a->mean, &a->covariance, &a->logits, &a->scratch);
}

void Reach(Access& access, SoftmaxArgs* a) { ReachAll(access, &a->x); }

void Reach(Access& access, ProjectedNormsArgs* a) {
  ReachRows(access, &a->values);
  ReachAll(access, &a->w, &a->norms, &a->scratch);
}

void Reach(Access& access, CountFloatsArgs* a) { ReachAll(access, &a->x, &a->count); }

void Reach(Access& access, MarkTopArgs* a) { ReachAll(access, &a->scores, &a->marks); }

void Reach(Access& access, GatherRowsArgs* a) {
  ReachRows(access, &a->x);
  ReachAll(access, &a->rows, &a->out);
}

void Reach(Access& access, TurnRowsArgs* a) { ReachAll(access, &a->x, &a->cosine, &a->sine); }

void Reach(Access& access, MarkBudgetArgs* a) { ReachAll(access, &a->scores, &a->rows, &a->marks); }

void Reach(Access& access, SplitBudgetArgs* a) {
  ReachAll(access, &a->scores, &a->marks, &a->taken, &a->rows);
}

void Reach(Access& access, CombineScoresArgs* a) { ReachAll(access, &a->x, &a->other, &a->y); }

void Reach(Access& access, RankScoresArgs* a) { ReachAll(access, &a->x, &a->y); }

void Reach(Access& access, ChunkMarksArgs* a) { ReachAll(access, &a->marks, &a->taken); }

void Reach(Access& access, SpreadMarksArgs* a) { ReachAll(access, &a->taken, &a->marks); }

void Reach(Access& access, SliceForm* form) { access.Reach(&form->signs); }

void Reach(Access& access, SliceTask* slice) {
  ReachAll(access, &slice->encoded, &slice->k, &slice->v, &slice->faults, &slice->scratch,
           &slice->encoded_bytes);
}

void Reach(Access& access, HashRun* run) { ReachAll(access, &run->in, &run->hash, &run->faults); }

}  // namespace cairn::kernels::testing
