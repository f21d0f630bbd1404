#pragma once
// The table of selection kernels (cairn/kernels/batch/unit_table.h) for a launcher, as
// forward_launches.h describes it.

#include "cairn/kernels/batch/unit_table.h"
#include "kernels/cuda/first_error.h"
#include "kernels/cuda/selection_launches.h"

namespace cairn::kernels::cuda {

template <typename Launcher, typename Args>
int LaunchUnitsOn(void* stream, const UnitsArgs<Args>& a) {
  return FirstErrorOf<Launcher>(stream, [&](auto launch) { LaunchUnits(launch, a); });
}

template <typename Launcher>
batch::UnitTable UnitTableOf(const char* name) {
  batch::UnitTable t;
  t.name = name;
  t.window_attention = LaunchUnitsOn<Launcher>;
  t.accumulate_attention = LaunchUnitsOn<Launcher>;
  t.reduce_rows = LaunchUnitsOn<Launcher>;
  t.pool = LaunchUnitsOn<Launcher>;
  t.chunk_means = LaunchUnitsOn<Launcher>;
  t.entropy = LaunchUnitsOn<Launcher>;
  t.row_norms = LaunchUnitsOn<Launcher>;
  t.sum_unit_rows = LaunchUnitsOn<Launcher>;
  t.cosines = LaunchUnitsOn<Launcher>;
  t.lag_scores = LaunchUnitsOn<Launcher>;
  t.query_moments = LaunchUnitsOn<Launcher>;
  t.expected_logits = LaunchUnitsOn<Launcher>;
  t.softmax = LaunchUnitsOn<Launcher>;
  t.projected_norms = LaunchUnitsOn<Launcher>;
  t.count_non_finite = LaunchUnitsOn<Launcher>;
  t.mark_top = LaunchUnitsOn<Launcher>;
  t.gather_rows = LaunchUnitsOn<Launcher>;
  t.turn_rows = LaunchUnitsOn<Launcher>;
  t.mark_budget = LaunchUnitsOn<Launcher>;
  t.split_budget = LaunchUnitsOn<Launcher>;
  t.combine_scores = LaunchUnitsOn<Launcher>;
  t.rank_scores = LaunchUnitsOn<Launcher>;
  t.chunk_marks = LaunchUnitsOn<Launcher>;
  t.spread_marks = LaunchUnitsOn<Launcher>;
  return t;
}

}  // namespace cairn::kernels::cuda
