#include "services/cache/tier/disk/collection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn::cache::disk {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr CollectionPolicy kPolicy{
    .allowed_garbage_bytes = 100, .target_file_bytes = 1000, .small_files = 3};

LiveValues Live(const std::vector<std::pair<uint64_t, uint32_t>>& values, uint64_t horizon) {
  LiveValues live;
  for (const auto& [sequence, bytes] : values) live.Add(sequence, bytes);
  live.Seal(horizon);
  return live;
}

ValueFile File(const char* name, uint64_t first, uint64_t last, uint64_t bytes, int level = 1) {
  return {.name = name, .level = level, .first = first, .last = last, .bytes = bytes};
}

TEST(LiveValuesTest, AnswersInAnyOrderOfAdding) {
  const LiveValues live = Live({{7, 70}, {3, 30}, {5, 50}}, 10);
  EXPECT_TRUE(live.Lives(3));
  EXPECT_FALSE(live.Lives(4));
  EXPECT_EQ(live.NextLiving(4), 5u);
  EXPECT_EQ(live.NextLiving(8), 11u);
  EXPECT_EQ(live.BytesIn(3, 5), 80u);
  EXPECT_EQ(live.BytesIn(4, 4), 0u);
  EXPECT_EQ(live.BytesIn(0, 100), 150u);
}

TEST(LiveValuesTest, WhatCameAfterTheSnapshotLives) {
  const LiveValues live = Live({{3, 30}}, 10);
  EXPECT_FALSE(live.Lives(10));
  EXPECT_TRUE(live.Lives(11));
  EXPECT_EQ(live.NextLiving(11), 11u);
}

TEST(PlanCollectionTest, NothingToDoWhileGarbageIsAllowed) {
  const auto plan = PlanCollection({File("a", 1, 10, 1000)}, Live({{1, 900}}, 10), kPolicy);
  EXPECT_TRUE(plan.empty());
}

TEST(PlanCollectionTest, DropsFilesWithoutALivingValueUnread) {
  const auto plan = PlanCollection({File("b", 11, 20, 1000), File("a", 1, 10, 1000)},
                                   Live({{12, 950}}, 20), kPolicy);
  EXPECT_THAT(plan.drop, ElementsAre(Pair(1, 10)));
  EXPECT_THAT(plan.rewrite, IsEmpty());
}

TEST(PlanCollectionTest, NeverDropsWhatCameAfterTheSnapshot) {
  const auto plan = PlanCollection({File("a", 1, 11, 1000), File("b", 12, 20, 1000)},
                                   Live({}, 10), kPolicy);
  EXPECT_TRUE(plan.empty());
}

TEST(PlanCollectionTest, LeavesFreshAndBusyFilesAlone) {
  ValueFile busy = File("b", 11, 20, 1000);
  busy.busy = true;
  const auto plan = PlanCollection({File("a", 1, 10, 1000, /*level=*/0), busy}, Live({}, 20), kPolicy);
  EXPECT_TRUE(plan.empty());
}

TEST(PlanCollectionTest, RewritesTheFileWithTheSmallestLivingShare) {
  const auto plan = PlanCollection(
      {File("a", 1, 10, 1000), File("b", 11, 20, 1000), File("c", 21, 30, 1000)},
      Live({{1, 950}, {11, 300}, {21, 950}}, 30), kPolicy);
  EXPECT_THAT(plan.rewrite, ElementsAre("b"));
}

TEST(PlanCollectionTest, TakesNeighboursAlongWhileTheResultIsOneFile) {
  const auto plan = PlanCollection({File("a", 1, 10, 1000), File("b", 11, 20, 1000),
                                    File("c", 21, 30, 1000), File("d", 31, 40, 1000)},
                                   Live({{1, 500}, {11, 100}, {21, 400}, {31, 600}}, 40), kPolicy);
  EXPECT_THAT(plan.rewrite, ElementsAre("a", "b", "c"));
}

TEST(PlanCollectionTest, FilesThatLiveAlmostWholeAreNotRewritten) {
  std::vector<ValueFile> files;
  LiveValues live;
  for (uint64_t i = 0; i < 20; ++i) {
    files.push_back(File("f", i * 10, i * 10 + 9, 1000));
    live.Add(i * 10, 970);
  }
  live.Seal(200);
  EXPECT_TRUE(PlanCollection(files, live, kPolicy).empty());
}

TEST(PlanCollectionTest, JoinsRunsOfSmallFiles) {
  const auto plan = PlanCollection({File("big", 1, 10, 1000), File("s1", 11, 11, 100),
                                    File("s2", 12, 12, 100), File("s3", 13, 13, 100)},
                                   Live({{1, 1000}, {11, 100}, {12, 100}, {13, 100}}, 13), kPolicy);
  EXPECT_THAT(plan.rewrite, ElementsAre("s1", "s2", "s3"));
}

TEST(PlanCollectionTest, DoesNotJoinAcrossALargeFile) {
  const auto plan = PlanCollection({File("s1", 1, 1, 100), File("s2", 2, 2, 100),
                                    File("big", 3, 3, 1000), File("s3", 4, 4, 100)},
                                   Live({{1, 100}, {2, 100}, {3, 1000}, {4, 100}}, 4), kPolicy);
  EXPECT_TRUE(plan.empty());
}

}  // namespace
}  // namespace cairn::cache::disk
