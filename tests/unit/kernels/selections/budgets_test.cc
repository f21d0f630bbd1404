#include "kernels/selections/stages/budgets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "kernels/selections/budget.h"

namespace cairn::selections {
namespace {

using Rows = std::vector<int64_t>;

int64_t Sum(const Rows& rows) { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }

TEST(RowsToKeep, RoundsDownButNeverToNothing) {
  EXPECT_EQ(RowsToKeep(1000, 100), 100);
  EXPECT_EQ(RowsToKeep(1000, 999), 999);
  EXPECT_EQ(RowsToKeep(512, 800), 409);
  EXPECT_EQ(RowsToKeep(3, 1), 1);
}

TEST(PyramidLayers, FallsInEvenStepsWithTheMeanOfAnEvenBudget) {
  // Computed from kvpress's formula in double precision.
  const Rows rows = PyramidLayers(64, 20, false)({30, 4096, 500, {}});
  ASSERT_EQ(rows.size(), 30u);
  EXPECT_EQ((Rows{rows[0], rows[1], rows[2]}), (Rows{3994, 3859, 3725}));
  EXPECT_EQ((Rows{rows[27], rows[28], rows[29]}), (Rows{371, 237, 102}));
  EXPECT_NEAR(static_cast<double>(Sum(rows)), 30 * 2048.0, 15);
  const Rows less = PyramidLayers(64, 20, false)({30, 8192, 200, {}});
  EXPECT_EQ((Rows{less[0], less[1], less[28], less[29]}), (Rows{3195, 3088, 189, 82}));
}

TEST(PyramidLayers, IsEvenWhereTheLastLayerWouldLoseItsWindow) {
  EXPECT_EQ(PyramidLayers(64, 20, false)({3, 1000, 400, {}}), (Rows{400, 400, 400}));
  EXPECT_EQ(PyramidLayers(64, 20, false)({1, 8192, 200, {}}), (Rows{1638}));
}

TEST(PyramidLayers, BesideTheWindowEveryBudgetHasItsPyramid) {
  // The authors' program at capacity 512, window 32, 30 layers and 4,096 tokens: least 480 / 20 =
  // 24, most 936, from which it steps down by 31 whole rows to 37. Exact steps end at 24.
  const Rows rows = PyramidLayers(32, 20, true)({30, 4096, 125, {}});
  EXPECT_EQ((Rows{rows[0], rows[1], rows[28], rows[29]}), (Rows{968, 937, 87, 56}));
  EXPECT_EQ(Sum(rows), 30 * 512) << "to the row";
  for (const int64_t tokens : {200, 500, 1024, 2047, 8192}) {
    for (const int64_t keep : {100, 200, 400, 600, 900}) {
      const int64_t even = RowsToKeep(tokens, keep);
      const Rows some = PyramidLayers(64, 20, true)({30, tokens, keep, {}});
      EXPECT_EQ(Sum(some), 30 * even) << tokens << " " << keep;
      EXPECT_TRUE(std::is_sorted(some.rbegin(), some.rend()));
      EXPECT_LE(some.front(), tokens);
      if (even <= 65) continue;  // Nothing to fall.
      EXPECT_GT(some.front(), even) << "even budgets at " << tokens << " " << keep;
      EXPECT_GT(some.back(), 64) << "the window and a row";
    }
  }
}

TEST(WeightedLayers, SharesByWeightWithinTheirBounds) {
  const double weights[] = {1, 2, 5};
  EXPECT_EQ(WeightedLayers(10)({3, 1000, 100, weights}), (Rows{44, 78, 178}));
  const double steep[] = {0, 1e-9, 1};
  const Rows rows = WeightedLayers(10)({3, 100, 500, steep});
  EXPECT_EQ(rows[2], 100) << "a layer cannot keep more than all";
  EXPECT_EQ(Sum(rows), 150);
  const double none[] = {0, 0, 0};
  EXPECT_EQ(Sum(WeightedLayers(10)({3, 100, 500, none})), 150);
}

TEST(LazyLayers, CutsTheLaziestAndKeepsTheBudget) {
  const double weights[] = {0.9, 0.1, 0.5, 0.8};
  // 4 * 50 rows: one layer whole, the others 20, and what is left to the least lazy of these.
  EXPECT_EQ(LazyLayers(4, 16)({4, 100, 500, weights}), (Rows{20, 100, 60, 20}));
  EXPECT_EQ(LazyLayers(4, 1024)({4, 100, 500, weights}), (Rows{50, 50, 50, 50}));
}

TEST(PrefixLayers, LayersHoldTheSameShareOfTheirSums) {
  Scores scores(2, 3, 10);
  Marks marks(2, 3, 10);
  for (int32_t h = 0; h < 3; ++h) {
    std::fill(scores.Head(1, h).begin(), scores.Head(1, h).end(), 1.0f);
    scores.Head(0, h)[4] = 8;
    scores.Head(0, h)[6] = scores.Head(0, h)[7] = 1;
  }
  // Before the first layer's rows lie 0, .8, .9 and 1 of its sum, before the second's 0, .1, .2 ...
  // Up to .8 there are ten rows; of the two with .8 before them the lower layer's is taken.
  EXPECT_EQ(PrefixLayers()({2, 10, 500, {}, &scores, &marks}), (Rows{2, 8}));
  EXPECT_EQ(PrefixLayers()({2, 10, 300, {}, &scores, &marks}), (Rows{1, 5}));
  // A marked row is kept in addition to the others.
  for (int32_t l = 0; l < 2; ++l) {
    for (int32_t h = 0; h < 3; ++h) marks.Head(l, h)[0] = 1;
  }
  EXPECT_EQ(PrefixLayers()({2, 10, 500, {}, &scores, &marks}), (Rows{2, 8}));
  EXPECT_EQ(Sum(PrefixLayers()({2, 10, 950, {}, &scores, &marks})), 18);
}

class Splits : public ::testing::Test {
 protected:
  // Three heads of eight rows; the second has all of the best.
  Splits() : scores_(2, 3, 8), marks_(2, 3, 8) {
    const float first[3][8] = {{.9f, .8f, .7f, .1f, .1f, .1f, .1f, .1f},
                               {1, 1, 1, 1, 1, 1, 1, 1},
                               {.75f, .2f, .2f, .2f, .2f, .2f, .2f, .2f}};
    for (int32_t h = 0; h < 3; ++h) {
      for (size_t t = 0; t < 8; ++t) {
        scores_.Head(0, h)[t] = first[h][t];
        scores_.Head(1, h)[t] = 0.01f * first[h][t];
      }
    }
  }
  Rows Split(const HeadSplit& split, Rows rows) {
    kernels::InlineStream stream;
    return split(
        {scores_, marks_, rows, kernels::CpuSelectionKernels(kernels::Isa::kPortable), stream});
  }
  Scores scores_;
  Marks marks_;
};

TEST_F(Splits, EvenHeadsKeepTheLayersRows) {
  EXPECT_EQ(Split(EvenHeads(), {4, 3}), (Rows{4, 4, 4, 3, 3, 3}));
}

TEST_F(Splits, AdaptiveHeadsTakeTheBestOfTheLayerAboveTheirFloor) {
  EXPECT_EQ(Split(AdaptiveHeads(0), {4, 4}), (Rows{3, 8, 1, 3, 8, 1}));
  EXPECT_EQ(Split(AdaptiveHeads(500), {4, 4}), (Rows{2, 8, 2, 2, 8, 2}));
  EXPECT_EQ(Split(AdaptiveHeads(1000), {4, 2}), (Rows{4, 4, 4, 2, 2, 2}));
}

TEST_F(Splits, MixedHeadsLieBetweenTheBestRowsAndEvenBudgets) {
  // The heads have 3, 8 and 1 of the best 12 rows: algorithms.md has 2, 6, 1 for the authors' whole
  // rows, which lose one. By largest remainders 3.2, 7.2 and 1.6 are 3, 7, 2.
  EXPECT_EQ(Split(MixedHeads(200), {4, 4}), (Rows{3, 7, 2, 3, 7, 2}));
  EXPECT_EQ(Split(MixedHeads(500), {4, 4}), (Rows{4, 6, 2, 4, 6, 2}));
  EXPECT_EQ(Split(MixedHeads(0), {4, 4}), (Rows{3, 8, 1, 3, 8, 1}));
  EXPECT_EQ(Split(MixedHeads(1000), {4, 2}), (Rows{4, 4, 4, 2, 2, 2}));
  // Marked rows are kept in addition: of the other nine rows the heads have 2, 7 and 0, so 1.6 +
  // .6, 5.6 + .6 and .6, and a marked one each.
  for (int32_t h = 0; h < 3; ++h) marks_.Head(0, h)[0] = 1;
  const Rows rows = Split(MixedHeads(200), {4, 4});
  EXPECT_EQ((Rows{rows[0], rows[1], rows[2]}), (Rows{3, 7, 2}));
}

TEST_F(Splits, MarkedRowsArePartOfTheBudget) {
  for (size_t t = 0; t < 4; ++t) marks_.Head(0, 2)[t] = 1;
  const Rows rows = Split(AdaptiveHeads(0), {4, 4});
  EXPECT_EQ((Rows{rows[0], rows[1], rows[2]}), (Rows{0, 8, 4}));
}

TEST_F(Splits, ScoredHeadsShareThePartOfTheBudgetThatGoesByScores) {
  HeadScores heads{2, 3, {1, 0, 0, -5, 0, 1}};
  EXPECT_EQ(Split(ScoredHeads(heads, 2000), {4, 4}), (Rows{8, 2, 2, 2, 2, 8}));
  // All goes by scores: two heads are full, and what they cannot use goes round.
  EXPECT_EQ(Split(ScoredHeads(heads, 1000), {4, 4}), (Rows{8, 2, 2, 2, 2, 8}));
  heads.scores = {3, 1, 0, 0, 0, 0};
  EXPECT_EQ(Split(ScoredHeads(heads, 4000), {4, 4}), (Rows{8, 4, 3, 3, 3, 3}));
  heads.scores.assign(6, 0);
  EXPECT_EQ(Split(ScoredHeads(heads, 2000), {4, 3}), (Rows{4, 4, 4, 3, 3, 3})) << "no scores";
  heads = {1, 3, {1, 0, 0}};
  EXPECT_EQ(Split(ScoredHeads(heads, 2000), {4, 3}), (Rows{4, 4, 4, 3, 3, 3})) << "another shape";
  // Marked rows are kept in addition.
  for (int32_t l = 0; l < 2; ++l) {
    for (int32_t h = 0; h < 3; ++h) marks_.Head(l, h)[7] = 1;
  }
  heads = {2, 3, {1, 0, 0, 0, 0, 1}};
  EXPECT_EQ(Split(ScoredHeads(heads, 3000), {4, 4}), (Rows{6, 3, 3, 3, 3, 6}));
}

TEST_F(Splits, TheWholeModelTakesTheBestOfAllLayers) {
  EXPECT_EQ(Split(WholeModel(), {4, 4}), (Rows{8, 8, 8, 0, 0, 0}));
}

}  // namespace
}  // namespace cairn::selections
