// Hints, and the estimates of when blocks could leave.

#include "tests/unit/cache/store/engine/engine_fixture.h"

namespace cairn::cache::testing {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

class PrefetchTest : public EngineTest {
 protected:
  static constexpr size_t kPrefetchesAtOnce = 4;

  uint64_t BlocksIn(TierKind tier) { return engine_->GetStats().tiers[tier]->blocks; }
  uint64_t BlockBytes() { return TestPart(spec_.layout, 1, Whole()).size(); }
  void StoreOnDiskOnly(uint64_t n) {
    StoreChain(1, n);
    Flush();
    CrashAndRestart();
    ASSERT_EQ(BlocksIn(TierKind::kHost), 0u);
  }
  Result<PrefetchOutcome> TryHint(const std::vector<BlockKey>& keys, Duration needed_in) {
    return engine_->Prefetch(
        {.session = session_, .fingerprint = ns_, .keys = keys, .needed_in = needed_in});
  }
  PrefetchOutcome Hint(const std::vector<BlockKey>& keys, Duration needed_in) {
    const auto result = TryHint(keys, needed_in);
    EXPECT_OK(result);
    return result.ok() ? *result : PrefetchOutcome{};
  }
  size_t InHost(uint64_t first, uint64_t last) {
    const auto tiers = engine_->Exists(ns_, TestKeys(first, last));
    EXPECT_OK(tiers);
    return static_cast<size_t>(std::count(tiers->begin(), tiers->end(), TierKind::kHost));
  }
  void Release(const MatchResult& match) {
    ASSERT_OK(engine_->Release(session_, {&*match.lease, 1}));
  }
};

TEST_F(PrefetchTest, BringsBlocksToHostBeforeTheyAreAskedFor) {
  Start();
  StoreOnDiskOnly(6);
  const PrefetchOutcome hint = Hint(TestKeys(1, 8), seconds(5));
  EXPECT_EQ(hint.queued_blocks, 6u);
  EXPECT_EQ(hint.absent_blocks, 2u);
  EXPECT_EQ(hint.present_blocks + hint.refused_blocks, 0u);
  EXPECT_EQ(InHost(1, 6), 6u);
  EXPECT_EQ(engine_->GetStats().prefetched_blocks, 6u);
  const MatchResult match = Match(TestKeys(1, 6));
  ASSERT_EQ(match.tiers.size(), 1u);
  EXPECT_EQ(match.tiers[0].tier, TierKind::kHost);
  EXPECT_EQ(engine_->GetStats().prefetched_used_blocks, 6u);
  Release(match);
  EXPECT_EQ(ServeAndVerify(1, 6), 6u);
  EXPECT_EQ(engine_->GetStats().prefetched_used_blocks, 6u);  // Each block once.
  EXPECT_EQ(Hint(TestKeys(1, 6), seconds(5)).present_blocks, 6u);
}

TEST_F(PrefetchTest, DemandOvertakesHints) {
  Start();
  StoreChain(1, 20);
  StoreChain(101, 104);
  Flush();
  CrashAndRestart();
  disk_->HoldCallbacks();
  EXPECT_EQ(Hint(TestKeys(1, 20), seconds(5)).queued_blocks, 20u);
  EXPECT_EQ(disk_->held(), kPrefetchesAtOnce);
  const MatchResult match = Match(TestKeys(101, 104));
  EXPECT_EQ(disk_->held(), kPrefetchesAtOnce + 4);  // A demand waits for no hint's read.
  for (size_t i = 0; i < kPrefetchesAtOnce + 4; ++i) disk_->RunOneHeld();
  EXPECT_EQ(InHost(101, 104), 4u);
  EXPECT_EQ(InHost(1, 20), kPrefetchesAtOnce);
  disk_->RunHeld();
  EXPECT_EQ(InHost(1, 20), 20u);
  Release(match);
}

TEST_F(PrefetchTest, ADemandTakesOverWhatAHintMoves) {
  Start();
  StoreOnDiskOnly(20);
  disk_->HoldCallbacks();
  Hint(TestKeys(1, 20), seconds(5));
  const uint64_t before = disk_->GetStats().read_bytes;
  const MatchResult match = Match(TestKeys(1, 20));
  EXPECT_EQ(engine_->GetStats().merged_moves, 20u);
  EXPECT_EQ(disk_->held(), 8u);  // No longer the few that hints may have.
  disk_->RunHeld();
  EXPECT_EQ(InHost(1, 20), 20u);
  EXPECT_EQ(disk_->GetStats().read_bytes - before, 20 * BlockBytes());
  Release(match);
}

TEST_F(PrefetchTest, ARepeatedHintMovesAndCostsNothing) {
  Start();
  StoreOnDiskOnly(10);
  disk_->HoldCallbacks();
  EXPECT_EQ(Hint(TestKeys(1, 10), seconds(5)).queued_blocks, 10u);
  const EngineStats before = engine_->GetStats();
  EXPECT_EQ(before.hinted_bytes, 10 * BlockBytes());
  EXPECT_EQ(Hint(TestKeys(1, 10), seconds(5)).queued_blocks, 10u);
  const EngineStats after = engine_->GetStats();
  EXPECT_EQ(after.hinted_bytes, before.hinted_bytes);
  EXPECT_EQ(after.mover_queue_depth, before.mover_queue_depth);
  disk_->RunHeld();
  EXPECT_EQ(engine_->GetStats().promoted_blocks, 10u);
}

TEST_F(PrefetchTest, TheEndOfAHintCancelsItsMoves) {
  Start();
  StoreOnDiskOnly(20);
  disk_->HoldCallbacks();
  Hint(TestKeys(1, 20), seconds(1));
  clock_.Advance(seconds(4));
  engine_->Tick();
  EXPECT_EQ(engine_->GetStats().hinted_bytes, 0u);
  disk_->RunHeld();
  EXPECT_EQ(InHost(1, 20), kPrefetchesAtOnce);
  EXPECT_EQ(engine_->GetStats().cancelled_moves, 20 - kPrefetchesAtOnce);
  EXPECT_EQ(engine_->GetStats().mover_queue_depth, 0u);
}

TEST_F(PrefetchTest, TheEndOfASessionCancelsItsMovesButNotThoseOfOthers) {
  Start();
  StoreOnDiskOnly(20);
  disk_->HoldCallbacks();
  const auto other = engine_->OpenSession("other");
  ASSERT_OK(other);
  const auto keys = TestKeys(1, 20), some = TestKeys(1, 10);
  ASSERT_OK(engine_->Prefetch(
      {.session = *other, .fingerprint = ns_, .keys = keys, .needed_in = seconds(5)}));
  Hint(some, seconds(5));
  engine_->CloseSession(*other);
  disk_->RunHeld();
  EXPECT_EQ(InHost(1, 10), 10u);
  EXPECT_EQ(InHost(11, 20), 0u);
  EXPECT_GT(engine_->GetStats().hinted_bytes, 0u);  // Until its time has come.
  clock_.Advance(seconds(60));
  engine_->Tick();
  EXPECT_EQ(engine_->GetStats().hinted_bytes, 0u);
}

TEST_F(PrefetchTest, HintedBlocksLeaveHostAfterOthers) {
  Options options;
  options.host_bytes = 1 << 20;  // 51 blocks.
  StartWithoutDevice(options);
  StoreChain(1, 10);
  EXPECT_EQ(Hint(TestKeys(1, 10), seconds(60)).present_blocks, 10u);
  clock_.Advance(seconds(1));
  StoreChain(101, 130);
  clock_.Advance(seconds(1));
  StoreChain(201, 230);
  EXPECT_EQ(InHost(1, 10), 10u);
  EXPECT_LT(InHost(101, 130), 30u);
  // Used later than the hint says: now the hinted ones go first.
  clock_.Advance(seconds(100));
  Release(Match(TestKeys(201, 230)));
  StoreChain(301, 321);
  EXPECT_EQ(InHost(1, 10), 0u);
  EXPECT_EQ(InHost(201, 230), 30u);
}

TEST_F(PrefetchTest, AHintTakesRoomOnlyFromWhatRestedLongerThanItHasLeft) {
  Options options;
  options.host_bytes = 1 << 20;
  Start(options);
  clock_.Advance(seconds(1000));
  StoreChain(1, 10);
  clock_.Advance(seconds(1));
  StoreChain(101, 200);
  ASSERT_EQ(InHost(1, 10), 0u);
  const uint64_t in_host = BlocksIn(TierKind::kHost);
  clock_.Advance(seconds(10));
  EXPECT_EQ(Hint(TestKeys(1, 5), seconds(60)).queued_blocks, 5u);
  EXPECT_EQ(InHost(1, 5), 0u);
  EXPECT_EQ(BlocksIn(TierKind::kHost), in_host);
  clock_.Advance(seconds(100));
  engine_->Tick();
  EXPECT_EQ(Hint(TestKeys(1, 5), seconds(60)).queued_blocks, 5u);
  EXPECT_EQ(InHost(1, 5), 5u);
}

TEST_F(PrefetchTest, AHintTakesNothingFromALease) {
  Options options;
  options.host_bytes = 1 << 20;
  StartWithoutDevice(options);
  StoreChain(1, 40);
  StoreChain(101, 140);
  const MatchResult lease = Match(TestKeys(101, 140));
  ASSERT_EQ(InHost(101, 140), 40u);
  clock_.Advance(seconds(20));
  Hint(TestKeys(1, 40), seconds(1));
  EXPECT_EQ(InHost(101, 140), 40u);
  EXPECT_EQ(Fetch(*lease.lease).failures.size(), 0u);
  Release(lease);
}

TEST_F(PrefetchTest, HintsThatNobodyUsedAreCounted) {
  Options options;
  options.host_bytes = 1 << 20;
  Start(options);
  StoreOnDiskOnly(10);
  Hint(TestKeys(1, 10), seconds(1));
  ASSERT_EQ(InHost(1, 10), 10u);
  Release(Match(TestKeys(1, 4)));
  clock_.Advance(seconds(100));
  StoreChain(101, 200);
  ASSERT_EQ(InHost(1, 10), 0u);
  const EngineStats stats = engine_->GetStats();
  EXPECT_EQ(stats.prefetched_used_blocks, 4u);
  EXPECT_EQ(stats.prefetched_wasted_blocks, 6u);
}

TEST_F(PrefetchTest, HintsAreBoundedInBytes) {
  Options options;
  options.engine.max_hinted_bytes = 3 * BlockBytes() + 1;
  Start(options);
  StoreOnDiskOnly(10);
  const PrefetchOutcome hint = Hint(TestKeys(1, 10), seconds(5));
  EXPECT_EQ(hint.queued_blocks, 3u);
  EXPECT_EQ(hint.refused_blocks, 7u);
  EXPECT_EQ(InHost(1, 10), 3u);
  clock_.Advance(seconds(8));
  engine_->Tick();
  EXPECT_EQ(Hint(TestKeys(4, 10), seconds(5)).queued_blocks, 3u);
}

TEST_F(PrefetchTest, AHintOfADroppedNamespaceEndsQuietly) {
  Start();
  StoreOnDiskOnly(10);
  disk_->HoldCallbacks();
  Hint(TestKeys(1, 10), seconds(5));
  ASSERT_OK(engine_->DropNamespace(ns_));
  disk_->RunHeld();
  EXPECT_EQ(BlocksIn(TierKind::kHost), 0u);
  EXPECT_THAT(TryHint(TestKeys(1, 1), seconds(1)), StatusIs(StatusCode::kNotFound, HasSubstr("")));
}

TEST_F(PrefetchTest, WithoutADiskAHintOnlyProtects) {
  Options options;
  options.disk = false;
  Start(options);
  StoreChain(1, 3);
  const PrefetchOutcome hint = Hint(TestKeys(1, 5), seconds(5));
  EXPECT_EQ(hint.present_blocks, 3u);
  EXPECT_EQ(hint.absent_blocks, 2u);
}

TEST_F(PrefetchTest, RefusesBadRequests) {
  Start();
  EXPECT_THAT(TryHint(TestKeys(1, 1), seconds(301)),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("needed_in")));
  EXPECT_THAT(TryHint(TestKeys(1, 1), seconds(-1)),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("needed_in")));
  EXPECT_THAT(TryHint({}, seconds(1)), StatusIs(StatusCode::kInvalidArgument, HasSubstr("keys")));
  const auto keys = TestKeys(1, 1);
  EXPECT_THAT(engine_->Prefetch({.session = 99, .fingerprint = ns_, .keys = keys}),
              StatusIs(StatusCode::kNotFound, HasSubstr("")));
}

TEST_F(PrefetchTest, EstimatesFollowThePaceOfTheDiskAndItsQueue) {
  Start();
  StoreOnDiskOnly(40);
  const auto first = TestKeys(1, 4), all = TestKeys(1, 40);
  EXPECT_EQ(Match(first, /*lease=*/false).estimated_fetch_seconds, 0);  // Nothing is known yet.
  disk_->HoldCallbacks();
  Release(Match(first));
  clock_.Advance(seconds(2));
  disk_->RunHeld();  // Four blocks in two seconds.

  const MatchResult match = Match(TestKeys(1, 8));
  ASSERT_EQ(match.tiers.size(), 2u);
  EXPECT_EQ(match.tiers[0].tier, TierKind::kHost);
  EXPECT_EQ(match.tiers[0].seconds, 0);
  EXPECT_NEAR(match.tiers[1].seconds, 2, 0.01);
  EXPECT_EQ(match.estimated_fetch_seconds, match.tiers[1].seconds);
  // Four are under way before all others.
  EXPECT_NEAR(Hint(TestKeys(9, 12), seconds(5)).estimated_seconds, 4, 0.01);
  EXPECT_EQ(disk_->held(), 8u);
  // Without a lease nobody knows that the eight under way are its own; with one they count once.
  EXPECT_NEAR(Match(all, /*lease=*/false).estimated_fetch_seconds, (36 + 8) / 2.0, 0.01);
  const MatchResult own = Match(all);
  EXPECT_NEAR(own.estimated_fetch_seconds, 36 / 2.0, 0.01);
  disk_->RunHeld();
  Release(match);
  Release(own);
}

TEST_F(PrefetchTest, EstimatesOfTheHostTierFollowItsReads) {
  Start();
  StoreChain(1, 40);
  const MatchResult match = Match(TestKeys(1, 40));
  EXPECT_EQ(match.estimated_fetch_seconds, 0);
  Release(match);
  // The fake clock stands still inside a fetch: no pace is better than an endless one.
  EXPECT_EQ(ServeAndVerify(1, 40), 40u);
  EXPECT_EQ(Match(TestKeys(1, 40), /*lease=*/false).estimated_fetch_seconds, 0);
}

}  // namespace
}  // namespace cairn::cache::testing
