#pragma once
// The selection kernels for many units (selection/unit_kernels.h) as a driver of devices offers
// them: what forward_kernels.h of this folder says of streams and of errors holds here, too.
//
// The list of units lies in the host's memory and is copied by the launch. The memory that units
// point to is the device's.

#include "cairn/kernels/batch/forward_kernels.h"
#include "cairn/kernels/selection/unit_kernels.h"

namespace cairn::kernels::batch {

// Device::Kernels finds the table by these. The version grows with every change of the table or of
// the arguments.
inline constexpr char kUnitTableName[] = "selection-units";
inline constexpr uint32_t kUnitTableVersion = 1;

template <typename Args>
using UnitsLaunch = Op<UnitsArgs<Args>>;

// All entries are set; names are those of SelectionUnitKernels.
struct UnitTable {
  const char* name = nullptr;

  UnitsLaunch<WindowAttentionArgs> window_attention = nullptr;
  UnitsLaunch<AccumulateAttentionArgs> accumulate_attention = nullptr;
  UnitsLaunch<ReduceRowsArgs> reduce_rows = nullptr;
  UnitsLaunch<PoolArgs> pool = nullptr;
  UnitsLaunch<ChunkMeansArgs> chunk_means = nullptr;
  UnitsLaunch<EntropyArgs> entropy = nullptr;
  UnitsLaunch<RowNormsArgs> row_norms = nullptr;
  UnitsLaunch<SumUnitRowsArgs> sum_unit_rows = nullptr;
  UnitsLaunch<CosinesArgs> cosines = nullptr;
  UnitsLaunch<LagScoresArgs> lag_scores = nullptr;
  UnitsLaunch<QueryMomentsArgs> query_moments = nullptr;
  UnitsLaunch<ExpectedLogitsArgs> expected_logits = nullptr;
  UnitsLaunch<SoftmaxArgs> softmax = nullptr;
  UnitsLaunch<ProjectedNormsArgs> projected_norms = nullptr;
  UnitsLaunch<CountFloatsArgs> count_non_finite = nullptr;
  UnitsLaunch<MarkTopArgs> mark_top = nullptr;
  UnitsLaunch<GatherRowsArgs> gather_rows = nullptr;
  UnitsLaunch<TurnRowsArgs> turn_rows = nullptr;

  UnitsLaunch<MarkBudgetArgs> mark_budget = nullptr;
  UnitsLaunch<SplitBudgetArgs> split_budget = nullptr;
  UnitsLaunch<CombineScoresArgs> combine_scores = nullptr;
  UnitsLaunch<RankScoresArgs> rank_scores = nullptr;
  UnitsLaunch<ChunkMarksArgs> chunk_marks = nullptr;
  UnitsLaunch<SpreadMarksArgs> spread_marks = nullptr;
};

}  // namespace cairn::kernels::batch
