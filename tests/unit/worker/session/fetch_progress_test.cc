#include "services/worker/session/fetch_progress.h"

#include <atomic>
#include <thread>

#include "common/status/matchers.h"

namespace cairn::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint32_t kBlocks = 3;
constexpr uint32_t kLayers = 2;
constexpr uint32_t kHeads = 2;

// Time passes while somebody waits, and only then.
class WaitedClock final : public Clock {
 public:
  TimePoint Now() const override { return time_.Now(); }
  void Wait(CondVar&, Mutex&, TimePoint deadline, const std::function<bool()>&) const override {
    time_.Advance(deadline - time_.Now());
  }
  void Advance(Duration by) { time_.Advance(by); }

 private:
  mutable FakeClock time_;
};

class FetchProgressTest : public ::testing::Test {
 protected:
  void Arrive(uint32_t block, uint32_t layer) {
    progress_.Arrived({block, layer, 0, kHeads}, 10, TierKind::kHost);
  }
  void ArriveAll() {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      for (uint32_t block = 0; block < kBlocks; ++block) Arrive(block, layer);
    }
  }

  const Clock& clock_ = SteadyClock::Get();
  Wakeup wakeup_;
  FetchProgress progress_{
      clock_, wakeup_, {kBlocks, kLayers, kHeads}, {clock_.Now(), seconds(30), seconds(60)}};
};

TEST_F(FetchProgressTest, LayerIsThereWhenAllBlocksHaveIt) {
  std::thread fetch([&] { ArriveAll(); });
  EXPECT_OK(progress_.WaitLayer(0));
  EXPECT_OK(progress_.WaitLayer(1));
  progress_.WaitDone();
  fetch.join();
  EXPECT_EQ(progress_.CompletePrefix(), kBlocks);
  EXPECT_EQ(progress_.Reason(), MissReason::kNone);
  EXPECT_EQ(progress_.bytes().host, 10u * kBlocks * kLayers);
}

TEST_F(FetchProgressTest, AWaitForALayerEndsWhenItsCallerIsWantedElsewhere) {
  std::atomic<bool> wanted{false};
  std::thread other([&] {
    wanted = true;
    wakeup_.Notify();
  });
  const Status status = progress_.WaitLayer(0, 0, {[&] { return wanted.load(); }});
  other.join();
  EXPECT_EQ(status.code(), StatusCode::kAborted) << status;
  EXPECT_FALSE(progress_.TurnedBack());
  EXPECT_FALSE(progress_.Broken());
  ArriveAll();
  EXPECT_OK(progress_.WaitLayer(0, 0, {[] { return true; }}));
}

TEST_F(FetchProgressTest, EachCompleteLayerOrBlockAndTheEndWakeTheEngine) {
  const auto wakes = [this](const auto& act) {
    const uint64_t before = wakeup_.Now();
    act();
    return wakeup_.Now() > before;
  };
  EXPECT_FALSE(wakes([&] { Arrive(0, 0); })) << "neither a layer nor a block";
  EXPECT_TRUE(wakes([&] { Arrive(0, 1); })) << "a block";
  EXPECT_FALSE(wakes([&] { Arrive(1, 0); }));
  EXPECT_TRUE(wakes([&] { Arrive(2, 0); })) << "a layer";
  EXPECT_TRUE(wakes([&] { progress_.BlockFailed(1, MissReason::kCorrupt); }));
  EXPECT_TRUE(wakes([&] { progress_.Ended(MissReason::kNone); }));
}

TEST_F(FetchProgressTest, PollingSaysWhenTheFetchIsOver) {
  EXPECT_FALSE(progress_.PollDone());
  ArriveAll();
  EXPECT_TRUE(progress_.PollDone());
  EXPECT_FALSE(progress_.TimedOut());
}

TEST_F(FetchProgressTest, HeadsOfSeveralPartsMakeALayer) {
  progress_.Arrived({0, 0, 0, 1}, 1, TierKind::kHost);
  EXPECT_EQ(progress_.Missing({0, 0, 0, 2}), 1u);
  EXPECT_EQ(progress_.Missing({0, 0, 0, 1}), 0u);
  // Overlaps what is there: counted once.
  progress_.Arrived({0, 0, 0, 2}, 1, TierKind::kHost);
  EXPECT_EQ(progress_.Missing({0, 0, 0, 2}), 0u);
  progress_.Arrived({0, 1, 0, 2}, 1, TierKind::kHost);
  EXPECT_EQ(progress_.CompletePrefix(), 1u);
}

TEST_F(FetchProgressTest, PiecesOutsideOfTheFetchAreNotMissing) {
  EXPECT_EQ(progress_.Missing({kBlocks, 0, 0, 1}), 0u);
  EXPECT_EQ(progress_.Missing({0, kLayers, 0, 1}), 0u);
  EXPECT_EQ(progress_.Missing({0, 0, 0, kHeads + 1}), 0u);
  EXPECT_EQ(progress_.Missing({0, 0, 1, 1}), 0u);
}

TEST_F(FetchProgressTest, FailedBlockEndsLayerWaitsButEarlierBlocksMayStillCome) {
  Arrive(0, 0);
  progress_.BlockFailed(1, MissReason::kCorrupt);
  EXPECT_THAT(progress_.WaitLayer(0), testing::StatusIs(StatusCode::kAborted, ::testing::_));
  std::thread fetch([&] { Arrive(0, 1); });
  progress_.WaitDone();
  fetch.join();
  EXPECT_EQ(progress_.CompletePrefix(), 1u);
  EXPECT_EQ(progress_.Reason(), MissReason::kCorrupt);
}

TEST_F(FetchProgressTest, EndBeforeAllArrivedGivesThePrefixAndTheReason) {
  Arrive(0, 0);
  Arrive(0, 1);
  Arrive(2, 0);
  Arrive(2, 1);
  progress_.Ended(MissReason::kUnavailable);
  EXPECT_THAT(progress_.WaitLayer(0), testing::StatusIs(StatusCode::kAborted, ::testing::_));
  progress_.WaitDone();
  EXPECT_EQ(progress_.CompletePrefix(), 1u);
  EXPECT_EQ(progress_.Reason(), MissReason::kUnavailable);
}

TEST_F(FetchProgressTest, BlockThatFailsAfterItArrivedIsNotUsed) {
  ArriveAll();
  progress_.BlockFailed(2, MissReason::kEvicted);
  progress_.Ended(MissReason::kNone);
  EXPECT_EQ(progress_.CompletePrefix(), 2u);
}

class FetchProgressDeadlineTest : public ::testing::Test {
 protected:
  Duration Passed() const { return clock_.Now() - start_; }

  WaitedClock clock_;
  Wakeup wakeup_;
  const TimePoint start_ = clock_.Now();
};

TEST_F(FetchProgressDeadlineTest, SilenceIsOverAfterTheStallDeadline) {
  FetchProgress progress(clock_, wakeup_, {1, 1, 1}, {start_, milliseconds(25), seconds(60)});
  EXPECT_FALSE(progress.WaitLayer(0).ok());
  EXPECT_EQ(Passed(), milliseconds(25));
  EXPECT_TRUE(progress.TimedOut());
  EXPECT_EQ(progress.Reason(), MissReason::kDeadline);
}

TEST_F(FetchProgressDeadlineTest, AWaitEndsWhenItsCallerRunsIntoADeadlineOfItsOwn) {
  FetchProgress progress(clock_, wakeup_, {1, 1, 1}, {start_, seconds(25), seconds(60)});
  const auto until = [this](milliseconds passed) -> FetchInterrupt {
    return {.wanted = [this, passed] { return Passed() >= passed; }, .at = start_ + passed};
  };
  EXPECT_EQ(progress.WaitLayer(0, 0, until(milliseconds(10))).code(), StatusCode::kAborted);
  EXPECT_EQ(Passed(), milliseconds(10));
  progress.WaitDone(until(milliseconds(15)));
  EXPECT_EQ(Passed(), milliseconds(15));
  EXPECT_FALSE(progress.TimedOut()) << "the fetch goes on";
}

TEST_F(FetchProgressDeadlineTest, ProgressMovesTheStallDeadline) {
  FetchProgress progress(clock_, wakeup_, {2, 1, 1}, {start_, milliseconds(25), seconds(60)});
  clock_.Advance(milliseconds(20));
  progress.Arrived({0, 0, 0, 1}, 1, TierKind::kHost);
  progress.WaitDone();
  EXPECT_EQ(Passed(), milliseconds(45));
  EXPECT_EQ(progress.CompletePrefix(), 1u);
}

TEST_F(FetchProgressDeadlineTest, ProgressDoesNotMoveTheLimit) {
  FetchProgress progress(clock_, wakeup_, {2, 1, 1}, {start_, milliseconds(25), milliseconds(40)});
  clock_.Advance(milliseconds(20));
  progress.Arrived({0, 0, 0, 1}, 1, TierKind::kHost);
  EXPECT_FALSE(progress.WaitLayer(0).ok());
  EXPECT_EQ(Passed(), milliseconds(40));
  EXPECT_TRUE(progress.TimedOut());
}

TEST_F(FetchProgressDeadlineTest, PollingNeverWaitsAndCountsSilenceFromTheFirstPoll) {
  FetchProgress progress(clock_, wakeup_, {1, 1, 1}, {start_, milliseconds(25), seconds(60)});
  clock_.Advance(seconds(1));
  EXPECT_FALSE(progress.PollDone());
  EXPECT_EQ(progress.PollDeadline() - start_, milliseconds(1025));
  clock_.Advance(milliseconds(24));
  EXPECT_FALSE(progress.PollDone());
  clock_.Advance(milliseconds(1));
  EXPECT_TRUE(progress.PollDone());
  EXPECT_EQ(Passed(), milliseconds(1025));
  EXPECT_EQ(progress.Reason(), MissReason::kDeadline);
}

TEST_F(FetchProgressDeadlineTest, AClaimGivesUpOnAWriteThatDoesNotEnd) {
  FetchProgress progress(clock_, wakeup_, {1, 1, 1}, {start_, milliseconds(25), seconds(60)});
  ASSERT_TRUE(progress.BeginWrite(0));
  int cancelled = 0;
  EXPECT_FALSE(progress.Claim(0, 1, [&] { ++cancelled; }));
  EXPECT_EQ(cancelled, 1);
  EXPECT_TRUE(progress.TimedOut());
}

}  // namespace
}  // namespace cairn::worker
