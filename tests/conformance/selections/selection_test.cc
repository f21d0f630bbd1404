// Every selection: the budget, protected rows, edge rules, the same rows on every backend and
// number of threads, and numbers that are not finite.

#include <algorithm>

#include "tests/conformance/selections/case.h"

namespace cairn::selections {
namespace {

using testing::Make;
using testing::SelectionCase;
using testing::TestSegment;

const ModelShape kShape{.layers = 4,
                        .query_heads = 6,
                        .kv_heads = 3,
                        .head_dim = 32,
                        .hidden = 48,
                        .rope_dim = 32,
                        .rope_base = 10000};

class SelectionTest : public ::testing::TestWithParam<SelectionCase> {
 protected:
  SelectionTest() : selection_(Make(GetParam())) {}

  KeptRows Run(const TestSegment& segment, int threads = 2, int64_t cut = 37) {
    KeptRows kept;
    EXPECT_TRUE(segment.Run(*selection_, &kept, threads, cut));
    return kept;
  }
  bool has(std::string_view parameter) const {
    for (const ParameterInfo& p : FindSelection(GetParam().name)->parameters) {
      if (p.name == parameter) return true;
    }
    return false;
  }
  SelectionCase With(std::string_view parameter, int64_t value) const {
    SelectionCase c = GetParam();
    const SelectionInfo* info = FindSelection(c.name);
    for (size_t i = 0; i < info->parameters.size(); ++i) {
      if (info->parameters[i].name == parameter) c.values[i] = value;
    }
    return c;
  }

  std::unique_ptr<Selection> selection_;
};

TEST_P(SelectionTest, KeepsItsShareAndTheFirstRow) {
  for (const int64_t tokens : {100, 257, 512}) {
    const TestSegment segment = TestSegment::Normal(kShape, tokens, 5);
    const KeptRows kept = Run(segment);
    const int64_t budget = tokens * 400 / 1000 * kShape.layers * kShape.kv_heads;
    if (has("chunk")) {
      // Whole chunks: a part of one at the end may be among them.
      EXPECT_LE(kept.Count(), budget + 20 * kShape.layers * kShape.kv_heads);
      EXPECT_GE(kept.Count(), budget - 20 * kShape.layers * kShape.kv_heads);
    } else {
      EXPECT_EQ(kept.Count(), budget) << tokens;
    }
    for (int32_t l = 0; l < kShape.layers; ++l) {
      for (int32_t h = 0; h < kShape.kv_heads; ++h) EXPECT_TRUE(kept.kept(l, h, 0));
    }
  }
}

TEST_P(SelectionTest, TheWindowStays) {
  if (!has("window")) GTEST_SKIP() << "no window";
  const KeptRows kept = Run(TestSegment::Normal(kShape, 300, 6));
  for (int32_t l = 0; l < kShape.layers; ++l) {
    for (int32_t h = 0; h < kShape.kv_heads; ++h) {
      for (int64_t t = 284; t < 300; ++t) EXPECT_TRUE(kept.kept(l, h, t));
    }
  }
}

TEST_P(SelectionTest, AllRowsStayWhenTheShareIsOneOrTheSegmentIsShort) {
  const TestSegment segment = TestSegment::Normal(kShape, 90, 7);
  KeptRows all(kShape.layers, kShape.kv_heads, 90);
  all.KeepAll();
  KeptRows kept;
  EXPECT_TRUE(segment.Run(*Make(With("keep", 1000)), &kept));
  EXPECT_EQ(kept, all);
  EXPECT_EQ(Make(With("keep", 1000))->FirstObserved(90), 90) << "nothing needs to be observed";
  for (const int64_t tokens : {1, 2}) {
    const TestSegment few = TestSegment::Normal(kShape, tokens, 8);
    EXPECT_GE(Run(few).Count(), kShape.layers * kShape.kv_heads) << tokens << " tokens";
  }
}

TEST_P(SelectionTest, TheSmallestShareKeepsWhatIsProtected) {
  const TestSegment segment = TestSegment::Normal(kShape, 200, 9);
  KeptRows kept;
  ASSERT_TRUE(segment.Run(*Make(With("keep", 1)), &kept));
  for (int32_t l = 0; l < kShape.layers; ++l) {
    for (int32_t h = 0; h < kShape.kv_heads; ++h) {
      EXPECT_GE(kept.Count(l, h), 1);
      EXPECT_LE(kept.Count(l, h), 60);
      EXPECT_TRUE(kept.kept(l, h, 0));
    }
  }
}

TEST_P(SelectionTest, ALaterSegmentHasNoFirstRow) {
  // The first rows are made worthless: large keys that no query looks at, and no values.
  TestSegment segment = TestSegment::Normal(kShape, 256, 10);
  for (auto& layer : segment.layers) {
    for (int64_t h = 0; h < kShape.kv_heads; ++h) {
      for (int64_t t = 0; t < 8; ++t) {
        std::fill(layer->K(h, t), layer->K(h, t) + kShape.head_dim, testing::ToHalf(-20.0f));
        std::fill(layer->V(h, t), layer->V(h, t) + kShape.head_dim, testing::ToHalf(0.0f));
      }
    }
  }
  for (auto& layer : segment.queries) {
    for (float& x : layer) x = std::fabs(x);
  }
  const KeptRows first = Run(segment);
  EXPECT_TRUE(first.kept(1, 1, 0));
  segment.first_position = 512;
  const KeptRows later = Run(segment);
  // Attention, norm and recency all refuse it. Not so directions, spread, whole chunks, a lot,
  // layers that keep all, and sums of attention that count the first row's to itself.
  const std::string& name = GetParam().name;
  if (name != "keydiff" && name != "lagkv" && !has("chunk") && name != "random" &&
      name != "simlayer" && name != "h2o" && name != "prefixkv" && name != "keyformer") {
    EXPECT_FALSE(later.kept(1, 1, 0));
  }
  if (!has("chunk")) {
    EXPECT_EQ(later.Count(), first.Count());
  }
}

TEST_P(SelectionTest, ThreadsCutsAndBackendsDoNotMatter) {
  const TestSegment segment = TestSegment::Normal(kShape, 333, 11, 16);
  const KeptRows kept = Run(segment);
  EXPECT_EQ(Run(segment, 1, 1), kept);
  EXPECT_EQ(Run(segment, 3, 333), kept);
  int compared = 0;
  for (const kernels::Backend* backend : kernels::Backends()) {
    const std::string name(backend->name);
    if (!kernels::testing::WhySkippedOnHost(name, &kernels::Backend::selections).empty()) continue;
    if (backend->is_definition) continue;  // See KeepsWhatTheDefinitionKeeps.
    KeptRows other;
    ASSERT_TRUE(segment.Run(*Make(GetParam(), *backend), &other));
    EXPECT_EQ(other, kept) << name;
    ++compared;
  }
  EXPECT_GE(compared, 1);
}

TEST_P(SelectionTest, KeepsWhatTheDefinitionKeeps) {
  const TestSegment segment = TestSegment::Normal(kShape, 200, 12);
  const KeptRows kept = Run(segment);
  KeptRows want;
  ASSERT_TRUE(segment.Run(*Make(GetParam(), *kernels::FindBackend("reference")), &want));
  int64_t differ = 0;
  for (int32_t l = 0; l < kShape.layers; ++l) {
    for (int32_t h = 0; h < kShape.kv_heads; ++h) {
      for (int64_t t = 0; t < 200; ++t) differ += kept.kept(l, h, t) != want.kept(l, h, t) ? 1 : 0;
    }
  }
  // Two scores within rounding may change places.
  EXPECT_LE(differ, 2);
}

TEST_P(SelectionTest, NumbersThatAreNotFiniteAreRefusedWhereTheyAreRead) {
  const Reads reads = FindSelection(GetParam().name)->reads;
  for (const uint16_t bad : {0x7c00, 0x7e00}) {
    TestSegment segment = TestSegment::Normal(kShape, 200, 13);
    segment.layers[2]->K(1, 50)[7] = bad;
    KeptRows kept;
    EXPECT_EQ(segment.Run(*selection_, &kept), reads == Reads::kNoNumbers) << "keys";
    TestSegment other = TestSegment::Normal(kShape, 200, 13);
    other.layers[2]->V(1, 50)[7] = bad;
    EXPECT_EQ(other.Run(*selection_, &kept), reads != Reads::kKeysAndValues) << "values";
  }
}

TEST_P(SelectionTest, AQueryAwareOneHangsOnItsQueriesAndOthersDoNot) {
  TestSegment segment = TestSegment::Normal(kShape, 300, 14);
  const KeptRows kept = Run(segment);
  const int64_t first = selection_->FirstObserved(300);
  const int64_t width = int64_t{kShape.query_heads} * kShape.head_dim;
  // Queries before the first observed one are not looked at.
  for (auto& layer : segment.queries) {
    std::fill(layer.begin(), layer.begin() + first * width, NAN);
  }
  EXPECT_EQ(Run(segment), kept);
  // One query may leave simlayer's order of layers, and prefixkv's means over all heads.
  if (first == 300 || GetParam().name == "simlayer" || GetParam().name == "prefixkv") return;
  // Those of one more row are: the first one, then the last one.
  for (const int64_t row : {first, int64_t{299}}) {
    TestSegment other = TestSegment::Normal(kShape, 300, 14);
    for (auto& layer : other.queries) {
      for (int64_t i = 0; i < width; ++i) layer[static_cast<size_t>(row * width + i)] *= -30.0f;
    }
    // The sequence's first query can only attend to its own row; ExpectedAttention skips it.
    EXPECT_EQ(Run(other) == kept, row == 0) << "row " << row;
  }
}

// Each KV head is ranked by the queries of its own group: other heads' queries may be anything.
TEST_P(SelectionTest, GroupsAreNeighbours) {
  if (selection_->FirstObserved(300) == 300) GTEST_SKIP() << "reads no queries";
  if (FindSelection(GetParam().name)->heads_share) GTEST_SKIP() << "heads share scores or budgets";
  TestSegment segment = TestSegment::Normal(kShape, 300, 15);
  const KeptRows kept = Run(segment);
  for (auto& layer : segment.queries) {
    for (size_t i = 0; i < layer.size(); ++i) {
      if (i / 32 % 6 >= 4) layer[i] = -layer[i];
    }
  }
  const KeptRows other = Run(segment);
  EXPECT_EQ(other.Rows(0, 0), kept.Rows(0, 0));
  EXPECT_EQ(other.Rows(0, 1), kept.Rows(0, 1));
  EXPECT_NE(other.Rows(0, 2), kept.Rows(0, 2));
}

TEST(HeadClassesTest, HeadsKeepAllInTheOrderOfTheirScores) {
  for (const char* name : {"duo", "razor"}) {
    // keep, heads, sinks, recent
    SelectionCase c{name, {400, 0, 4, 16}};
    const TestSegment segment = TestSegment::Normal(kShape, 200, 16);
    KeptRows kept;
    ASSERT_TRUE(segment.Run(*Make(c), &kept));
    // 12 heads, 80 rows in the mean: 960 = 12 * 20 + 4 * 180.
    std::vector<std::pair<int, int>> whole;
    for (int32_t l = 0; l < kShape.layers; ++l) {
      for (int32_t h = 0; h < kShape.kv_heads; ++h) {
        if (kept.Count(l, h) == 200) {
          whole.emplace_back(l, h);
        } else {
          EXPECT_EQ(kept.Count(l, h), 20) << l << ", " << h;
          EXPECT_TRUE(kept.kept(l, h, 3));
          EXPECT_FALSE(kept.kept(l, h, 4));
          EXPECT_TRUE(kept.kept(l, h, 184));
        }
      }
    }
    EXPECT_EQ(whole, (std::vector<std::pair<int, int>>{{0, 0}, {1, 0}, {1, 2}, {3, 1}})) << name;
    // A little more: the next head, (2, 2), has it, and keeps its most recent rows.
    c.values[0] = 420;
    ASSERT_TRUE(segment.Run(*Make(c), &kept));
    EXPECT_EQ(kept.Count(2, 2), 20 + 12 * 4);
    EXPECT_TRUE(kept.kept(2, 2, 200 - 16 - 12 * 4));
    EXPECT_FALSE(kept.kept(2, 2, 200 - 16 - 12 * 4 - 1));
    // A later segment has no first rows to keep.
    TestSegment later = TestSegment::Normal(kShape, 200, 16);
    later.first_position = 512;
    ASSERT_TRUE(later.Run(*Make(c), &kept));
    EXPECT_FALSE(kept.kept(0, 1, 0));
    EXPECT_EQ(kept.Count(0, 1), 16);
    EXPECT_EQ(kept.Count(), 84 * 12);
    // More recent rows than an even budget has: all heads stream.
    c.values = {100, 0, 4, 128};
    ASSERT_TRUE(segment.Run(*Make(c), &kept));
    for (int32_t l = 0; l < kShape.layers; ++l) {
      for (int32_t h = 0; h < kShape.kv_heads; ++h) EXPECT_EQ(kept.Count(l, h), 20);
    }
    // Equal scores: the lower layer, then the lower head.
    c.values = {400, 0, 4, 16};
    c.heads.scores.assign(12, 0.5f);
    ASSERT_TRUE(segment.Run(*Make(c), &kept));
    EXPECT_EQ(kept.Count(1, 0), 200);
    EXPECT_EQ(kept.Count(1, 1), 20);
  }
}

// Makes each of a layer's last 32 queries look at one row, given the query's own.
template <typename RowOf>
void LookAt(TestSegment* segment, int32_t layer, const RowOf& row_of) {
  const int64_t group = kShape.query_heads / kShape.kv_heads;
  for (int64_t row = segment->tokens - 32; row < segment->tokens; ++row) {
    for (int64_t h = 0; h < kShape.query_heads; ++h) {
      float* q = segment->queries[static_cast<size_t>(layer)].data() +
                 (row * kShape.query_heads + h) * kShape.head_dim;
      const uint16_t* k = segment->layers[static_cast<size_t>(layer)]->K(h / group, row_of(row));
      for (int64_t c = 0; c < kShape.head_dim; ++c) q[c] = 8.0f * testing::FromHalf(k[c]);
    }
  }
}

TEST(SimLayerTest, ALayerThatLooksFurtherBackStaysWhole) {
  TestSegment segment = TestSegment::Normal(kShape, 200, 17);
  for (const int32_t layer : {0, 1, 3}) {
    LookAt(&segment, layer, [](int64_t row) { return row - 3; });
  }
  LookAt(&segment, 2, [](int64_t) { return 50; });
  // keep, sinks, recent, queries: 4 * 80 rows are one whole layer, three of 20, and 60 left over.
  KeptRows kept;
  ASSERT_TRUE(segment.Run(*Make({"simlayer", {400, 4, 16, 32}}), &kept));
  EXPECT_EQ(kept.Count(2, 0), 200);
  std::vector<int64_t> rows;
  for (int32_t l = 0; l < kShape.layers; ++l) rows.push_back(kept.Count(l, 1));
  std::sort(rows.begin(), rows.end());
  EXPECT_EQ(rows, (std::vector<int64_t>{20, 20, 80, 200}));
  // Where the first and the recent rows are more than an even budget, it is `streaming`.
  KeptRows streaming;
  ASSERT_TRUE(segment.Run(*Make({"simlayer", {400, 4, 1024, 32}}), &kept));
  ASSERT_TRUE(segment.Run(*Make({"streaming", {400, 4}}), &streaming));
  EXPECT_EQ(kept, streaming);
}

TEST(SimLayerTest, AQuerysOwnRowIsNotRecent) {
  TestSegment segment = TestSegment::Normal(kShape, 200, 18);
  for (const int32_t layer : {0, 1, 3}) {
    LookAt(&segment, layer, [](int64_t row) { return row - 1; });
  }
  LookAt(&segment, 2, [](int64_t row) { return row; });
  KeptRows kept;
  ASSERT_TRUE(segment.Run(*Make({"simlayer", {400, 4, 16, 32}}), &kept));
  EXPECT_EQ(kept.Count(2, 0), 200);
}

TEST(PyramidKvTest, EveryShareHasItsPyramid) {
  const TestSegment segment = TestSegment::Normal(kShape, 400, 19);
  const auto rows = [&](int64_t keep, int64_t beside) {
    // keep, sink, window, pool, maxpool, beta, beside
    KeptRows kept;
    EXPECT_TRUE(segment.Run(*Make({"pyramidkv", {keep, 1, 16, 2, 0, 20, beside}}), &kept));
    return std::vector<int64_t>{kept.Count(0, 0), kept.Count(1, 0), kept.Count(2, 0),
                                kept.Count(3, 0)};
  };
  for (const int64_t keep : {100, 200, 400}) {
    const std::vector<int64_t> falls = rows(keep, 1);
    EXPECT_GT(falls[0], falls[1]) << keep;
    EXPECT_GT(falls[2], falls[3]) << keep;
    EXPECT_GT(falls[3], 16) << keep;
  }
  EXPECT_EQ(rows(200, 0), (std::vector<int64_t>{80, 80, 80, 80})) << "kvpress's form";
}

std::string CaseName(const ::testing::TestParamInfo<SelectionCase>& test) {
  return test.param.Label();
}

INSTANTIATE_TEST_SUITE_P(All, SelectionTest, ::testing::ValuesIn(testing::AllCases()), CaseName);

}  // namespace
}  // namespace cairn::selections
