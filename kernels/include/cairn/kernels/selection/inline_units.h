#pragma once
// SelectionUnitKernels of a backend that runs inline: one unit after another, with its own
// SelectionKernels. `kTable`: const SelectionKernels& (*)().

#include "cairn/kernels/selection/unit_kernels.h"

namespace cairn::kernels {

template <auto kTable>
struct InlineUnits {
  template <auto kOp, typename Args>
  static void Each(Stream& stream, const UnitsArgs<Args>& a) {
    for (int64_t i = 0; i < a.count; ++i) (kTable().*kOp)(stream, a.units[i]);
  }

  static int64_t Marked(const uint8_t* marks, int64_t n) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) count += marks[i];
    return count;
  }

  static void MarkBudget(Stream& stream, const UnitsArgs<MarkBudgetArgs>& all) {
    for (int64_t i = 0; i < all.count; ++i) {
      const MarkBudgetArgs& a = all.units[i];
      kTable().mark_top(stream, {a.scores, a.n, *a.rows - Marked(a.marks, a.n), a.marks});
    }
  }

  static void SplitBudget(Stream& stream, const UnitsArgs<SplitBudgetArgs>& all) {
    for (int64_t i = 0; i < all.count; ++i) {
      const SplitBudgetArgs& a = all.units[i];
      const int64_t n = a.heads * a.tokens;
      for (int64_t t = 0; t < n; ++t) a.taken[t] = a.marks[t];
      for (int64_t head = 0; head < a.heads; ++head) {
        uint8_t* const taken = a.taken + head * a.tokens;
        kTable().mark_top(stream, {a.scores + head * a.tokens, a.tokens,
                                   a.least - Marked(taken, a.tokens), taken});
      }
      kTable().mark_top(stream, {a.scores, n, a.total - Marked(a.taken, n), a.taken});
      for (int64_t head = 0; head < a.heads; ++head) {
        a.rows[head] = Marked(a.taken + head * a.tokens, a.tokens);
      }
    }
  }

  static void CombineScores(Stream&, const UnitsArgs<CombineScoresArgs>& all) {
    for (int64_t i = 0; i < all.count; ++i) {
      const CombineScoresArgs& a = all.units[i];
      for (int64_t k = 0; k < a.n; ++k) {
        a.y[k] = a.combination == Combination::kNegative ? -a.x[k] : (a.x[k] + a.other[k]) * 0.5f;
      }
    }
  }

  static void RankScores(Stream& stream, const UnitsArgs<RankScoresArgs>& all) {
    for (int64_t i = 0; i < all.count; ++i) {
      const RankScoresArgs& a = all.units[i];
      int64_t non_finite = 0;
      kTable().count_non_finite(stream, {a.x, a.n, &non_finite});
      for (int64_t k = 0; k < a.n; ++k) {
        int64_t before = 0;
        for (int64_t other = 0; other < a.n; ++other) {
          before += a.x[other] < a.x[k] || (a.x[other] == a.x[k] && other < k) ? 1 : 0;
        }
        a.y[k] = non_finite > 0 ? a.x[k] : static_cast<float>(before);
      }
    }
  }

  static void ChunkMarks(Stream&, const UnitsArgs<ChunkMarksArgs>& all) {
    for (int64_t i = 0; i < all.count; ++i) {
      const ChunkMarksArgs& a = all.units[i];
      for (int64_t t = 0; t < a.tokens; ++t) {
        uint8_t mark = t % a.chunk == 0 ? 0 : a.taken[t / a.chunk];
        for (int64_t head = 0; head < a.heads; ++head) mark |= a.marks[head * a.tokens + t];
        a.taken[t / a.chunk] = mark;
      }
    }
  }

  static void SpreadMarks(Stream&, const UnitsArgs<SpreadMarksArgs>& all) {
    for (int64_t i = 0; i < all.count; ++i) {
      const SpreadMarksArgs& a = all.units[i];
      for (int64_t k = 0; k < a.heads * a.tokens; ++k) {
        a.marks[k] |= a.taken[k % a.tokens / a.chunk];
      }
    }
  }

  static SelectionUnitKernels Table() {
    SelectionUnitKernels k;
    k.name = kTable().name;
    k.window_attention = Each<&SelectionKernels::window_attention>;
    k.accumulate_attention = Each<&SelectionKernels::accumulate_attention>;
    k.reduce_rows = Each<&SelectionKernels::reduce_rows>;
    k.pool = Each<&SelectionKernels::pool>;
    k.chunk_means = Each<&SelectionKernels::chunk_means>;
    k.entropy = Each<&SelectionKernels::entropy>;
    k.row_norms = Each<&SelectionKernels::row_norms>;
    k.sum_unit_rows = Each<&SelectionKernels::sum_unit_rows>;
    k.cosines = Each<&SelectionKernels::cosines>;
    k.lag_scores = Each<&SelectionKernels::lag_scores>;
    k.query_moments = Each<&SelectionKernels::query_moments>;
    k.expected_logits = Each<&SelectionKernels::expected_logits>;
    k.softmax = Each<&SelectionKernels::softmax>;
    k.projected_norms = Each<&SelectionKernels::projected_norms>;
    k.count_non_finite = Each<&SelectionKernels::count_non_finite>;
    k.mark_top = Each<&SelectionKernels::mark_top>;
    k.gather_rows = Each<&SelectionKernels::gather_rows>;
    k.turn_rows = Each<&SelectionKernels::turn_rows>;
    k.mark_budget = MarkBudget;
    k.split_budget = SplitBudget;
    k.combine_scores = CombineScores;
    k.rank_scores = RankScores;
    k.chunk_marks = ChunkMarks;
    k.spread_marks = SpreadMarks;
    return k;
  }
};

}  // namespace cairn::kernels
