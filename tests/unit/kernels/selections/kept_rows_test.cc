#include "kernels/selections/kept_rows.h"

#include <gtest/gtest.h>

#include "kernels/selections/registry.h"

namespace cairn::selections {
namespace {

TEST(KeptRows, CountsAndListsWhatItKeeps) {
  KeptRows kept(2, 3, 130);
  kept.Keep(1, 2, 129);
  kept.Keep(1, 2, 0);
  kept.Keep(1, 2, 64);
  kept.KeepRange(0, 1, 60, 70);
  EXPECT_EQ(kept.Rows(1, 2), (std::vector<int32_t>{0, 64, 129}));
  EXPECT_EQ(kept.Count(0, 1), 10);
  EXPECT_EQ(kept.Count(0, 0), 0);
  EXPECT_EQ(kept.Count(), 13);
  EXPECT_TRUE(kept.kept(1, 2, 64));
  EXPECT_FALSE(kept.kept(1, 1, 64));
  EXPECT_EQ(kept.Words(1, 2)[2], uint64_t{2});
}

TEST(KeptRows, KeepAllSetsNoBitBehindTheLastRow) {
  KeptRows kept(1, 2, 65);
  kept.KeepAll();
  EXPECT_EQ(kept.Count(), 130);
  EXPECT_EQ(kept.Words(0, 1)[1], uint64_t{1});
}

class Selecting : public ::testing::Test {
 protected:
  KeptRows Select(std::string_view name, std::vector<int64_t> values, int64_t tokens,
                  int64_t first_position) {
    const std::unique_ptr<Selection> selection = MakeSelection(name, values);
    KeptRows kept;
    kernels::ThreadPool pool(1);
    SegmentKv kv;
    kv.tokens = tokens;
    kv.first_position = first_position;
    EXPECT_TRUE(selection->Begin(shape_, {}, tokens)->Select(kv, pool, &kept));
    return kept;
  }
  const ModelShape shape_{.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 16};
};

TEST_F(Selecting, StreamingKeepsTheFirstAndTheLast) {
  EXPECT_EQ(Select("streaming", {500, 4}, 20, 0).Rows(1, 1),
            (std::vector<int32_t>{0, 1, 2, 3, 14, 15, 16, 17, 18, 19}));
  EXPECT_EQ(Select("streaming", {200, 4}, 20, 64).Rows(0, 0),
            (std::vector<int32_t>{16, 17, 18, 19}));
  EXPECT_EQ(Select("streaming", {1000, 4}, 5, 0).Count(), 2 * 2 * 5);
  EXPECT_EQ(Select("streaming", {1, 4}, 5, 0).Rows(0, 0), std::vector<int32_t>{0});
}

TEST_F(Selecting, RandomDrawsEachHeadForItselfAndTheSameAgain) {
  const KeptRows kept = Select("random", {250, 1, 7}, 400, 0);
  EXPECT_EQ(kept, Select("random", {250, 1, 7}, 400, 0));
  EXPECT_NE(kept, Select("random", {250, 1, 8}, 400, 0));
  EXPECT_NE(kept.Rows(0, 0), kept.Rows(0, 1));
  for (int layer = 0; layer < 2; ++layer) {
    for (int head = 0; head < 2; ++head) {
      EXPECT_EQ(kept.Count(layer, head), 100);
      EXPECT_TRUE(kept.kept(layer, head, 0));
    }
  }
}

TEST_F(Selecting, SepLlmKeepsTheLatestSeparatorsAndFillsUpWithRecentRows) {
  const std::vector<int32_t> separators = {5, 9};
  const ModelAccess model{{}, separators};
  // Separators at 2, 6, 10 and 18.
  const std::vector<int32_t> ids = {0, 1, 5, 1, 1, 1, 9, 1, 1, 1, 5, 1, 1, 1, 1, 1, 1, 1, 9, 1};
  const auto select = [&](std::vector<int64_t> values, int64_t first_position) {
    KeptRows kept;
    kernels::ThreadPool pool(1);
    const SegmentKv kv{20, first_position, {}, ids};
    EXPECT_TRUE(MakeSelection("sepllm", values)->Begin(shape_, model, 20)->Select(kv, pool, &kept));
    return kept.Rows(1, 1);
  };
  // One of 8 rows is the first, half of the others may be separators: the latest 3 before the
  // window.
  EXPECT_EQ(select({400, 1, 500}, 0), (std::vector<int32_t>{0, 2, 6, 10, 16, 17, 18, 19}));
  EXPECT_EQ(select({400, 1, 200}, 0), (std::vector<int32_t>{0, 10, 14, 15, 16, 17, 18, 19}));
  // More separators are asked for than there are: the recent rows get what is left.
  EXPECT_EQ(select({500, 0, 1000}, 64),
            (std::vector<int32_t>{2, 6, 10, 13, 14, 15, 16, 17, 18, 19}));
}

TEST(Registry, RefusesWhatIsOutOfRange) {
  EXPECT_EQ(MakeSelection("streaming", std::vector<int64_t>{0, 4}), nullptr);
  EXPECT_EQ(MakeSelection("streaming", std::vector<int64_t>{1001, 4}), nullptr);
  EXPECT_EQ(MakeSelection("streaming", std::vector<int64_t>{500}), nullptr);
  EXPECT_EQ(MakeSelection("nothing", std::vector<int64_t>{500}), nullptr);
  const HeadScores heads{1, 1, {0}};
  for (const SelectionInfo& info : AllSelections()) {
    std::vector<int64_t> values;
    for (const ParameterInfo& p : info.parameters) values.push_back(p.fallback.value_or(p.most));
    const std::unique_ptr<Selection> made = MakeSelection(info.name, values, &heads);
    ASSERT_NE(made, nullptr) << info.name;
    EXPECT_EQ(MakeSelection(info.name, values) == nullptr, CalibrationOf(info, values).has_value())
        << info.name << " cannot be made without the calibration that it reads";
    EXPECT_EQ(made->name(), info.name);
  }
}

}  // namespace
}  // namespace cairn::selections
