// Which blocks are copied to disk, which leave it together, and what happens when the tier finds
// damage by itself.

#include "tests/unit/cache/store/engine/engine_fixture.h"

namespace cairn::cache::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class DiskPolicyTest : public EngineTest {
 protected:
  // The blocks that a restart finds, of first..last.
  std::vector<uint64_t> SurvivorsOf(uint64_t first, uint64_t last) {
    EXPECT_OK(disk_->Flush());
    CrashAndRestart();
    std::vector<uint64_t> found;
    for (uint64_t n = first; n <= last; ++n) {
      const auto tiers = engine_->Exists(ns_, TestKeys(n, n));
      if (tiers.ok() && (*tiers)[0]) found.push_back(n);
    }
    return found;
  }
  void Use(uint64_t n) {
    const MatchResult match = Match(TestKeys(n, n));
    ASSERT_TRUE(match.lease) << n;
    ASSERT_OK(engine_->Release(session_, {&*match.lease, 1}));
  }
  void TickFor(Duration time) {
    for (Duration past{0}; past < time; past += milliseconds(100)) {
      clock_.Advance(milliseconds(100));
      engine_->Tick();
    }
  }
};

// --- Groups
// -------------------------------------------------------------------------------------------------

TEST_F(DiskPolicyTest, WhatLiesTogetherLeavesTogether) {
  Options options;
  options.disk_bytes = 12 * kBlockRoom;
  Start(options);
  disk_->GroupVictims(4, 0, seconds(10));
  StoreAlone(1, 12);
  ASSERT_EQ(BlocksIn(TierKind::kDisk), 12u);
  StoreAlone(13, 13);
  EXPECT_EQ(BlocksIn(TierKind::kDisk), 9u);
  EXPECT_EQ(engine_->GetStats().tiers[TierKind::kDisk]->evicted_blocks, 4u);
  EXPECT_THAT(SurvivorsOf(1, 13), ::testing::ElementsAre(5, 6, 7, 8, 9, 10, 11, 12, 13));
}

TEST_F(DiskPolicyTest, WhatWasUsedSinceStaysTheLatestFirst) {
  Options options;
  options.disk_bytes = 12 * kBlockRoom;
  Start(options);
  disk_->GroupVictims(4, 2 * kBlockRoom, seconds(10));
  StoreAlone(1, 12);
  clock_.Advance(seconds(20));
  for (uint64_t n : {3, 1, 2}) {  // All but the fourth; the third longest ago.
    Use(n);
    clock_.Advance(seconds(1));
  }
  StoreAlone(13, 13);
  EXPECT_THAT(SurvivorsOf(1, 13), ::testing::ElementsAre(1, 2, 5, 6, 7, 8, 9, 10, 11, 12, 13));
}

TEST_F(DiskPolicyTest, AUseBeforeItWasWrittenThereDoesNotCount) {
  Options options;
  options.disk_bytes = 12 * kBlockRoom;
  Start(options);
  disk_->GroupVictims(4, 4 * kBlockRoom, seconds(10));
  StoreAlone(1, 12);
  Use(2);
  clock_.Advance(seconds(20));
  StoreAlone(13, 13);
  EXPECT_THAT(SurvivorsOf(1, 4), ::testing::IsEmpty());
}

TEST_F(DiskPolicyTest, LeasedBlocksStay) {
  Options options;
  options.disk_bytes = 12 * kBlockRoom;
  Start(options);
  disk_->GroupVictims(4, 0, Duration(0));
  StoreChain(1, 3);
  StoreAlone(4, 12);
  const MatchResult match = Match(TestKeys(1, 2));
  ASSERT_TRUE(match.lease);
  StoreAlone(13, 14);
  ASSERT_OK(engine_->Release(session_, {&*match.lease, 1}));
  EXPECT_THAT(SurvivorsOf(1, 4), ::testing::ElementsAre(1, 2));
}

TEST_F(DiskPolicyTest, WhenNoGroupCanGoBlocksGoOneByOne) {
  Options options;
  options.disk_bytes = 12 * kBlockRoom;
  Start(options);
  disk_->GroupVictims(0, 0, Duration(0));
  for (uint64_t n = 1; n <= 20; ++n) {
    StoreAlone(n, n);
    clock_.Advance(seconds(1));
  }
  EXPECT_EQ(BlocksIn(TierKind::kDisk), 12u);
}

// --- Admission
// -------------------------------------------------------------------------------------------------

TEST_F(DiskPolicyTest, AboveTheMarkBlocksWaitForASecondTouch) {
  Options options;
  options.disk_bytes = 10 * kBlockRoom;
  options.engine.disk_high_water = 0.5;
  Start(options);
  StoreAlone(1, 8);
  const uint64_t copied = BlocksIn(TierKind::kDisk);
  EXPECT_GE(copied, 5u);
  EXPECT_LT(copied, 8u);
  EXPECT_EQ(engine_->GetStats().untouched_copies, 8 - copied);
  EXPECT_EQ(engine_->GetStats().unflushed_bytes, 0u);  // They do not wait: they stay in host.
  TickFor(seconds(1));
  EXPECT_EQ(BlocksIn(TierKind::kDisk), copied);
  Use(8);
  TickFor(milliseconds(200));
  EXPECT_EQ(BlocksIn(TierKind::kDisk), copied + 1);
  EXPECT_THAT(SurvivorsOf(8, 8), ::testing::ElementsAre(8));
}

TEST_F(DiskPolicyTest, AFlushTakesWhatWasTurnedAway) {
  Options options;
  options.disk_bytes = 10 * kBlockRoom;
  options.engine.disk_high_water = 0.5;
  Start(options);
  StoreAlone(1, 8);
  ASSERT_LT(BlocksIn(TierKind::kDisk), 8u);
  Flush();
  EXPECT_EQ(BlocksIn(TierKind::kDisk), 8u);
}

TEST_F(DiskPolicyTest, WhatWasEvictedAndComesBackCountsAsTouched) {
  Options options;
  options.host_bytes = 1 << 20;
  options.disk_bytes = 10 * kBlockRoom;
  options.engine.disk_high_water = 0.5;
  Start(options);
  StoreAlone(1, 8);
  const uint64_t copied = BlocksIn(TierKind::kDisk);
  clock_.Advance(seconds(1));
  StoreAlone(101, 170);  // Pushes 8 out of the arena.
  ASSERT_EQ(Match(TestKeys(8, 8), false).matched_blocks, 0u);
  ASSERT_EQ(BlocksIn(TierKind::kDisk), copied);
  StoreAlone(8, 8);
  EXPECT_EQ(BlocksIn(TierKind::kDisk), copied + 1);
}

TEST_F(DiskPolicyTest, TheWriteBudgetIsKept) {
  Options options;
  options.engine.disk_write_budget = 10 * kBlockRoom;
  options.engine.disk_flush_after = seconds(60);
  Start(options);
  StoreAlone(1, 40);
  // A burst of one second's worth, then ten blocks and a little more a second.
  EXPECT_LE(BlocksIn(TierKind::kDisk), 11u);
  TickFor(seconds(1));
  EXPECT_LE(BlocksIn(TierKind::kDisk), 22u);
  EXPECT_GE(BlocksIn(TierKind::kDisk), 19u);
  TickFor(seconds(3));
  EXPECT_EQ(BlocksIn(TierKind::kDisk), 40u);
  EXPECT_EQ(engine_->GetStats().over_budget_copies, 0u);
  EXPECT_EQ(engine_->GetStats().late_copies, 0u);
}

TEST_F(DiskPolicyTest, BlocksThatTheBudgetHoldsUpTooLongStayInHost) {
  Options options;
  options.engine.disk_write_budget = 10 * kBlockRoom;
  options.engine.disk_flush_after = seconds(1);
  Start(options);
  StoreAlone(1, 40);
  TickFor(seconds(5));
  const EngineStats stats = engine_->GetStats();
  EXPECT_GT(stats.over_budget_copies, 10u);
  EXPECT_EQ(stats.over_budget_copies + BlocksIn(TierKind::kDisk), 40u);
  EXPECT_EQ(stats.unflushed_bytes, 0u);
  EXPECT_EQ(ServeAndVerify(1, 1), 1u);
  // The flush at the end of the node is worth its bytes.
  ASSERT_OK(engine_->Flush({.deadline = clock_.Now() + seconds(10), .last = true}));
  EXPECT_EQ(BlocksIn(TierKind::kDisk), 40u);
}

// --- Damage
// -------------------------------------------------------------------------------------------------

TEST_F(DiskPolicyTest, WhatTheTierFindsDamagedLeavesIt) {
  Start();
  StoreChain(1, 3);
  Flush();
  CrashAndRestart();
  ASSERT_EQ(BlocksIn(TierKind::kDisk), 3u);
  disk_->ReportDamage({.id = 2});
  EXPECT_EQ(engine_->GetStats().corrupt_blocks, 1u);
  EXPECT_EQ(Match(TestKeys(1, 3), false).matched_blocks, 1u);
  EXPECT_EQ(Match(TestKeys(2, 2), false).miss_reason, MissReason::kCorrupt);
}

}  // namespace
}  // namespace cairn::cache::testing
