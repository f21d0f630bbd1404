#include "services/router/events/engine_feed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/router/index/prefix_index.h"
#include "tests/support/engine_batches.h"

namespace cairn::router {
namespace {

using ::testing::Optional;

const EngineNamespace kSpace = MakeEngineNamespace(EngineKeys::kTokens, 4);

// An engine whose batch n stores the prompt of four tokens that begins with 1000 x engine + 10 x n.
class EngineFeedTest : public ::testing::Test {
 protected:
  explicit EngineFeedTest(bool replays = true) : feed_({.replays = replays}, &view_, &clock_) {}
  static std::string Batch(int n, int engine = 0) {
    BatchWriter writer(EventForm::kMaps, HashForm::kUnsigned);
    const int begin = 1000 * engine + 10 * n;
    return writer
        .Stored({.hashes = {static_cast<uint64_t>(begin) + 1}, .tokens = Counting(begin, 4)})
        .Take();
  }
  void Live(int n, int engine = 0) { feed_.Live(static_cast<uint64_t>(n), Batch(n, engine)); }
  void Replay(int n, int engine = 0) { feed_.Replayed(static_cast<uint64_t>(n), Batch(n, engine)); }
  // The batches of which the index knows the blocks.
  std::vector<int> Known(int engine = 0) {
    std::vector<int> known;
    for (int n = 0; n < 10; ++n) {
      const int32_t begin = 1000 * engine + 10 * n;
      const std::vector<int32_t> tokens = {begin, begin + 1, begin + 2, begin + 3};
      const auto keys = BlockKeyChain(kSpace.fingerprint).Keys(tokens, 4);
      if (!index_.Lookup(kSpace.fingerprint, keys).holders.empty()) known.push_back(n);
    }
    return known;
  }
  // Connected, and nothing had been published before.
  void Begin() {
    feed_.Connected();
    EXPECT_THAT(feed_.TakeReplayRequest(), Optional(0u));
    feed_.ReplayEnded();
  }
  const EngineFeed::Numbers& numbers() const { return feed_.numbers(); }

  using Batches = std::vector<int>;
  FakeClock clock_;
  PrefixIndex index_{PrefixIndex::Options{}};
  EngineView view_{{.member = "http://engine", .space = kSpace},
                   [this](const client::MemberEvent& event, uint32_t tail_blocks) {
                     index_.Apply(event, tail_blocks);
                   }};
  EngineFeed feed_;
};

class EngineFeedWithoutReplaysTest : public EngineFeedTest {
 protected:
  EngineFeedWithoutReplaysTest() : EngineFeedTest(false) {}
};

TEST_F(EngineFeedTest, BatchesInOrderAreApplied) {
  Begin();
  for (int n = 0; n < 4; ++n) Live(n);
  EXPECT_EQ(Known(), (Batches{0, 1, 2, 3}));
  EXPECT_EQ(numbers().live_batches, 4u);
  EXPECT_EQ(numbers().replays, 1u);
  EXPECT_EQ(numbers().forgotten, 0u);
}

TEST_F(EngineFeedTest, ALateRouterBeginsWithWhatTheEngineRemembers) {
  feed_.Connected();
  EXPECT_TRUE(feed_.replaying());
  EXPECT_THAT(feed_.TakeReplayRequest(), Optional(0u));
  EXPECT_EQ(feed_.TakeReplayRequest(), std::nullopt);
  Replay(2);
  Replay(3);
  feed_.ReplayEnded();
  EXPECT_FALSE(feed_.replaying());
  Live(3);  // It came by both ways.
  Live(4);
  EXPECT_EQ(Known(), (Batches{2, 3, 4}));
  EXPECT_EQ(numbers().replayed_batches, 2u);
  EXPECT_EQ(numbers().gaps, 0u);
  EXPECT_EQ(numbers().restarts, 0u);
}

TEST_F(EngineFeedTest, AReplayFillsAGap) {
  Begin();
  Live(0);
  Live(1);
  Live(4);
  EXPECT_TRUE(feed_.replaying());
  EXPECT_THAT(feed_.TakeReplayRequest(), Optional(1u));  // The last one that is known.
  for (int n = 1; n <= 4; ++n) Replay(n);
  feed_.ReplayEnded();
  EXPECT_EQ(Known(), (Batches{0, 1, 2, 3, 4}));
  Live(5);
  EXPECT_EQ(Known().size(), 6u);
  EXPECT_EQ(numbers().gaps, 1u);
  EXPECT_EQ(numbers().forgotten, 0u);
  EXPECT_EQ(numbers().failed_replays, 0u);
}

TEST_F(EngineFeedTest, TheBatchThatShowedTheGapIsAppliedIfTheReplayEndsBeforeIt) {
  Begin();
  Live(0);
  Live(2);
  EXPECT_THAT(feed_.TakeReplayRequest(), Optional(0u));
  Replay(0);
  Replay(1);
  feed_.ReplayEnded();
  EXPECT_EQ(Known(), (Batches{0, 1, 2}));
}

TEST_F(EngineFeedTest, WhatAReplayCannotFillIsForgotten) {
  Begin();
  Live(0);
  Live(1);
  Live(7);
  EXPECT_THAT(feed_.TakeReplayRequest(), Optional(1u));
  // The engine remembers only its last batches.
  Replay(6);
  Replay(7);
  feed_.ReplayEnded();
  EXPECT_EQ(Known(), (Batches{6, 7}));
  EXPECT_EQ(numbers().forgotten, 1u);
  EXPECT_EQ(numbers().failed_replays, 1u);
}

TEST_F(EngineFeedTest, WhatAReplayLeavesOutIsAskedForAgain) {
  Begin();
  Live(0);
  Live(5);
  EXPECT_THAT(feed_.TakeReplayRequest(), Optional(0u));
  Replay(0);
  Replay(1);
  Replay(3);  // ZeroMQ drops what a socket has no room for.
  Replay(4);
  feed_.ReplayEnded();
  EXPECT_THAT(feed_.TakeReplayRequest(), Optional(1u));
  for (int n = 1; n <= 5; ++n) Replay(n);
  // Its end is lost.
  clock_.Advance(std::chrono::seconds(3));
  EXPECT_FALSE(feed_.Tick());
  EXPECT_THAT(feed_.TakeReplayRequest(), Optional(5u));
  Replay(5);
  feed_.ReplayEnded();
  EXPECT_EQ(Known(), (Batches{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(numbers().forgotten, 0u);
}

TEST_F(EngineFeedTest, AReplayThatLeavesTheSameOutAgainForgetsWhatWasBeforeIt) {
  Begin();
  Live(0);
  Live(5);
  EXPECT_THAT(feed_.TakeReplayRequest(), Optional(0u));
  Replay(0);
  Replay(1);
  Replay(3);
  EXPECT_THAT(feed_.TakeReplayRequest(), Optional(1u));
  Replay(1);
  Replay(3);
  Replay(4);
  feed_.ReplayEnded();
  EXPECT_EQ(Known(), (Batches{3, 4, 5}));
  EXPECT_EQ(numbers().forgotten, 1u);
}

TEST_F(EngineFeedTest, AReplayThatDoesNotComeForgetsAndIsNotAskedForAgainAtOnce) {
  Begin();
  Live(0);
  Live(2);
  EXPECT_THAT(feed_.TakeReplayRequest(), Optional(0u));
  clock_.Advance(std::chrono::milliseconds(1900));
  EXPECT_FALSE(feed_.Tick());
  clock_.Advance(std::chrono::milliseconds(200));
  EXPECT_TRUE(feed_.Tick());
  EXPECT_FALSE(feed_.replaying());
  EXPECT_EQ(Known(), (Batches{2}));
  Live(4);
  EXPECT_FALSE(feed_.replaying());
  EXPECT_EQ(Known(), (Batches{4}));
  clock_.Advance(std::chrono::seconds(11));
  Live(6);
  EXPECT_TRUE(feed_.replaying());
}

TEST_F(EngineFeedTest, AReplayThatGetsStuckIsAskedForAgainOnlyIfItBroughtSomething) {
  Begin();
  Live(0);
  Live(3);
  EXPECT_THAT(feed_.TakeReplayRequest(), Optional(0u));
  Replay(0);
  Replay(1);
  clock_.Advance(std::chrono::seconds(3));
  EXPECT_FALSE(feed_.Tick());
  EXPECT_THAT(feed_.TakeReplayRequest(), Optional(1u));
  Replay(1);
  clock_.Advance(std::chrono::seconds(3));
  EXPECT_TRUE(feed_.Tick());
  EXPECT_EQ(Known(), (Batches{3}));
}

TEST_F(EngineFeedTest, ASlowReplayThatGoesOnIsWaitedFor) {
  Begin();
  Live(0);
  Live(5);
  EXPECT_TRUE(feed_.TakeReplayRequest().has_value());
  for (int n = 0; n <= 5; ++n) {
    clock_.Advance(std::chrono::milliseconds(1500));
    EXPECT_FALSE(feed_.Tick());
    Replay(n);
  }
  feed_.ReplayEnded();
  EXPECT_EQ(Known().size(), 6u);
}

TEST_F(EngineFeedTest, NumbersThatBeginAgainAreARestart) {
  Begin();
  for (int n = 0; n < 4; ++n) Live(n);
  Live(0, 1);
  EXPECT_EQ(Known(0), Batches{});
  EXPECT_EQ(Known(1), (Batches{0}));
  Live(1, 1);
  EXPECT_EQ(Known(1), (Batches{0, 1}));
  EXPECT_EQ(numbers().restarts, 1u);
  EXPECT_EQ(numbers().forgotten, 1u);
}

TEST_F(EngineFeedTest, AfterABreakTheSameEngineGoesOn) {
  Begin();
  for (int n = 0; n < 3; ++n) Live(n);
  feed_.Disconnected();
  EXPECT_EQ(Known().size(), 3u);
  feed_.Connected();
  EXPECT_THAT(feed_.TakeReplayRequest(), Optional(2u));
  Replay(2);
  Replay(3);
  feed_.ReplayEnded();
  Live(4);
  EXPECT_EQ(Known().size(), 5u);
  EXPECT_EQ(numbers().forgotten, 0u);
}

TEST_F(EngineFeedTest, AfterABreakAnotherEngineIsToldByItsBytes) {
  Begin();
  for (int n = 0; n < 3; ++n) Live(n);
  feed_.Disconnected();
  feed_.Connected();
  EXPECT_THAT(feed_.TakeReplayRequest(), Optional(2u));
  // It has come just as far as the old one had.
  Replay(2, 1);
  feed_.ReplayEnded();
  Live(3, 1);
  EXPECT_EQ(Known(0), Batches{});
  EXPECT_EQ(Known(1), (Batches{2, 3}));
  EXPECT_EQ(numbers().restarts, 1u);
}

TEST_F(EngineFeedTest, AfterABreakAnEngineThatIsNotSoFarIsAskedFromItsBeginning) {
  Begin();
  for (int n = 0; n < 3; ++n) Live(n);
  feed_.Disconnected();
  feed_.Connected();
  EXPECT_THAT(feed_.TakeReplayRequest(), Optional(2u));
  feed_.ReplayEnded();
  EXPECT_EQ(Known(0), Batches{});
  EXPECT_THAT(feed_.TakeReplayRequest(), Optional(0u));
  Replay(0, 1);
  feed_.ReplayEnded();
  Live(1, 1);
  EXPECT_EQ(Known(1), (Batches{0, 1}));
}

TEST_F(EngineFeedTest, AnEngineThatStaysAwayHoldsNothing) {
  Begin();
  Live(0);
  feed_.Disconnected();
  clock_.Advance(std::chrono::milliseconds(4900));
  feed_.Tick();
  EXPECT_EQ(Known(), (Batches{0}));
  clock_.Advance(std::chrono::milliseconds(200));
  feed_.Tick();
  EXPECT_EQ(Known(), Batches{});
  EXPECT_EQ(index_.numbers().members, 0u);
  // It comes back, having lost nothing.
  feed_.Connected();
  EXPECT_THAT(feed_.TakeReplayRequest(), Optional(0u));
  Replay(0);
  feed_.ReplayEnded();
  EXPECT_EQ(Known(), (Batches{0}));
}

TEST_F(EngineFeedTest, AFirstReplayThatFailsIsTriedAgain) {
  feed_.Connected();
  EXPECT_THAT(feed_.TakeReplayRequest(), Optional(0u));
  clock_.Advance(std::chrono::seconds(3));
  EXPECT_TRUE(feed_.Tick());
  EXPECT_EQ(feed_.TakeReplayRequest(), std::nullopt);
  clock_.Advance(std::chrono::seconds(10));
  feed_.Tick();
  EXPECT_THAT(feed_.TakeReplayRequest(), Optional(0u));
  Replay(0);
  feed_.ReplayEnded();
  EXPECT_EQ(Known(), (Batches{0}));
}

TEST_F(EngineFeedTest, ABatchThatCannotBeReadMayHaveRemovedSomething) {
  Begin();
  Live(0);
  feed_.Live(1, "junk");
  EXPECT_EQ(Known(), Batches{});
  EXPECT_EQ(numbers().junk, 1u);
  EXPECT_NE(feed_.TakeError(), "");
  EXPECT_EQ(feed_.TakeError(), "");
  Live(2);
  EXPECT_EQ(Known(), (Batches{2}));
  EXPECT_EQ(numbers().gaps, 0u);
}

TEST_F(EngineFeedTest, AnswersThatNobodyAskedForAreNotHeard) {
  Begin();
  Replay(5);
  feed_.ReplayEnded();
  EXPECT_EQ(Known(), Batches{});
  Live(0);
  EXPECT_EQ(Known(), (Batches{0}));
}

TEST_F(EngineFeedWithoutReplaysTest, ALateRouterKnowsWhatComes) {
  feed_.Connected();
  EXPECT_FALSE(feed_.replaying());
  Live(5);
  Live(6);
  EXPECT_EQ(Known(), (Batches{5, 6}));
  EXPECT_EQ(numbers().gaps, 0u);
}

TEST_F(EngineFeedWithoutReplaysTest, AGapForgets) {
  feed_.Connected();
  Live(0);
  Live(2);
  EXPECT_EQ(Known(), (Batches{2}));
  EXPECT_EQ(numbers().gaps, 1u);
  EXPECT_EQ(numbers().forgotten, 1u);
}

TEST_F(EngineFeedWithoutReplaysTest, ABreakForgets) {
  feed_.Connected();
  Live(0);
  feed_.Disconnected();
  EXPECT_EQ(Known(), Batches{});
  feed_.Connected();
  Live(1);
  EXPECT_EQ(Known(), (Batches{1}));
}

}  // namespace
}  // namespace cairn::router
