#include "tests/conformance/kernels/emulated/emulated_selections.h"

#include "kernels/cuda/selection_launches.h"
#include "tests/conformance/kernels/emulated/run_now.h"

namespace cairn::kernels::testing {
namespace {

template <typename Args>
void Units(Stream&, const UnitsArgs<Args>& a) {
  cuda::LaunchUnits(RunNow(), a);
}
template <typename Args>
void Unit(Stream& stream, const Args& a) {
  Units(stream, UnitsArgs<Args>{&a, 1});
}

}  // namespace

const SelectionKernels& EmulatedSelectionKernels() {
  static const SelectionKernels kernels = [] {
    SelectionKernels k;
    k.name = "cuda-emulated";
    k.window_attention = Unit;
    k.accumulate_attention = Unit;
    k.reduce_rows = Unit;
    k.pool = Unit;
    k.chunk_means = Unit;
    k.entropy = Unit;
    k.row_norms = Unit;
    k.sum_unit_rows = Unit;
    k.cosines = Unit;
    k.lag_scores = Unit;
    k.query_moments = Unit;
    k.expected_logits = Unit;
    k.softmax = Unit;
    k.projected_norms = Unit;
    k.count_non_finite = Unit;
    k.mark_top = Unit;
    k.gather_rows = Unit;
    k.turn_rows = Unit;
    return k;
  }();
  return kernels;
}

const SelectionUnitKernels& EmulatedSelectionUnitKernels() {
  static const SelectionUnitKernels kernels = [] {
    SelectionUnitKernels k;
    k.name = "cuda-emulated";
    k.window_attention = Units;
    k.accumulate_attention = Units;
    k.reduce_rows = Units;
    k.pool = Units;
    k.chunk_means = Units;
    k.entropy = Units;
    k.row_norms = Units;
    k.sum_unit_rows = Units;
    k.cosines = Units;
    k.lag_scores = Units;
    k.query_moments = Units;
    k.expected_logits = Units;
    k.softmax = Units;
    k.projected_norms = Units;
    k.count_non_finite = Units;
    k.mark_top = Units;
    k.gather_rows = Units;
    k.turn_rows = Units;
    k.mark_budget = Units;
    k.split_budget = Units;
    k.combine_scores = Units;
    k.rank_scores = Units;
    k.chunk_marks = Units;
    k.spread_marks = Units;
    return k;
  }();
  return kernels;
}

}  // namespace cairn::kernels::testing
