#pragma once
// Which kernels a selection's operation launches for many units, and in what shape. `launch`: see
// launches.h.

#include <algorithm>
#include <memory>

#include "cairn/kernels/selection/unit_kernels.h"
#include "kernels/cuda/marks.cuh"
#include "kernels/cuda/row_scores.cuh"
#include "kernels/cuda/score_rows.cuh"
#include "kernels/cuda/shape.h"
#include "kernels/cuda/window_scores.cuh"

namespace cairn::kernels::cuda {

// Calls body(batch) for as many units at a time as a launch takes.
template <typename Args, typename Body>
void ForUnitBatches(const UnitsArgs<Args>& a, Body body) {
  const auto batch = std::make_unique<UnitBatch<Args>>();  // Too large for a small stack.
  for (int64_t first = 0; first < a.count; first += kMostUnits<Args>) {
    batch->count = static_cast<int32_t>(std::min<int64_t>(kMostUnits<Args>, a.count - first));
    std::copy_n(a.units + first, batch->count, batch->units);
    body(*batch);
  }
}

// The most pieces of `size` that a unit of the batch has.
template <typename Args, typename Work>
unsigned MostPieces(const UnitBatch<Args>& batch, int64_t size, Work work) {
  int64_t most = 0;
  for (int32_t i = 0; i < batch.count; ++i) most = std::max<int64_t>(most, work(batch.units[i]));
  return static_cast<unsigned>((most + size - 1) / size);
}

// Blocks of `threads` threads for the pieces of work that each unit has; none where there are none.
template <typename Launch, typename Kernel, typename Args, typename Work>
void LaunchPieces(Launch launch, Kernel kernel, const UnitsArgs<Args>& a, int64_t size,
                  unsigned threads, size_t shared_bytes, Work work) {
  ForUnitBatches(a, [&](const UnitBatch<Args>& batch) {
    const unsigned pieces = MostPieces(batch, size, work);
    if (pieces == 0) return;
    launch(kernel, Shape{{pieces, 1, static_cast<unsigned>(batch.count)}, threads, shared_bytes},
           batch);
  });
}

template <typename Launch>
void LaunchUnits(Launch launch, const UnitsArgs<WindowAttentionArgs>& a) {
  ForUnitBatches(a, [&](const UnitBatch<WindowAttentionArgs>& batch) {
    const auto units = static_cast<unsigned>(batch.count);
    const auto rows = [](const WindowAttentionArgs& unit) { return unit.rows; };
    const unsigned tiles = MostPieces(batch, kProductTile, [](const WindowAttentionArgs& unit) {
      return unit.rows > 0 ? unit.keys.end : 0;
    });
    if (tiles == 0) return;
    launch(cairn_window_logits,
           Shape{{tiles, MostPieces(batch, kProductTile, rows), units},
                 kProductThreads,
                 ProductTile::kSharedBytes},
           batch);
    launch(cairn_window_weights,
           Shape{{MostPieces(batch, kRowsOfBlock, rows), 1, units}, kSoftmaxThreads, 0}, batch);
  });
}

template <typename Launch>
void LaunchUnits(Launch launch, const UnitsArgs<AccumulateAttentionArgs>& a) {
  ForUnitBatches(a, [&](const UnitBatch<AccumulateAttentionArgs>& batch) {
    const auto units = static_cast<unsigned>(batch.count);
    for (int first = 0;; first += static_cast<int>(kAccumulatedRows)) {
      const auto columns = [&](const AccumulateAttentionArgs& unit) {
        const int64_t end = std::min<int64_t>(unit.rows, first + kAccumulatedRows);
        return unit.rows > first ? unit.first_row + end : 0;
      };
      const unsigned tiles = MostPieces(batch, kProductTile, columns);
      if (tiles == 0) return;
      launch(cairn_summed_logits,
             Shape{{tiles, 1, units}, kProductThreads, ProductTile::kSharedBytes}, batch, first);
      launch(cairn_summed_exponentials,
             Shape{{kAccumulatedRows / kRowsOfBlock, 1, units}, kSoftmaxThreads, 0}, batch, first);
      launch(cairn_sum_weights, Shape{{MostPieces(batch, 256, columns), 1, units}, 256, 0}, batch,
             first);
    }
  });
}
static_assert(kAccumulatedRows <= kProductTile && kAccumulatedRows % kRowsOfBlock == 0);

// ---- rows of scores ----

template <typename Launch>
void LaunchUnits(Launch launch, const UnitsArgs<ReduceRowsArgs>& a) {
  LaunchPieces(launch, cairn_reduce_rows, a, kScoreThreads, kScoreThreads, 0,
               [](const ReduceRowsArgs& unit) { return unit.cols; });
}
template <typename Launch>
void LaunchUnits(Launch launch, const UnitsArgs<PoolArgs>& a) {
  LaunchPieces(launch, cairn_pool, a, kScoreThreads, kScoreThreads, 0,
               [](const PoolArgs& unit) { return unit.n; });
}
template <typename Launch>
void LaunchUnits(Launch launch, const UnitsArgs<ChunkMeansArgs>& a) {
  LaunchPieces(launch, cairn_chunk_means, a, kScoreThreads, kScoreThreads, 0,
               [](const ChunkMeansArgs& unit) { return (unit.n + unit.chunk - 1) / unit.chunk; });
}
template <typename Launch>
void LaunchUnits(Launch launch, const UnitsArgs<CountFloatsArgs>& a) {
  LaunchPieces(launch, cairn_count_floats, a, 1, kScoreThreads, 16,
               [](const CountFloatsArgs&) { return 1; });
}
template <typename Launch>
void LaunchUnits(Launch launch, const UnitsArgs<GatherRowsArgs>& a) {
  // About four pieces of 16 bytes for a thread.
  LaunchPieces(launch, cairn_gather_rows, a, 32 * kScoreThreads, kScoreThreads, 0,
               [](const GatherRowsArgs& unit) { return unit.n * unit.x.kv.head_dim; });
}
template <typename Launch>
void LaunchUnits(Launch launch, const UnitsArgs<TurnRowsArgs>& a) {
  LaunchPieces(launch, cairn_turn_rows, a, 4 * kScoreThreads, kScoreThreads, 0,
               [](const TurnRowsArgs& unit) { return unit.rows * (unit.rope_dim / 2); });
}

template <typename Launch>
void LaunchUnits(Launch launch, const UnitsArgs<CombineScoresArgs>& a) {
  LaunchPieces(launch, cairn_combine_scores, a, kScoreThreads, kScoreThreads, 0,
               [](const CombineScoresArgs& unit) { return unit.n; });
}
template <typename Launch>
void LaunchUnits(Launch launch, const UnitsArgs<RankScoresArgs>& a) {
  LaunchPieces(launch, cairn_rank_scores, a, kScoreThreads, kScoreThreads, 0,
               [](const RankScoresArgs& unit) { return unit.n; });
}
template <typename Launch>
void LaunchUnits(Launch launch, const UnitsArgs<ChunkMarksArgs>& a) {
  LaunchPieces(
      launch, cairn_chunk_marks, a, kScoreThreads, kScoreThreads, 0,
      [](const ChunkMarksArgs& unit) { return (unit.tokens + unit.chunk - 1) / unit.chunk; });
}
template <typename Launch>
void LaunchUnits(Launch launch, const UnitsArgs<SpreadMarksArgs>& a) {
  LaunchPieces(launch, cairn_spread_marks, a, kScoreThreads, kScoreThreads, 0,
               [](const SpreadMarksArgs& unit) { return unit.tokens; });
}

// Rows that have 16 lanes each.
template <typename Launch, typename Kernel, typename Args>
void LaunchRowUnits(Launch launch, Kernel kernel, const UnitsArgs<Args>& a) {
  ForUnitBatches(a, [&](const UnitBatch<Args>& batch) {
    const int blocks = (batch.count + kRowsOfBlock - 1) / kRowsOfBlock;
    launch(kernel, Shape{{static_cast<unsigned>(blocks), 1, 1}, kSoftmaxThreads, 0}, batch);
  });
}
template <typename Launch>
void LaunchUnits(Launch launch, const UnitsArgs<SoftmaxArgs>& a) {
  LaunchRowUnits(launch, cairn_softmax, a);
}
template <typename Launch>
void LaunchUnits(Launch launch, const UnitsArgs<EntropyArgs>& a) {
  LaunchRowUnits(launch, cairn_entropy, a);
}

// ---- single keys and values ----

template <typename Launch>
void LaunchUnits(Launch launch, const UnitsArgs<RowNormsArgs>& a) {
  LaunchPieces(launch, cairn_row_norms, a, kScoreTokens, kScoreTokens, TokenScoreTile::kSharedBytes,
               [](const RowNormsArgs& unit) { return unit.x.count(); });
}
template <typename Launch>
void LaunchUnits(Launch launch, const UnitsArgs<SumUnitRowsArgs>& a) {
  LaunchPieces(launch, cairn_sum_unit_rows, a, 1, kUnitRowsThreads,
               kUnitRowsThreads * (sizeof(float) + sizeof(void*)),
               [](const SumUnitRowsArgs& unit) { return unit.x.count() > 0 ? 1 : 0; });
}
template <typename Launch>
void LaunchUnits(Launch launch, const UnitsArgs<CosinesArgs>& a) {
  LaunchPieces(launch, cairn_cosines, a, kScoreTokens, kScoreTokens,
               TokenScoreTile::kSharedBytes + kTileChannels * sizeof(float),
               [](const CosinesArgs& unit) { return unit.x.count(); });
}
template <typename Launch>
void LaunchUnits(Launch launch, const UnitsArgs<LagScoresArgs>& a) {
  LaunchPieces(launch, cairn_lag_scores, a, kScoreTokens, kScoreTokens,
               TokenScoreTile::kSharedBytes + 2 * kMaxHeadDim * sizeof(float),
               [](const LagScoresArgs& unit) { return unit.x.count(); });
  const auto scores = std::make_unique<SoftmaxArgs[]>(static_cast<size_t>(a.count));
  for (int64_t i = 0; i < a.count; ++i) {
    scores[static_cast<size_t>(i)] = {a.units[i].scores,
                                      std::max<int64_t>(0, a.units[i].x.count())};
  }
  LaunchUnits(launch, UnitsArgs<SoftmaxArgs>{scores.get(), a.count});
}
template <typename Launch>
void LaunchUnits(Launch launch, const UnitsArgs<ExpectedLogitsArgs>& a) {
  LaunchPieces(launch, cairn_expected_logits, a, kProductTile, kProductThreads,
               ProductTile::kSharedBytes + kFoldSharedBytes,
               [](const ExpectedLogitsArgs& unit) { return unit.keys.count(); });
}
template <typename Launch>
void LaunchUnits(Launch launch, const UnitsArgs<ProjectedNormsArgs>& a) {
  LaunchPieces(launch, cairn_projected_norms, a, kProductTile, kProductThreads,
               ProductTile::kSharedBytes + kFoldSharedBytes,
               [](const ProjectedNormsArgs& unit) { return unit.values.count(); });
}
template <typename Launch>
void LaunchUnits(Launch launch, const UnitsArgs<QueryMomentsArgs>& a) {
  ForUnitBatches(a, [&](const UnitBatch<QueryMomentsArgs>& batch) {
    const unsigned tiles =
        MostPieces(batch, kMomentTile, [](const QueryMomentsArgs& unit) { return unit.dim; });
    if (tiles == 0) return;
    launch(cairn_query_moments,
           Shape{{tiles, tiles, static_cast<unsigned>(batch.count)}, kMomentTile * kMomentTile, 0},
           batch);
  });
}

// ---- marks ----

template <typename Launch>
void LaunchUnits(Launch launch, const UnitsArgs<MarkTopArgs>& a) {
  LaunchPieces(launch, cairn_mark_top, a, 1, kMarkThreads, Marker::kSharedBytes,
               [](const MarkTopArgs& unit) { return unit.n > 0 && unit.count > 0 ? 1 : 0; });
}
template <typename Launch>
void LaunchUnits(Launch launch, const UnitsArgs<MarkBudgetArgs>& a) {
  LaunchPieces(launch, cairn_mark_budget, a, 1, kMarkThreads, Marker::kSharedBytes,
               [](const MarkBudgetArgs& unit) { return unit.n > 0 ? 1 : 0; });
}
template <typename Launch>
void LaunchUnits(Launch launch, const UnitsArgs<SplitBudgetArgs>& a) {
  const auto heads = [](const SplitBudgetArgs& unit) { return unit.heads; };
  const auto some = [](const SplitBudgetArgs& unit) { return unit.heads > 0 ? 1 : 0; };
  constexpr size_t kBytes = Marker::kSharedBytes;
  LaunchPieces(launch, cairn_split_heads, a, 1, kMarkThreads, kBytes, heads);
  LaunchPieces(launch, cairn_split_rest, a, 1, kMarkThreads, kBytes, some);
  LaunchPieces(launch, cairn_split_counts, a, 1, kMarkThreads, kBytes, heads);
}

}  // namespace cairn::kernels::cuda
