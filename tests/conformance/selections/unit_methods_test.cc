// Whole methods made of operations on many units alone: on every backend that has them, what the
// method of kernels/selections keeps. Only sizes and constants come from the host, no score.

#include <algorithm>

#include "cairn/kernels/selection/unit_kernels.h"
#include "kernels/selections/budget.h"
#include "kernels/selections/stages/budgets.h"
#include "tests/conformance/selections/case.h"

namespace cairn::selections {
namespace {

using kernels::PagedKv;
using kernels::SelectionUnitKernels;
using kernels::TokenRows;

using kernels::testing::BackendCaseName;
using testing::TestSegment;

const ModelShape kShape{.layers = 2,
                        .query_heads = 4,
                        .kv_heads = 2,
                        .head_dim = 32,
                        .hidden = 16,
                        .rope_dim = 32,
                        .rope_base = 10000};
constexpr int64_t kTokens = 190, kKeep = 300, kWindow = 16, kHeads = 4;  // All heads of all layers.

class UnitMethodsTest : public kernels::testing::FamilyTest<&kernels::Backend::selection_units> {
 protected:
  void SetUp() override {
    FamilyTest::SetUp();
    if (IsSkipped()) return;
    for (const auto& layer : segment_.layers) pages_.push_back(layer->In(here()));
    scores_ = here().Allocate<float>(kHeads * kTokens);
  }

  template <typename Args>
  void Run(kernels::UnitsOp<Args> SelectionUnitKernels::*op, const std::vector<Args>& units) {
    (here().backend().selection_units->*op)(here().stream(),
                                            {units.data(), static_cast<int64_t>(units.size())});
  }
  // Head h of all heads of all layers.
  TokenRows Rows(int64_t h, bool values = false, int64_t begin = 0, int64_t end = kTokens) const {
    return {pages_[static_cast<size_t>(h / kShape.kv_heads)], values, h % kShape.kv_heads, begin,
            end};
  }
  std::byte* Scratch() {
    return here().Scratch(kernels::SelectionScratchBytes(kShape.head_dim, 16));
  }
  float* Scores(int64_t h) { return scores_ + h * kTokens; }
  static int64_t RowsToKeepOf() { return RowsToKeep(kTokens, kKeep); }

  // Marks of the rows that stay in any case.
  uint8_t* Protect(int64_t first, int64_t last) {
    std::vector<uint8_t> marks(static_cast<size_t>(kHeads * kTokens));
    for (int64_t h = 0; h < kHeads; ++h) {
      const auto begin = marks.begin() + h * kTokens;
      std::fill(begin, begin + first, uint8_t{1});
      std::fill(begin + kTokens - last, begin + kTokens, uint8_t{1});
    }
    return here().In(marks);
  }
  // The best `rows` of each head.
  void MarkHeads(int64_t rows, uint8_t* marks) {
    const int64_t* const budget = here().In(std::vector<int64_t>{rows});
    std::vector<kernels::MarkBudgetArgs> units;
    for (int64_t h = 0; h < kHeads; ++h) {
      units.push_back({Scores(h), kTokens, budget, marks + h * kTokens});
    }
    Run(&SelectionUnitKernels::mark_budget, units);
  }

  // Scores of SnapKV; those of the window stay as they are.
  void WindowScores() {
    constexpr int64_t kRanked = kTokens - kWindow, kAll = 2 * kHeads;  // Query heads.
    const int64_t width = int64_t{kShape.query_heads} * kShape.head_dim;
    auto* const weights = here().Allocate<float>(kAll * kWindow * kTokens);
    auto* const means = here().Allocate<float>(kAll * kRanked);
    auto* const pooled = here().Allocate<float>(kAll * kRanked);
    std::vector<const float*> queries;
    for (const auto& layer : segment_.queries) queries.push_back(here().In(layer));
    std::vector<kernels::WindowAttentionArgs> windows;
    std::vector<kernels::ReduceRowsArgs> rows, groups;
    std::vector<kernels::PoolArgs> pools;
    for (int64_t q = 0; q < kAll; ++q) {
      const float* const from = queries[static_cast<size_t>(q / kShape.query_heads)];
      windows.push_back({Rows(q / 2),
                         from + (kTokens - kWindow) * width + q % kShape.query_heads * 32, width,
                         kWindow, kTokens - kWindow, 1.0f / std::sqrt(32.0f),
                         weights + q * kWindow * kTokens, kTokens, Scratch()});
      rows.push_back({kernels::Reduction::kMean, weights + q * kWindow * kTokens, kWindow, kRanked,
                      kTokens, means + q * kRanked});
      pools.push_back({means + q * kRanked, pooled + q * kRanked, kRanked, 2, false});
    }
    for (int64_t h = 0; h < kHeads; ++h) {
      groups.push_back(
          {kernels::Reduction::kMean, pooled + 2 * h * kRanked, 2, kRanked, kRanked, Scores(h)});
    }
    here().CopyIn(scores_, zeros_.data(), zeros_.size() * sizeof(float));
    Run(&SelectionUnitKernels::window_attention, windows);
    Run(&SelectionUnitKernels::reduce_rows, rows);
    Run(&SelectionUnitKernels::pool, pools);
    Run(&SelectionUnitKernels::reduce_rows, groups);
  }

  // The rows that a method keeps, with parameters that are not its defaults.
  void ExpectKept(const std::string& name, const std::vector<std::pair<std::string, int64_t>>& with,
                  const uint8_t* marks) {
    testing::SelectionCase c{name, {}};
    for (const ParameterInfo& p : FindSelection(name)->parameters) {
      c.values.push_back(p.fallback.value_or(kKeep));
      for (const auto& [parameter, value] : with) {
        if (p.name == parameter) c.values.back() = value;
      }
    }
    const kernels::Backend& definition = *kernels::FindBackend(
        here().backend().is_definition || here().backend().name == "reference" ? "reference"
                                                                               : "portable");
    KeptRows want;
    ASSERT_TRUE(segment_.Run(*Make(c, definition), &want));
    const std::vector<uint8_t> got = here().Out(marks, kHeads * kTokens);
    for (int64_t i = 0; i < kHeads * kTokens; ++i) {
      const int64_t h = i / kTokens;
      ASSERT_EQ(got[static_cast<size_t>(i)] == 1,
                want.kept(static_cast<int32_t>(h / kShape.kv_heads),
                          static_cast<int32_t>(h % kShape.kv_heads), i % kTokens))
          << name << ": head " << h << ", row " << i % kTokens;
    }
  }

  const TestSegment segment_ = TestSegment::Normal(kShape, kTokens, 21, 32);
  std::vector<PagedKv> pages_;
  float* scores_ = nullptr;
  const std::vector<float> zeros_ = std::vector<float>(kHeads * kTokens);
};

TEST_P(UnitMethodsTest, SnapKv) {
  WindowScores();
  uint8_t* const marks = Protect(1, kWindow);
  MarkHeads(RowsToKeepOf(), marks);
  ExpectKept("snapkv", {{"window", kWindow}}, marks);
}

TEST_P(UnitMethodsTest, AdaSnapKv) {
  WindowScores();
  uint8_t* const marks = Protect(1, kWindow);
  auto* const taken = here().Allocate<uint8_t>(kHeads * kTokens);
  auto* const rows = here().Allocate<int64_t>(kHeads);
  constexpr int64_t kAlpha = 200, kOfLayer = 2;
  std::vector<kernels::SplitBudgetArgs> layers;
  std::vector<kernels::MarkBudgetArgs> heads;
  for (int64_t h = 0; h < kHeads; h += kOfLayer) {
    layers.push_back({Scores(h), marks + h * kTokens, kOfLayer, kTokens,
                      SafeRows(RowsToKeepOf(), kAlpha), RowsToKeepOf() * kOfLayer,
                      taken + h * kTokens, rows + h});
  }
  Run(&SelectionUnitKernels::split_budget, layers);
  for (int64_t h = 0; h < kHeads; ++h) {
    heads.push_back({Scores(h), kTokens, rows + h, marks + h * kTokens});
  }
  Run(&SelectionUnitKernels::mark_budget, heads);
  ExpectKept("ada-snapkv", {{"window", kWindow}, {"alpha", kAlpha}}, marks);
}

TEST_P(UnitMethodsTest, KnormAndKeyDiff) {
  std::vector<kernels::RowNormsArgs> norms;
  std::vector<kernels::SumUnitRowsArgs> sums;
  std::vector<kernels::CosinesArgs> cosines;
  std::vector<kernels::CombineScoresArgs> negatives;
  const std::vector<float> zeros(static_cast<size_t>(kShape.head_dim));
  for (int64_t h = 0; h < kHeads; ++h) {
    auto* const norm = here().Allocate<float>(kTokens);
    float* const anchor = here().In(zeros);
    norms.push_back({Rows(h), norm, Scratch()});
    negatives.push_back({kernels::Combination::kNegative, norm, nullptr, kTokens, Scores(h)});
    sums.push_back({Rows(h), norm, anchor});
    cosines.push_back({Rows(h), norm, anchor, Scores(h), Scratch()});
  }
  Run(&SelectionUnitKernels::row_norms, norms);
  Run(&SelectionUnitKernels::combine_scores, negatives);
  uint8_t* marks = Protect(1, 0);
  MarkHeads(RowsToKeepOf(), marks);
  ExpectKept("knorm", {}, marks);

  Run(&SelectionUnitKernels::sum_unit_rows, sums);
  Run(&SelectionUnitKernels::cosines, cosines);
  for (int64_t h = 0; h < kHeads; ++h) negatives[static_cast<size_t>(h)].x = Scores(h);
  Run(&SelectionUnitKernels::combine_scores, negatives);
  marks = Protect(1, 0);
  MarkHeads(RowsToKeepOf(), marks);
  ExpectKept("keydiff", {}, marks);
}

TEST_P(UnitMethodsTest, LagKv) {
  constexpr int64_t kSinks = 4, kLag = 16, kBlocks = (kTokens - kSinks) / kLag - 1;
  std::vector<kernels::LagScoresArgs> lags;
  std::vector<kernels::CombineScoresArgs> means;
  std::vector<kernels::RankScoresArgs> ranks;
  here().CopyIn(scores_, zeros_.data(), zeros_.size() * sizeof(float));
  for (int64_t h = 0; h < kHeads; ++h) {
    for (int64_t block = 0; block < kBlocks; ++block) {
      const int64_t begin = kSinks + block * kLag;
      float* parts[2];
      for (const bool values : {false, true}) {
        parts[values ? 1 : 0] = here().Allocate<float>(kLag);
        lags.push_back({Rows(h, values, begin, begin + kLag),
                        Rows(h, values, begin + kLag, begin + 2 * kLag), parts[values ? 1 : 0],
                        Scratch()});
      }
      means.push_back({kernels::Combination::kMean, parts[0], parts[1], kLag, parts[0]});
      ranks.push_back({parts[0], kLag, Scores(h) + begin});
    }
  }
  Run(&SelectionUnitKernels::lag_scores, lags);
  Run(&SelectionUnitKernels::combine_scores, means);
  Run(&SelectionUnitKernels::rank_scores, ranks);
  uint8_t* const marks = Protect(kSinks, kTokens - kSinks - kBlocks * kLag);
  MarkHeads(RowsToKeepOf(), marks);
  ExpectKept("lagkv", {{"lag", kLag}, {"sinks", kSinks}}, marks);
}

TEST_P(UnitMethodsTest, ChunkKv) {
  constexpr int64_t kChunk = 10, kChunks = (kTokens + kChunk - 1) / kChunk, kOfLayer = 2;
  WindowScores();
  uint8_t* const marks = Protect(1, kWindow);
  const int64_t* const budget =
      here().In(std::vector<int64_t>{std::max<int64_t>(1, kChunks * kKeep / kKeepUnits)});
  std::vector<kernels::ReduceRowsArgs> means;
  std::vector<kernels::ChunkMeansArgs> chunks;
  std::vector<kernels::ChunkMarksArgs> protect;
  std::vector<kernels::MarkBudgetArgs> best;
  std::vector<kernels::SpreadMarksArgs> spread;
  for (int64_t h = 0; h < kHeads; h += kOfLayer) {
    auto* const mean = here().Allocate<float>(kTokens);
    auto* const score = here().Allocate<float>(kChunks);
    auto* const taken = here().Allocate<uint8_t>(kChunks);
    means.push_back({kernels::Reduction::kMean, Scores(h), kOfLayer, kTokens, kTokens, mean});
    chunks.push_back({mean, kTokens, kChunk, score});
    protect.push_back({marks + h * kTokens, kOfLayer, kTokens, kChunk, taken});
    best.push_back({score, kChunks, budget, taken});
    spread.push_back({taken, kOfLayer, kTokens, kChunk, marks + h * kTokens});
  }
  Run(&SelectionUnitKernels::reduce_rows, means);
  Run(&SelectionUnitKernels::chunk_means, chunks);
  Run(&SelectionUnitKernels::chunk_marks, protect);
  Run(&SelectionUnitKernels::mark_budget, best);
  Run(&SelectionUnitKernels::spread_marks, spread);
  ExpectKept("chunkkv", {{"window", kWindow}, {"chunk", kChunk}}, marks);
}

TEST_P(UnitMethodsTest, ScoresThatAreNotFiniteStayWhereTheyWouldBeRanked) {
  const std::vector<float> x = {3, NAN, 1};
  auto* const y = here().Allocate<float>(3);
  Run(&SelectionUnitKernels::rank_scores,
      std::vector<kernels::RankScoresArgs>{{here().In(x), 3, y}});
  const std::vector<float> got = here().Out(y, 3);
  EXPECT_EQ(got[0], 3.0f);
  EXPECT_TRUE(std::isnan(got[1]));
}

INSTANTIATE_TEST_SUITE_P(All, UnitMethodsTest,
                         ::testing::ValuesIn(kernels::testing::BackendNames()), BackendCaseName);

}  // namespace
}  // namespace cairn::selections
