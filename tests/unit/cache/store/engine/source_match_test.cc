// A match that goes on at a source: it waits without a thread, never past its deadline, and every
// failure leaves the local answer.

#include "tests/unit/cache/store/engine/source_fixture.h"

namespace cairn::cache::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class SourceMatchTest : public SourceTest {
 protected:
  // Blocks 1 and 2 are here, 3 to 5 in the source, and nobody has 6.
  void StartWithFive() {
    StartWithSource();
    StoreChain(1, 2);
    GiveSource(3, 5);
  }
};

TEST_F(SourceMatchTest, ANodeWithoutASourceAnswersAtOnce) {
  Start();
  StoreChain(1, 2);
  EXPECT_EQ(Match(TestKeys(1, 6)).further, nullptr);
}

TEST_F(SourceMatchTest, NobodyIsAskedWhenAllKeysAreHere) {
  StartWithFive();
  EXPECT_EQ(Match(TestKeys(1, 2)).further, nullptr);
  EXPECT_EQ(source_.locates(), 0u);
}

TEST_F(SourceMatchTest, TheAnswerOfTheSourceFollowsWhatIsHere) {
  StartWithFive();
  source_.SetPace(0.25);
  source_.DelayAnswers(milliseconds(3));
  const auto asked = Ask(TestKeys(1, 6));
  EXPECT_FALSE(asked->answered());
  Pass(milliseconds(2));
  EXPECT_FALSE(asked->answered());
  Pass(milliseconds(1));
  ASSERT_TRUE(asked->answered());
  const MatchResult& match = asked->result();
  EXPECT_EQ(match.matched_blocks, 5u);
  EXPECT_EQ(match.miss_reason, MissReason::kAbsent);
  ASSERT_EQ(match.tiers.size(), 2u);
  EXPECT_EQ(match.tiers[0].tier, TierKind::kHost);
  EXPECT_EQ(match.tiers[0].blocks, 2u);
  EXPECT_EQ(match.tiers[1].tier, std::nullopt);
  EXPECT_EQ(match.tiers[1].blocks, 3u);
  EXPECT_EQ(match.tiers[1].seconds, 0.75);
  EXPECT_EQ(match.estimated_fetch_seconds, 0.75);
  EXPECT_EQ(match.bytes, match.tiers[0].bytes + match.tiers[1].bytes);
  EXPECT_TRUE(match.lease.has_value());
  const EngineStats stats = engine_->GetStats();
  EXPECT_EQ(stats.matched_tokens, 5u * 16);
  EXPECT_EQ(stats.missed_tokens, 16u);
}

TEST_F(SourceMatchTest, ASourceThatHasAllLeavesNoMiss) {
  StartWithFive();
  const auto asked = Ask(TestKeys(1, 5));
  ASSERT_TRUE(asked->answered());
  EXPECT_EQ(asked->result().matched_blocks, 5u);
  EXPECT_EQ(asked->result().miss_reason, MissReason::kNone);
}

TEST_F(SourceMatchTest, AfterTheDeadlineTheLocalAnswerCountsAndALateOneIsDropped) {
  StartWithFive();
  source_.HoldAnswers();
  const auto asked = Ask(TestKeys(1, 6));
  Pass(milliseconds(4));
  EXPECT_FALSE(asked->answered());
  Pass(milliseconds(1));
  ASSERT_TRUE(asked->answered());
  EXPECT_EQ(asked->result().matched_blocks, 2u);
  EXPECT_TRUE(asked->result().lease.has_value());
  source_.ReleaseAnswers();
  EXPECT_EQ(asked->answers.size(), 1u);
  EXPECT_EQ(TakeAll(asked->result(), 1).slices.size(), 2u * kLayers);
  EXPECT_EQ(engine_->GetStats().missed_tokens, 4u * 16);
}

TEST_F(SourceMatchTest, ItTakesHalfOfWhatTheCallerHasLeft) {
  StartWithFive();
  source_.HoldAnswers();
  const auto asked = Ask(TestKeys(1, 6), true, clock_.Now() + milliseconds(4));
  Pass(milliseconds(1));
  EXPECT_FALSE(asked->answered());
  Pass(milliseconds(1));
  ASSERT_TRUE(asked->answered());
  EXPECT_EQ(asked->result().matched_blocks, 2u);
}

TEST_F(SourceMatchTest, ACallerWithoutTimeGetsTheLocalAnswer) {
  StartWithFive();
  const auto asked = Ask(TestKeys(1, 6), true, clock_.Now() - seconds(1));
  ASSERT_TRUE(asked->answered());
  EXPECT_EQ(asked->result().matched_blocks, 2u);
  EXPECT_EQ(source_.locates(), 0u);
}

TEST_F(SourceMatchTest, ASourceThatGoesAwayLeavesTheLocalAnswer) {
  StartWithFive();
  source_.HoldAnswers();
  const auto asked = Ask(TestKeys(1, 6));
  source_.DropAnswers();
  ASSERT_TRUE(asked->answered());
  EXPECT_EQ(asked->result().matched_blocks, 2u);
}

TEST_F(SourceMatchTest, ASourceThatFailsLeavesTheLocalAnswer) {
  StartWithFive();
  source_.FailLocates(1, Errorf(StatusCode::kUnavailable, "source"));
  const auto asked = Ask(TestKeys(1, 6));
  ASSERT_TRUE(asked->answered());
  EXPECT_EQ(asked->result().matched_blocks, 2u);
  EXPECT_EQ(Ask(TestKeys(1, 6))->result().matched_blocks, 5u);
}

TEST_F(SourceMatchTest, ASourceThatPromisesMoreThanWasAskedForIsCutShort) {
  StartWithFive();
  source_.Promise(1000);
  EXPECT_EQ(Ask(TestKeys(1, 6))->result().matched_blocks, 6u);
}

TEST_F(SourceMatchTest, ASessionThatClosesMeanwhileGetsNoLease) {
  StartWithFive();
  for (const uint64_t first : {1, 3}) {
    source_.HoldAnswers();
    const auto asked = Ask(TestKeys(first, 6));
    engine_->CloseSession(session_);
    source_.ReleaseAnswers();
    ASSERT_TRUE(asked->answered());
    EXPECT_THAT(asked->answers[0],
                StatusIs(StatusCode::kNotFound, ::testing::HasSubstr("session")));
    EXPECT_EQ(engine_->GetStats().leases, 0u);
    session_ = *engine_->OpenSession("next");
  }
}

TEST_F(SourceMatchTest, ANamespaceThatIsHiddenMeanwhileGivesNoLease) {
  StartWithFive();
  GiveSource(1, 2);
  for (const uint64_t first : {1, 3}) {
    for (const bool lease : {true, false}) {
      source_.HoldAnswers();
      const auto asked = Ask(TestKeys(first, 6), lease);
      ASSERT_OK(engine_->BumpEpoch(ns_));
      source_.ReleaseAnswers();
      ASSERT_TRUE(asked->answered());
      EXPECT_THAT(asked->answers[0],
                  StatusIs(StatusCode::kNotFound, ::testing::HasSubstr("dropped")));
      EXPECT_EQ(engine_->GetStats().leases, 0u);
    }
  }
}

TEST_F(SourceMatchTest, ALeaseMayCoverNothingButBlocksOfTheSource) {
  StartWithSource();
  GiveSource(1, 3);
  const auto asked = Ask(TestKeys(1, 4));
  ASSERT_TRUE(asked->answered());
  EXPECT_EQ(asked->result().matched_blocks, 3u);
  ASSERT_TRUE(asked->result().lease.has_value());
  EXPECT_EQ(asked->result().lease_ttl, options_.engine.default_lease_ttl);
  EXPECT_EQ(engine_->GetStats().leases, 1u);
  EXPECT_OK(engine_->RenewLease(session_, *asked->result().lease, seconds(60)));
  EXPECT_OK(engine_->Release(session_, {&*asked->result().lease, 1}));
  EXPECT_EQ(engine_->GetStats().leases, 0u);
}

TEST_F(SourceMatchTest, AMatchWithoutALeaseAsksToo) {
  StartWithFive();
  const auto asked = Ask(TestKeys(1, 6), /*lease=*/false);
  EXPECT_EQ(asked->result().matched_blocks, 5u);
  EXPECT_FALSE(asked->result().lease.has_value());
  EXPECT_EQ(engine_->GetStats().matched_tokens, 0u);
}

TEST_F(SourceMatchTest, AnAnswerThatNobodyExtendsIsCountedAsItIs) {
  StartWithFive();
  { const MatchResult match = Match(TestKeys(1, 6)); }
  EXPECT_EQ(source_.locates(), 0u);
  const EngineStats stats = engine_->GetStats();
  EXPECT_EQ(stats.matched_tokens, 2u * 16);
  EXPECT_EQ(stats.missed_tokens, 4u * 16);
}

}  // namespace
}  // namespace cairn::cache::testing
