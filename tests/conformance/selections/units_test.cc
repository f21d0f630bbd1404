// The selection kernels for many units at a time: what the same backend's kernels give unit by
// unit, to the last bit, and budgets and marks of the definition.

#include <algorithm>
#include <numeric>

#include "cairn/kernels/selection/unit_kernels.h"
#include "tests/conformance/selections/case.h"

namespace cairn::kernels {
namespace {

using selections::testing::Pages;
using selections::testing::ToHalf;
using testing::BackendCaseName;
using testing::Device;
using testing::Guarded;

class SelectionUnitsTest : public testing::FamilyTest<&Backend::selection_units> {
 protected:
  static constexpr int64_t kDim = 40, kHeads = 2;

  std::unique_ptr<Pages> RandomPages(int64_t tokens) {
    auto pages = std::make_unique<Pages>(tokens, kHeads, kDim, 16);
    std::normal_distribution<float> normal;
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t c = 0; c < kDim; ++c) {
          pages->K(h, t)[c] = ToHalf(normal(rng()));
          pages->V(h, t)[c] = ToHalf(normal(rng()));
        }
      }
    }
    return pages;
  }
  std::byte* Scratch(int64_t rows) { return here().Scratch(SelectionScratchBytes(kDim, rows)); }

  // Runs an operation for all units at once, then for one after another, and compares what they
  // wrote. make(output): the arguments of all units; the outputs of a unit are in its memory.
  // `sizes`: how many numbers each unit has there.
  template <typename T, typename Args, typename Make>
  void Compare(UnitsOp<Args> SelectionUnitKernels::*units_op,
               void (*SelectionKernels::*op)(Stream&, const Args&),
               const std::vector<std::vector<T>>& content, Make&& make) {
    std::vector<std::vector<T>> got[2];
    for (const bool at_once : {true, false}) {
      std::vector<std::unique_ptr<Guarded<T>>> out;
      std::vector<Args> units;
      for (size_t i = 0; i < content.size(); ++i) {
        out.push_back(std::make_unique<Guarded<T>>(here(), content[i]));
        units.push_back(make(i, out.back()->get()));
      }
      if (at_once) {
        (here().backend().selection_units->*units_op)(
            here().stream(), {units.data(), static_cast<int64_t>(units.size())});
      } else {
        for (const Args& unit : units) here().Run(op, unit);
      }
      for (auto& o : out) got[at_once ? 0 : 1].push_back(o->Read());
    }
    for (size_t i = 0; i < content.size(); ++i) {
      ASSERT_EQ(got[0][i].size(), got[1][i].size());
      ASSERT_TRUE(got[0][i].empty() || std::memcmp(got[0][i].data(), got[1][i].data(),
                                                   got[0][i].size() * sizeof(T)) == 0)
          << "unit " << i;
    }
    ASSERT_NE(got[0], content) << "the operation did nothing";
  }
  static std::vector<std::vector<float>> Numbers(const std::vector<int64_t>& sizes) {
    std::vector<std::vector<float>> all;
    for (const int64_t size : sizes) all.emplace_back(static_cast<size_t>(size), 0.25f);
    return all;
  }

  std::vector<uint8_t> RandomMarks(int64_t n, unsigned of = 6) {
    std::vector<uint8_t> marks(static_cast<size_t>(n));
    for (uint8_t& m : marks) m = rng()() % of == 0 ? 1 : 0;
    return marks;
  }
};

// Tokens of the units: none, one, parts of a tile, several tiles.
const std::vector<int64_t> kTokens = {90, 0, 1, 64, 33, 150, 2};

TEST_P(SelectionUnitsTest, WindowsOfManyHeads) {
  std::vector<int64_t> sizes;
  for (const int64_t tokens : kTokens) sizes.push_back(std::min<int64_t>(tokens, 20) * tokens);
  std::vector<std::unique_ptr<Pages>> pages;
  for (const int64_t tokens : kTokens) pages.push_back(RandomPages(tokens));
  const std::vector<float> q = Random(20 * kDim);
  Compare(&SelectionUnitKernels::window_attention, &SelectionKernels::window_attention,
          Numbers(sizes), [&](size_t i, float* out) {
            const int64_t tokens = kTokens[i], rows = std::min<int64_t>(tokens, 20);
            return WindowAttentionArgs{
                {pages[i]->In(here()), false, static_cast<int64_t>(i) % kHeads, 0, tokens},
                here().In(q),
                kDim,
                rows,
                tokens - rows,
                0.125f + static_cast<float>(i),
                out,
                tokens,
                Scratch(0)};
          });
}

TEST_P(SelectionUnitsTest, SumsOfManyHeads) {
  std::vector<std::unique_ptr<Pages>> pages;
  for (const int64_t tokens : kTokens) pages.push_back(RandomPages(tokens));
  const std::vector<float> q = Random(150 * kDim);
  Compare(
      &SelectionUnitKernels::accumulate_attention, &SelectionKernels::accumulate_attention,
      Numbers(kTokens), [&](size_t i, float* sums) {
        const int64_t tokens = kTokens[i], first = i % 2 == 0 ? 0 : tokens / 2;
        return AccumulateAttentionArgs{
            {pages[i]->In(here()), false, 1, 0, tokens},
            here().In(q),
            kDim,
            tokens - first,
            first,
            0.125f,
            sums,
            here().Allocate<float>(static_cast<size_t>(kAccumulatedRows * RoundedTokens(tokens))),
            Scratch(0)};
      });
}

TEST_P(SelectionUnitsTest, RowsOfManyHeads) {
  std::vector<std::unique_ptr<Pages>> pages;
  for (const int64_t tokens : kTokens) pages.push_back(RandomPages(tokens));
  const auto keys = [&](size_t i) {
    return TokenRows{pages[i]->In(here()), i % 2 == 1, 1, kTokens[i] / 4, kTokens[i]};
  };
  std::vector<int64_t> counts;
  for (const int64_t tokens : kTokens) counts.push_back(tokens - tokens / 4);
  const std::vector<float> norms = Random(150), v = Random(kDim), square = Random(kDim * kDim),
                           w = Random(30 * kDim);
  Compare(&SelectionUnitKernels::row_norms, &SelectionKernels::row_norms, Numbers(counts),
          [&](size_t i, float* out) {
            return RowNormsArgs{keys(i), out, Scratch(0)};
          });
  Compare(&SelectionUnitKernels::cosines, &SelectionKernels::cosines, Numbers(counts),
          [&](size_t i, float* out) {
            return CosinesArgs{keys(i), here().In(norms), here().In(v), out, Scratch(0)};
          });
  Compare(&SelectionUnitKernels::sum_unit_rows, &SelectionKernels::sum_unit_rows,
          Numbers(std::vector<int64_t>(kTokens.size(), kDim)), [&](size_t i, float* sum) {
            return SumUnitRowsArgs{keys(i), here().In(norms), sum};
          });
  Compare(&SelectionUnitKernels::expected_logits, &SelectionKernels::expected_logits,
          Numbers(counts), [&](size_t i, float* out) {
            return ExpectedLogitsArgs{keys(i), here().In(v), here().In(square),
                                      0.125f,  out,          Scratch(kDim)};
          });
  Compare(&SelectionUnitKernels::projected_norms, &SelectionKernels::projected_norms,
          Numbers(counts), [&](size_t i, float* out) {
            const auto hidden = static_cast<int64_t>(5 * i);
            return ProjectedNormsArgs{keys(i), here().In(w), hidden, out, Scratch(kProjectedRows)};
          });
  Compare(&SelectionUnitKernels::lag_scores, &SelectionKernels::lag_scores, Numbers(counts),
          [&](size_t i, float* out) {
            const TokenRows x = keys(i);
            // The next rows are there even where there is nothing to be scored.
            const TokenRows next{pages[0]->In(here()), false, 0, 5, 30};
            return LagScoresArgs{x, next, out, Scratch(kLagScratchRows)};
          });
  std::vector<std::vector<uint16_t>> rows;
  for (const int64_t count : counts) rows.emplace_back(static_cast<size_t>(count * kDim));
  Compare(&SelectionUnitKernels::gather_rows, &SelectionKernels::gather_rows, rows,
          [&](size_t i, uint16_t* out) {
            std::vector<int32_t> index(static_cast<size_t>(counts[i]));
            std::iota(index.rbegin(), index.rend(), static_cast<int32_t>(kTokens[i] / 4));
            return GatherRowsArgs{keys(i), here().In(index), counts[i], out};
          });
}

TEST_P(SelectionUnitsTest, RowsOfManyScores) {
  std::vector<std::vector<float>> scores;
  for (const int64_t n : kTokens) scores.push_back(Random(n));
  Compare(&SelectionUnitKernels::softmax, &SelectionKernels::softmax, scores,
          [&](size_t i, float* x) {
            return SoftmaxArgs{x, kTokens[i]};
          });
  Compare(&SelectionUnitKernels::entropy, &SelectionKernels::entropy,
          Numbers(std::vector<int64_t>(kTokens.size(), 1)), [&](size_t i, float* entropy) {
            return EntropyArgs{here().In(scores[i]), kTokens[i], entropy};
          });
  Compare(
      &SelectionUnitKernels::pool, &SelectionKernels::pool, Numbers(kTokens),
      [&](size_t i, float* y) {
        return PoolArgs{here().In(scores[i]), y, kTokens[i], static_cast<int64_t>(i), i % 2 == 0};
      });
  Compare(&SelectionUnitKernels::chunk_means, &SelectionKernels::chunk_means, Numbers(kTokens),
          [&](size_t i, float* y) {
            return ChunkMeansArgs{here().In(scores[i]), kTokens[i], static_cast<int64_t>(i) + 1, y};
          });
  std::vector<int64_t> cols;
  for (const int64_t n : kTokens) cols.push_back(n / 3);
  Compare(&SelectionUnitKernels::reduce_rows, &SelectionKernels::reduce_rows, Numbers(cols),
          [&](size_t i, float* y) {
            const auto reduction = static_cast<Reduction>(i % 3);
            return ReduceRowsArgs{reduction, here().In(scores[i]), 3, cols[i], cols[i], y};
          });
  Compare(&SelectionUnitKernels::count_non_finite, &SelectionKernels::count_non_finite,
          std::vector<std::vector<int64_t>>(kTokens.size(), std::vector<int64_t>(1, -1)),
          [&](size_t i, int64_t* count) {
            std::vector<float> x = scores[i];
            for (size_t k = 0; k < i && k < x.size(); ++k) x[k] = INFINITY;
            return CountFloatsArgs{here().In(x), kTokens[i], count};
          });
  std::vector<std::vector<uint16_t>> keys;
  for (const int64_t n : kTokens) keys.emplace_back(static_cast<size_t>(n * 8), ToHalf(0.7f));
  const std::vector<float> turns = Random(150 * 3);
  Compare(&SelectionUnitKernels::turn_rows, &SelectionKernels::turn_rows, keys,
          [&](size_t i, uint16_t* x) {
            return TurnRowsArgs{x, kTokens[i], 8, 6, here().In(turns), here().In(turns)};
          });
  Compare(&SelectionUnitKernels::query_moments, &SelectionKernels::query_moments,
          Numbers(std::vector<int64_t>(4, 32 * 33)), [&](size_t i, float* sums) {
            return QueryMomentsArgs{here().In(turns), 35, static_cast<int64_t>(i), 32, sums,
                                    sums + 32};
          });
}

TEST_P(SelectionUnitsTest, MarksOfManyHeads) {
  std::vector<std::vector<uint8_t>> marks;
  std::vector<std::vector<float>> scores;
  for (const int64_t n : kTokens) {
    marks.push_back(RandomMarks(n));
    scores.push_back(Random(n, 3.0f));
    for (float& s : scores.back()) s = std::round(s);
  }
  Compare(
      &SelectionUnitKernels::mark_top, &SelectionKernels::mark_top, marks,
      [&](size_t i, uint8_t* m) {
        return MarkTopArgs{here().In(scores[i]), kTokens[i], static_cast<int64_t>(7 * i) - 4, m};
      });
}

// More units than one launch has room for, and none.
TEST_P(SelectionUnitsTest, AnyNumberOfUnits) {
  constexpr int64_t kUnits = 1500;
  const std::vector<float> x = Random(3 * kUnits);
  Guarded<float> y(here(), 3 * kUnits);
  const float* const from = here().In(x);
  std::vector<CombineScoresArgs> units;
  for (int64_t i = 0; i < kUnits; ++i) {
    units.push_back({Combination::kNegative, from + 3 * i, nullptr, 3, y.get() + 3 * i});
  }
  here().backend().selection_units->combine_scores(here().stream(), {units.data(), 0});
  EXPECT_EQ(y.Read(), std::vector<float>(3 * kUnits));
  here().backend().selection_units->combine_scores(here().stream(), {units.data(), kUnits});
  const std::vector<float> got = y.Read();
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(got[i], -x[i]) << "unit " << i / 3;
}

TEST_P(SelectionUnitsTest, BudgetsThatTheDeviceComputedAreMarked) {
  const std::vector<float> scores = Random(100);
  const std::vector<uint8_t> before = RandomMarks(100);
  const auto marked = std::accumulate(before.begin(), before.end(), int64_t{0});
  for (const int64_t rows :
       {int64_t{0}, marked - 1, marked, marked + 1, int64_t{60}, int64_t{300}}) {
    Guarded<uint8_t> got(here(), before), want(host(), before);
    const MarkBudgetArgs unit{here().In(scores), 100, here().In(std::vector<int64_t>{rows}),
                              got.get()};
    here().backend().selection_units->mark_budget(here().stream(), {&unit, 1});
    host().Run(&SelectionKernels::mark_top, {host().In(scores), 100, rows - marked, want.get()});
    EXPECT_EQ(got.Read(), want.Read()) << rows << " rows, " << marked << " are marked";
  }
}

TEST_P(SelectionUnitsTest, HeadsCompeteForTheBudgetAboveTheirLeast) {
  struct Budget {
    int64_t heads, tokens, least, total;
  };
  const Budget budgets[] = {{3, 100, 10, 60}, {1, 50, 5, 20}, {4, 33, 0, 50}, {2, 70, 70, 300},
                            {0, 10, 1, 5},    {3, 0, 1, 5},   {5, 40, 3, 15}, {2, 600, 20, 700}};
  for (const int kind : {0, 1}) {
    std::vector<SplitBudgetArgs> units;
    std::vector<std::unique_ptr<Guarded<uint8_t>>> taken;
    std::vector<std::unique_ptr<Guarded<int64_t>>> rows;
    std::vector<std::vector<float>> scores;
    std::vector<std::vector<uint8_t>> marks;
    for (const Budget& b : budgets) {
      scores.push_back(Random(b.heads * b.tokens, 2.0f));
      if (kind == 1) {
        for (float& s : scores.back()) s = std::round(s);
      }
      marks.push_back(RandomMarks(b.heads * b.tokens, 12));
      taken.push_back(std::make_unique<Guarded<uint8_t>>(here(), b.heads * b.tokens, 9));
      rows.push_back(std::make_unique<Guarded<int64_t>>(here(), b.heads, -1));
      units.push_back({here().In(scores.back()), here().In(marks.back()), b.heads, b.tokens,
                       b.least, b.total, taken.back()->get(), rows.back()->get()});
    }
    here().backend().selection_units->split_budget(
        here().stream(), {units.data(), static_cast<int64_t>(units.size())});
    for (size_t i = 0; i < units.size(); ++i) {
      const Budget& b = budgets[i];
      // By sorting: first each head alone, then all.
      std::vector<uint8_t> want = marks[i];
      const auto take = [&](int64_t first, int64_t n, int64_t most) {
        const auto begin = want.begin() + first;
        std::vector<int64_t> order(static_cast<size_t>(n));
        std::iota(order.begin(), order.end(), first);
        std::stable_sort(order.begin(), order.end(), [&](int64_t x, int64_t y) {
          return scores[i][static_cast<size_t>(x)] > scores[i][static_cast<size_t>(y)];
        });
        int64_t left = most - std::accumulate(begin, begin + n, int64_t{0});
        for (const int64_t at : order) {
          uint8_t& mark = want[static_cast<size_t>(at)];
          if (mark == 0 && left-- > 0) mark = 1;
        }
      };
      for (int64_t head = 0; head < b.heads; ++head) take(head * b.tokens, b.tokens, b.least);
      take(0, b.heads * b.tokens, b.total);
      EXPECT_EQ(taken[i]->Read(), want) << "unit " << i << ", kind " << kind;
      const std::vector<int64_t> got = rows[i]->Read();
      for (int64_t head = 0; head < b.heads; ++head) {
        const auto begin = want.begin() + head * b.tokens;
        EXPECT_EQ(got[static_cast<size_t>(head)],
                  std::accumulate(begin, begin + b.tokens, int64_t{0}));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, SelectionUnitsTest,
                         ::testing::ValuesIn(kernels::testing::BackendNames()), BackendCaseName);

}  // namespace
}  // namespace cairn::kernels
