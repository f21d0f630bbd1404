#include "services/worker/engine/idle_turns.h"

#include <gtest/gtest.h>

#include "common/status/matchers.h"

namespace cairn::worker {
namespace {

using Progress = IdleTurns::Progress;

constexpr int64_t kBlock = 16;

class IdleTurnsTest : public ::testing::Test {
 protected:
  IdleTurnsTest() {
    const KvLayout kv{.layers = 1, .kv_heads = 1, .head_dim = 8, .block_tokens = kBlock};
    auto pool = KvPool::Create(kv, 16 * kv.page_bytes());
    EXPECT_OK(pool);
    pool_ = *std::move(pool);
  }
  IdleTurns Turns(size_t most) {
    return IdleTurns(
        {.pool = *pool_,
         .clock = clock_,
         .most = most,
         .finished_turn =
             [](const Job& job, const GenerateSummary& summary) {
               std::vector<model::TokenId> tokens = job.prompt().tokens;
               tokens.insert(tokens.end(), summary.tokens.begin(), summary.tokens.end());
               return tokens;
             },
         .compute =
             [this](const PromptRequest& wanted) {
               computed_.push_back(std::ssize(wanted.tokens));
               had_.push_back(wanted.sequence->length());
               PromptReport report;
               report.status = wanted.stop() ? Status(StatusCode::kCancelled, "stop") : OkStatus();
               report.computed_tokens = kBlock;
               return report;
             },
         .stop = [this] { return stop_; },
         .pushing = [this] { return pushing_; }});
  }
  // A prompt of so many tokens that has been answered.
  void Keep(IdleTurns& turns, size_t prompt_tokens, const std::string& finish_reason = "length") {
    PreparedPrompt prompt;
    prompt.tokens.assign(prompt_tokens, 7);
    prompt.max_tokens = 20;
    GenerateSummary summary;
    summary.tokens.assign(20, 8);
    summary.finish_reason = finish_reason;
    auto sequence = std::make_shared<KvSequence>(pool_->NewSequence());
    const auto length = static_cast<int64_t>(prompt_tokens) + 20;
    ASSERT_OK(sequence->Reserve(length));
    sequence->SetLength(length);
    turns.Keep(Job(GenerateRequest(), prompt, clock_), summary, std::move(sequence));
  }

  FakeClock clock_;
  std::unique_ptr<KvPool> pool_;
  bool stop_ = false;
  bool pushing_ = false;
  std::vector<int64_t> computed_, had_;  // Tokens.
};

TEST_F(IdleTurnsTest, ATurnIsPrefilledOnThePagesOfItsPrompt) {
  IdleTurns turns = Turns(4);
  EXPECT_EQ(turns.Step(), Progress::kIdle);
  Keep(turns, 40);
  EXPECT_FALSE(turns.WaitNone(clock_.Now()));
  pushing_ = true;  // It has its pages, so it need not wait.
  EXPECT_EQ(turns.Step(), Progress::kWorked);
  EXPECT_EQ(computed_, std::vector<int64_t>{48});  // Whole blocks of 60 tokens.
  EXPECT_EQ(had_, std::vector<int64_t>{32});       // What the prefill path computed.
  EXPECT_TRUE(turns.WaitNone(clock_.Now()));
  EXPECT_EQ(turns.GetStats().prefilled_tokens, static_cast<uint64_t>(kBlock));
}

TEST_F(IdleTurnsTest, ATurnWithoutPagesWaitsForThePushesOfItsRequest) {
  IdleTurns turns = Turns(4);
  Keep(turns, 40);
  turns.DropPages();
  EXPECT_EQ(pool_->free_pages(), pool_->total_pages());
  pushing_ = true;
  EXPECT_EQ(turns.Step(), Progress::kWaiting);
  pushing_ = false;
  EXPECT_EQ(turns.Step(), Progress::kWorked);
  EXPECT_EQ(had_, std::vector<int64_t>{0});
}

TEST_F(IdleTurnsTest, ATurnMakesWayForARequestAndGoesOnLater) {
  IdleTurns turns = Turns(4);
  Keep(turns, 40);
  stop_ = true;
  EXPECT_EQ(turns.Step(), Progress::kWorked);
  EXPECT_FALSE(turns.WaitNone(clock_.Now()));
  EXPECT_EQ(pool_->free_pages(), pool_->total_pages());
  stop_ = false;
  EXPECT_EQ(turns.Step(), Progress::kWorked);
  EXPECT_TRUE(turns.WaitNone(clock_.Now()));
  EXPECT_EQ(turns.GetStats().dropped, 0u);
}

TEST_F(IdleTurnsTest, TheOldestIsDroppedForOneMore) {
  IdleTurns turns = Turns(1);
  Keep(turns, 40);
  Keep(turns, 60);
  EXPECT_EQ(turns.GetStats().dropped, 1u);
  EXPECT_EQ(turns.Step(), Progress::kWorked);
  EXPECT_EQ(computed_, std::vector<int64_t>{80});
  EXPECT_EQ(turns.Step(), Progress::kIdle);
}

TEST_F(IdleTurnsTest, WhatWasCancelledIsNotKept) {
  IdleTurns turns = Turns(4);
  Keep(turns, 40, "cancelled");
  EXPECT_TRUE(turns.WaitNone(clock_.Now()));
}

}  // namespace
}  // namespace cairn::worker
