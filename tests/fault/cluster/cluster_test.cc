// A cluster in a network of its own: nodes that die, stop, are cut off or slow. A read through
// another node brings right bytes, or ends in a miss within its deadline.

#include <gtest/gtest.h>

#include <csignal>

#include "tests/fault/cluster/cluster_on_lab.h"

namespace cairn::fault {
namespace {

using testing::NetworkLab;

// The limits of a reader: short, so that calls that wait too long are seen.
const ReadOptions kReader{
    .match_deadline = milliseconds(500), .fetch_deadline = seconds(5), .progress = seconds(1)};
// Limit for a whole read, with room for a busy machine.
constexpr seconds kLongestRead(60);

class ClusterLabTest : public ::testing::Test {
 protected:
  void Make(ClusterOnLab::Options options = {}) {
    if (const Status can = NetworkLab::Available(options.lab.wiring); !can.ok()) {
      GTEST_SKIP() << can.message();
    }
    auto made = ClusterOnLab::Start(std::move(options));
    ASSERT_TRUE(made.ok()) << made.status();
    cluster_ = *std::move(made);
    const Status whole = cluster_->WaitUntilWhole();
    ASSERT_TRUE(whole.ok()) << whole;
  }

  // Stores prompts [0, count) of a new namespace at a node.
  void Store(const std::string& name, size_t node, uint64_t count) {
    model_ = std::make_unique<FaultModel>(ModelForCluster(name));
    const auto writer = cluster_->Connect(node, *model_);
    for (uint64_t number = 0; number < count; ++number) {
      const WriteOutcome written =
          Write(*writer, *model_, LongPrompt(*model_, number), 0, model_->whole());
      ASSERT_EQ(written.stored_blocks, kPromptBlocks) << ToString(written.refused);
    }
  }

  // One read, whatever is broken: no error, no wrong byte, no wait beyond its deadline.
  ReadOutcome ReadSafely(client::CacheClient& client, uint64_t number) {
    const auto begin = std::chrono::steady_clock::now();
    const ReadOutcome outcome = Read(client, *model_, LongPrompt(*model_, number), kReader);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kLongestRead);
    EXPECT_TRUE(outcome.status.ok()) << ToString(outcome.status);
    EXPECT_EQ(outcome.wrong, std::vector<std::string>());
    EXPECT_EQ(outcome.complete_blocks + outcome.failed_blocks, outcome.matched_blocks);
    return outcome;
  }

  // Reads until a whole prompt comes. A reader keeps what it read.
  bool WaitUntilRead(client::CacheClient& client, uint64_t number) {
    return WaitUntil([&] { return ReadSafely(client, number).complete_blocks == kPromptBlocks; },
                     seconds(120));
  }

  std::unique_ptr<ClusterOnLab> cluster_;
  std::unique_ptr<FaultModel> model_;
};

#define MAKE_CLUSTER(...)                     \
  ASSERT_NO_FATAL_FAILURE(Make(__VA_ARGS__)); \
  if (IsSkipped()) return

TEST_F(ClusterLabTest, BlocksOfOneNodeAreReadThroughAnother) {
  MAKE_CLUSTER();
  ASSERT_NO_FATAL_FAILURE(Store("through another", 0, 4));
  const auto second = cluster_->Connect(1, *model_), third = cluster_->Connect(2, *model_);
  for (uint64_t number = 0; number < 4; ++number) {
    EXPECT_TRUE(WaitUntilRead(*second, number)) << number;
    EXPECT_TRUE(WaitUntilRead(*third, number)) << number;
  }
}

TEST_F(ClusterLabTest, ReadsOfAKilledNodesBlocksEndInMisses) {
  MAKE_CLUSTER();
  ASSERT_NO_FATAL_FAILURE(Store("killed", 0, 40));
  const auto reader = cluster_->Connect(1, *model_);
  ASSERT_TRUE(WaitUntilRead(*reader, 0));
  // It dies while its blocks are read.
  std::mt19937_64 random(Seed());
  const uint64_t last = 1 + random() % 20;
  for (uint64_t number = 1; number < 40; ++number) {
    if (number == last) cluster_->Kill(0);
    const ReadOutcome outcome = ReadSafely(*reader, number);
    EXPECT_TRUE(number < last || outcome.complete_blocks == 0) << number;
  }
  // Blocks that the reader has copied stay.
  EXPECT_EQ(ReadSafely(*reader, 0).complete_blocks, kPromptBlocks);
  // The others are a cluster still, and the dead one joins again.
  ASSERT_TRUE(cluster_->Restart(0).ok());
  const Status whole = cluster_->WaitUntilWhole();
  EXPECT_TRUE(whole.ok()) << whole;
}

TEST_F(ClusterLabTest, AStoppedNodeDelaysNoReadBeyondItsDeadline) {
  MAKE_CLUSTER();
  ASSERT_NO_FATAL_FAILURE(Store("stopped", 0, 20));
  const auto reader = cluster_->Connect(1, *model_);
  ASSERT_TRUE(WaitUntilRead(*reader, 0));
  cluster_->process(0).Signal(SIGSTOP);
  for (uint64_t number = 1; number < 10; ++number) {
    EXPECT_EQ(ReadSafely(*reader, number).complete_blocks, 0U);
  }
  cluster_->process(0).Signal(SIGCONT);
  EXPECT_TRUE(WaitUntilRead(*reader, 10));
}

TEST_F(ClusterLabTest, AOneWayCutEndsInMissesAndHeals) {
  MAKE_CLUSTER();
  ASSERT_NO_FATAL_FAILURE(Store("cut", 0, 20));
  const auto reader = cluster_->Connect(1, *model_);
  ASSERT_TRUE(WaitUntilRead(*reader, 0));
  uint64_t number = 1;
  // Its answers are lost; then what it is asked.
  for (const auto& [from, to] :
       {std::pair<size_t, size_t>(0, 1), std::pair<size_t, size_t>(1, 0)}) {
    SCOPED_TRACE(fmt::format("from {} to {}", from, to));
    ASSERT_TRUE(cluster_->Cut(from, to).ok());
    for (int i = 0; i < 5; ++i) EXPECT_EQ(ReadSafely(*reader, number++).complete_blocks, 0U);
    ASSERT_TRUE(cluster_->lab().Restore(from, to).ok());
    EXPECT_TRUE(WaitUntilRead(*reader, number++));
  }
}

TEST_F(ClusterLabTest, ASlowLinkBringsRightBytesOrMisses) {
  MAKE_CLUSTER();
  ASSERT_NO_FATAL_FAILURE(Store("slow", 0, 8));
  const auto reader = cluster_->Connect(1, *model_);
  ASSERT_TRUE(WaitUntilRead(*reader, 0));
  // A prompt takes about half a second, and then 10 s, which no reader waits for.
  for (const uint64_t rate : {20'000'000, 1'000'000}) {
    ASSERT_TRUE(cluster_->lab().SetRate(0, rate).ok());
    for (uint64_t number = 1; number < 4; ++number) ReadSafely(*reader, number);
  }
  ASSERT_TRUE(cluster_->lab().SetRate(0, 0).ok());
  EXPECT_TRUE(WaitUntilRead(*reader, 7));
}

TEST_F(ClusterLabTest, LostPacketsLoseNoBytes) {
  MAKE_CLUSTER();
  ASSERT_NO_FATAL_FAILURE(Store("lossy", 0, 8));
  ASSERT_TRUE(cluster_->lab().SetLoss(0, 1, 30).ok());
  ASSERT_TRUE(cluster_->lab().SetLoss(1, 0, 30).ok());
  const auto reader = cluster_->Connect(1, *model_);
  for (uint64_t number = 0; number < 8; ++number) EXPECT_TRUE(WaitUntilRead(*reader, number));
}

TEST_F(ClusterLabTest, LateReorderedAndDuplicatedFramesAreNoError) {
  MAKE_CLUSTER({.lab = {.wiring = NetworkLab::Wiring::kSwitch, .seed = Seed()}});
  ASSERT_NO_FATAL_FAILURE(Store("late", 0, 8));
  for (size_t from = 0; from < cluster_->size(); ++from) {
    for (size_t to = 0; to < cluster_->size(); ++to) {
      cluster_->lab().SetDelay(
          from, to,
          {.least = milliseconds(2), .jitter = milliseconds(2), .reordered = 20, .duplicated = 20});
    }
  }
  const auto reader = cluster_->Connect(1, *model_);
  for (uint64_t number = 0; number < 8; ++number) EXPECT_TRUE(WaitUntilRead(*reader, number));
}

}  // namespace
}  // namespace cairn::fault
