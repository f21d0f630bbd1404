#pragma once
// Which fields of each operation's arguments point to the backend's memory.

#include "cairn/kernels/backend.h"
#include "tests/conformance/kernels/late/late_stream.h"

namespace cairn::kernels::testing {

// Each replaces all addresses in the arguments.

// Arguments of the forward pass.
void Reach(Access& access, RmsNormArgs* a);
void Reach(Access& access, RopeArgs* a);
void Reach(Access& access, SwiGluArgs* a);
void Reach(Access& access, ToHalfArgs* a);
void Reach(Access& access, FromHalfArgs* a);
void Reach(Access& access, ToBfloat16Args* a);
void Reach(Access& access, ArgMaxArgs* a);
void Reach(Access& access, MatVecArgs* a);
void Reach(Access& access, GemmArgs* a);
void Reach(Access& access, AttentionArgs* a);
void Reach(Access& access, AttentionPartArgs* a);
void Reach(Access& access, AttentionMergeArgs* a);

// Arguments of codecs.
void ReachParams(Access& access, TurboParams* params);
template <typename Params>
void ReachParams(Access&, Params*) {}  // Other parameters are numbers.
template <typename Params>
void Reach(Access& access, EncodeArgs<Params>* a) {
  access.Reach(&a->x.data);
  ReachParams(access, &a->params);
  access.Reach(&a->out);
  access.Reach(&a->faults);
}
template <typename Params>
void Reach(Access& access, DecodeArgs<Params>* a) {
  access.Reach(&a->in);
  ReachParams(access, &a->params);
  access.Reach(&a->y.data);
  access.Reach(&a->faults);
}
void Reach(Access& access, CountNonFiniteArgs* a);
void Reach(Access& access, LatticeEncodeArgs* a);
void Reach(Access& access, LatticeDecodeArgs* a);

// Arguments of selections.
void Reach(Access& access, WindowAttentionArgs* a);
void Reach(Access& access, AccumulateAttentionArgs* a);
void Reach(Access& access, ReduceRowsArgs* a);
void Reach(Access& access, PoolArgs* a);
void Reach(Access& access, ChunkMeansArgs* a);
void Reach(Access& access, EntropyArgs* a);
void Reach(Access& access, RowNormsArgs* a);
void Reach(Access& access, SumUnitRowsArgs* a);
void Reach(Access& access, CosinesArgs* a);
void Reach(Access& access, LagScoresArgs* a);
void Reach(Access& access, QueryMomentsArgs* a);
void Reach(Access& access, ExpectedLogitsArgs* a);
void Reach(Access& access, SoftmaxArgs* a);
void Reach(Access& access, ProjectedNormsArgs* a);
void Reach(Access& access, CountFloatsArgs* a);
void Reach(Access& access, MarkTopArgs* a);
void Reach(Access& access, GatherRowsArgs* a);
void Reach(Access& access, TurnRowsArgs* a);
void Reach(Access& access, MarkBudgetArgs* a);
void Reach(Access& access, SplitBudgetArgs* a);
void Reach(Access& access, CombineScoresArgs* a);
void Reach(Access& access, RankScoresArgs* a);
void Reach(Access& access, ChunkMarksArgs* a);
void Reach(Access& access, SpreadMarksArgs* a);

// Arguments of slices: elements of the lists.
void Reach(Access& access, SliceForm* form);
void Reach(Access& access, SliceTask* slice);
void Reach(Access& access, HashRun* run);

}  // namespace cairn::kernels::testing
