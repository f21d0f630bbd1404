// A client and its node with a network between them that is cut, lossy, slow or late. Bytes that
// come are right, and nothing waits beyond its deadline.

#include <gtest/gtest.h>

#include "tests/fault/cluster/cluster_on_lab.h"

namespace cairn::fault {
namespace {

using testing::NetworkLab;

class LoneNodeLabTest : public ::testing::Test {
 protected:
  void Make(NetworkLab::Options lab = {.machines = 1}) {
    if (const Status can = NetworkLab::Available(lab.wiring); !can.ok()) {
      GTEST_SKIP() << can.message();
    }
    auto made = ClusterOnLab::Start({.nodes = 1, .lab = lab});
    ASSERT_TRUE(made.ok()) << made.status();
    cluster_ = *std::move(made);
    client_ = cluster_->Connect(0, model_);
    const WriteOutcome written = Write(*client_, model_, keys_, 0, model_.whole());
    ASSERT_EQ(written.stored_blocks, kPromptBlocks) << ToString(written.refused);
  }
  NetworkLab& lab() { return cluster_->lab(); }
  ReadOutcome Read() {
    ReadOutcome outcome = fault::Read(*client_, model_, keys_,
                                      {.match_deadline = milliseconds(300),
                                       .fetch_deadline = seconds(2),
                                       .progress = seconds(1)});
    EXPECT_EQ(outcome.wrong, std::vector<std::string>());
    return outcome;
  }
  bool WaitUntilRead() {
    return WaitUntil([&] { return Read().complete_blocks == kPromptBlocks; }, seconds(120));
  }

  const FaultModel model_{ModelForCluster("lone")};
  const std::vector<BlockKey> keys_ = LongPrompt(model_, 0);
  std::unique_ptr<ClusterOnLab> cluster_;
  std::unique_ptr<client::CacheClient> client_;
};

#define MAKE_NODE(...)                        \
  ASSERT_NO_FATAL_FAILURE(Make(__VA_ARGS__)); \
  if (IsSkipped()) return

TEST_F(LoneNodeLabTest, ACutEitherWayEndsInTimeAndHeals) {
  MAKE_NODE();
  for (const bool answers : {true, false}) {
    SCOPED_TRACE(answers ? "answers are lost" : "questions are lost");
    ASSERT_TRUE(WaitUntilRead());
    const size_t from = answers ? 0 : lab().tester(), to = answers ? lab().tester() : 0;
    ASSERT_TRUE(lab().Cut(from, to).ok());
    const auto begin = std::chrono::steady_clock::now();
    const ReadOutcome outcome = Read();
    EXPECT_FALSE(outcome.status.ok());
    EXPECT_EQ(outcome.complete_blocks, 0U);
    // Its deadlines are 2.3 s; a busy machine takes longer.
    EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(60));
    ASSERT_TRUE(lab().Restore(from, to).ok());
  }
  EXPECT_TRUE(WaitUntilRead());
}

TEST_F(LoneNodeLabTest, LostPacketsLoseNoBytes) {
  MAKE_NODE();
  ASSERT_TRUE(lab().SetLoss(0, 1, 30).ok());
  ASSERT_TRUE(lab().SetLoss(1, 0, 30).ok());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(WaitUntilRead());
}

TEST_F(LoneNodeLabTest, AnUnusableLinkEndsInTime) {
  MAKE_NODE();
  // The prompt's 1.2 MB would take ten times as long as the reader allows.
  ASSERT_TRUE(lab().SetRate(0, 500'000).ok());
  const ReadOutcome outcome = Read();
  EXPECT_LT(outcome.complete_blocks, kPromptBlocks);
  ASSERT_TRUE(lab().SetRate(0, 0).ok());
  EXPECT_TRUE(WaitUntilRead());
}

TEST_F(LoneNodeLabTest, LateReorderedAndDuplicatedFramesBringRightBytes) {
  MAKE_NODE({.machines = 1,
             .wiring = NetworkLab::Wiring::kSwitch,
             .delay = {.least = milliseconds(2),
                       .jitter = milliseconds(2),
                       .reordered = 20,
                       .duplicated = 20},
             .seed = Seed()});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(WaitUntilRead());
}

}  // namespace
}  // namespace cairn::fault
