#include "services/cache/cluster/peer/peer_health.h"

#include <gtest/gtest.h>

namespace cairn::cache {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Outcome = PeerHealth::Outcome;

class PeerHealthTest : public ::testing::Test {
 protected:
  PeerHealthTest() { health_.SetMembers({"a", "b"}); }
  std::optional<Patience> Ask(const std::string& member, Duration caller = seconds(1)) {
    return health_.MayAsk(member, clock_.Now() + caller);
  }
  // A call that had the time that the node gives.
  void Fail(const std::string& member, Outcome how = Outcome::kFailed) {
    const auto patience = Ask(member);
    ASSERT_TRUE(patience.has_value());
    EXPECT_TRUE(patience->counts);
    health_.End(member, *patience, how);
  }

  FakeClock clock_;
  PeerHealth health_{{.answer_time = milliseconds(15)}, &clock_};
};

TEST_F(PeerHealthTest, WrongBytesThatAreRareAreForgiven) {
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(health_.SentWrong("a"));
    EXPECT_FALSE(health_.SentWrong("a"));
    clock_.Advance(PeerHealth::kWrongWithin);
  }
  EXPECT_TRUE(health_.Hopeful("a"));
  EXPECT_FALSE(health_.SentWrong("a"));
  EXPECT_FALSE(health_.SentWrong("a"));
  EXPECT_FALSE(health_.SentWrong("b"));
  EXPECT_TRUE(health_.SentWrong("a"));
  EXPECT_FALSE(Ask("a"));
  EXPECT_TRUE(health_.Hopeful("b"));
  health_.Renew("a");
  EXPECT_FALSE(Ask("a"));
  clock_.Advance(PeerHealth::kWrongPause);
  EXPECT_TRUE(Ask("a"));
}

TEST_F(PeerHealthTest, WhoSentWrongBytesAndLeavesForAMomentStaysSkipped) {
  for (size_t i = 0; i < PeerHealth::kWrong; ++i) health_.SentWrong("a");
  health_.SentWrong("b");
  health_.SetMembers({});
  EXPECT_EQ(health_.entries(), 2u);
  clock_.Advance(seconds(60));
  health_.SetMembers({"a", "b"});
  EXPECT_FALSE(health_.Hopeful("a"));
  EXPECT_FALSE(health_.SentWrong("b"));
  EXPECT_TRUE(health_.SentWrong("b")) << "the third one";
  clock_.Advance(PeerHealth::kWrongPause);
  health_.SetMembers({});
  EXPECT_EQ(health_.entries(), 0u) << "not for ever";
}

TEST_F(PeerHealthTest, PausesGrowUntilACallWorks) {
  Fail("a");
  Fail("a");
  EXPECT_TRUE(health_.Hopeful("a"));
  Fail("a");
  EXPECT_FALSE(Ask("a"));
  EXPECT_TRUE(health_.Skips("a"));
  Duration pause = PeerHealth::kFirstPause;
  for (int i = 0; i < 10; ++i) {
    clock_.Advance(pause - milliseconds(1));
    EXPECT_FALSE(Ask("a")) << i;
    clock_.Advance(milliseconds(1));
    const auto trial = Ask("a");
    ASSERT_TRUE(trial) << i;
    EXPECT_FALSE(Ask("a")) << "one trial at a time";
    health_.End("a", *trial, Outcome::kBroken);
    pause = std::min(pause * 2, PeerHealth::kLongestPause);
  }
  clock_.Advance(pause);
  const auto trial = Ask("a");
  ASSERT_TRUE(trial);
  health_.End("a", *trial, Outcome::kWorked);
  EXPECT_TRUE(Ask("a"));
  EXPECT_EQ(health_.skipped(), 0u);
}

TEST_F(PeerHealthTest, ManyCallsThatFailTogetherAreOnePause) {
  std::vector<Patience> calls;
  for (int i = 0; i < 100; ++i) calls.push_back(*Ask("a"));
  for (const Patience& call : calls) health_.End("a", call, Outcome::kFailed);
  EXPECT_FALSE(health_.Hopeful("a"));
  clock_.Advance(PeerHealth::kFirstPause);
  EXPECT_TRUE(health_.Hopeful("a"));
}

TEST_F(PeerHealthTest, OnlyTheTimeThatTheNodeGivesCounts) {
  EXPECT_TRUE(Ask("a", milliseconds(15))->counts);
  EXPECT_FALSE(Ask("a", milliseconds(15))->outlives_caller);
  // The first one in a hurry gets the node's time, the others what they have.
  const auto first = Ask("a", milliseconds(1));
  ASSERT_TRUE(first);
  EXPECT_TRUE(first->counts && first->outlives_caller);
  EXPECT_EQ(first->deadline, clock_.Now() + milliseconds(15));
  const auto second = Ask("a", milliseconds(1));
  ASSERT_TRUE(second);
  EXPECT_FALSE(second->counts || second->outlives_caller);
  EXPECT_EQ(second->deadline, clock_.Now() + milliseconds(1));
  EXPECT_TRUE(Ask("b", milliseconds(1))->counts) << "another member";
  health_.End("a", *first, Outcome::kUnknown);
  EXPECT_TRUE(Ask("a", milliseconds(1))->counts);
}

TEST_F(PeerHealthTest, ATrialThatWouldSayNothingIsLeftToOthers) {
  Fail("a", Outcome::kBroken);
  clock_.Advance(PeerHealth::kFirstPause);
  EXPECT_FALSE(health_.MayRead("a", clock_.Now() + milliseconds(1)));
  EXPECT_TRUE(health_.MayRead("a", clock_.Now() + seconds(1)));
  clock_.Advance(PeerHealth::kFirstPause);
  const auto trial = Ask("a", milliseconds(1));
  ASSERT_TRUE(trial);
  EXPECT_TRUE(trial->counts);
}

TEST_F(PeerHealthTest, OnlyMembersAreCalledAndRemembered) {
  EXPECT_FALSE(Ask("made up"));
  EXPECT_FALSE(health_.MayRead("made up", clock_.Now() + seconds(1)));
  EXPECT_FALSE(health_.Hopeful("made up"));
  EXPECT_FALSE(health_.Skips("made up"));
  for (size_t i = 0; i < PeerHealth::kWrong; ++i) EXPECT_FALSE(health_.SentWrong("made up"));
  health_.End("made up", {}, Outcome::kBroken);
  health_.Renew("made up");
  EXPECT_EQ(health_.entries(), 2u);
  // A member that left takes what was known of it along, even if a call ends later.
  Fail("a", Outcome::kBroken);
  const auto call = Ask("b");
  ASSERT_TRUE(call);
  health_.SetMembers({"c"});
  health_.End("b", *call, Outcome::kBroken);
  EXPECT_EQ(health_.entries(), 1u);
  health_.SetMembers({"a", "b"});
  EXPECT_TRUE(Ask("a"));
  EXPECT_TRUE(Ask("b"));
}

}  // namespace
}  // namespace cairn::cache
