#include "services/worker/session/fetch_progress.h"

#include <thread>

#include "common/status/matchers.h"

namespace cairn::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint32_t kBlocks = 3;
constexpr uint32_t kLayers = 2;
constexpr uint32_t kHeads = 2;

TimePoint Now() { return SteadyClock::Get().Now(); }

class FetchProgressTest : public ::testing::Test {
 protected:
  void Arrive(uint32_t block, uint32_t layer) {
    progress_.Arrived({block, layer, 0, kHeads}, 10, false, Now());
  }
  void ArriveAll() {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      for (uint32_t block = 0; block < kBlocks; ++block) Arrive(block, layer);
    }
  }

  FetchProgress progress_{{kBlocks, kLayers, kHeads}, Now(), seconds(30), seconds(60)};
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

TEST_F(FetchProgressTest, PollingSaysWhenTheFetchIsOverAndNeverWaits) {
  EXPECT_FALSE(progress_.PollDone());
  ArriveAll();
  EXPECT_TRUE(progress_.PollDone());
  EXPECT_FALSE(progress_.TimedOut());

  FetchProgress late({kBlocks, kLayers, kHeads}, Now() - seconds(2), seconds(1), seconds(1));
  EXPECT_TRUE(late.PollDone());
  EXPECT_TRUE(late.TimedOut());
  EXPECT_EQ(late.Reason(), MissReason::kDeadline);

  // Time before the first poll does not count as a stall.
  FetchProgress polled({kBlocks, kLayers, kHeads}, Now() - seconds(40), seconds(30), seconds(90));
  EXPECT_FALSE(polled.PollDone());
}

TEST_F(FetchProgressTest, HeadsOfSeveralPartsMakeALayer) {
  progress_.Arrived({0, 0, 0, 1}, 1, false, Now());
  EXPECT_EQ(progress_.Missing({0, 0, 0, 2}), 1u);
  EXPECT_EQ(progress_.Missing({0, 0, 0, 1}), 0u);
  // Overlaps what is there: counted once.
  progress_.Arrived({0, 0, 0, 2}, 1, false, Now());
  EXPECT_EQ(progress_.Missing({0, 0, 0, 2}), 0u);
  progress_.Arrived({0, 1, 0, 2}, 1, false, Now());
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

TEST(FetchProgressDeadlineTest, SilenceIsOverAfterTheStallDeadline) {
  const TimePoint start = Now();
  FetchProgress progress({1, 1, 1}, start, milliseconds(20), seconds(60));
  EXPECT_FALSE(progress.WaitLayer(0).ok());
  EXPECT_GE(Now() - start, milliseconds(20));
  EXPECT_TRUE(progress.TimedOut());
  EXPECT_EQ(progress.Reason(), MissReason::kDeadline);
}

TEST(FetchProgressDeadlineTest, ProgressMovesTheStallDeadlineButNotTheLimit) {
  const TimePoint start = Now();
  FetchProgress progress({2, 1, 1}, start, milliseconds(10), milliseconds(100));
  progress.Arrived({0, 0, 0, 1}, 1, false, start + seconds(10));
  EXPECT_FALSE(progress.WaitLayer(0).ok());
  EXPECT_GE(Now() - start, milliseconds(100));
  EXPECT_TRUE(progress.TimedOut());
}

}  // namespace
}  // namespace cairn::worker
