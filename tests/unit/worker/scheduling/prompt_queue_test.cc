#include "services/worker/scheduling/prompt_queue.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace cairn::worker {
namespace {

using Answer = PromptQueue::Answer;
using std::chrono::seconds;

class PromptQueueTest : public ::testing::Test {
 protected:
  PromptQueue::Prompt Prompt(const std::string& tenant, int64_t tokens, int32_t priority = 0) {
    PromptQueue::Prompt prompt;
    prompt.id = next_id_++;
    prompt.claim = {.priority = priority,
                    .tenant = accounts_.Enter(tenant),
                    .prefill_tokens = tokens,
                    .arrived = now_};
    return prompt;
  }
  // The ids in the order in which they would begin. Each is charged.
  std::vector<uint64_t> Drain(PromptQueue& queue) {
    std::vector<uint64_t> ids;
    while (const auto prompt = queue.Take(now_)) {
      accounts_.Charge(prompt->claim.tenant, static_cast<double>(prompt->claim.prefill_tokens));
      ids.push_back(prompt->id);
    }
    return ids;
  }

  TimePoint now_ = FakeClock().Now();
  TenantAccounts accounts_{
      {{"gold", {.weight = 1, .max_priority = 5}}, {"double", {.weight = 2, .max_priority = 0}}}};
  uint64_t next_id_ = 0;
};

TEST_F(PromptQueueTest, TheLeastWorkGoesFirstUnlessAnotherHasWaitedLong) {
  PromptQueue queue({}, accounts_);
  queue.SetRunning({}, 1000);
  queue.Put(Prompt("a", 5000), now_);  // 5 s of work.
  now_ += seconds(20);
  queue.Put(Prompt("a", 2900), now_);  // 2.9 s: the first one has gained only 2 s.
  queue.Put(Prompt("a", 1000), now_);
  queue.Put(Prompt("a", 3100), now_);
  EXPECT_EQ(Drain(queue), (std::vector<uint64_t>{2, 1, 0, 3}));
}

TEST_F(PromptQueueTest, WithoutAMeasuredSpeedTheOldestGoesFirst) {
  PromptQueue queue({}, accounts_);
  for (const int64_t tokens : {5000, 100, 3000}) {
    queue.Put(Prompt("a", tokens), now_);
    now_ += seconds(1);
  }
  EXPECT_EQ(Drain(queue), (std::vector<uint64_t>{0, 1, 2}));
}

TEST_F(PromptQueueTest, TenantsTakeTurnsByTokensAndWeight) {
  PromptQueue queue({.capacity = 100}, accounts_);
  queue.SetRunning({}, 1000);
  std::vector<uint32_t> tenants;
  for (int i = 0; i < 12; ++i) queue.Put(Prompt("double", 100), now_);
  for (int i = 0; i < 12; ++i) queue.Put(Prompt("other", 100), now_);
  std::vector<uint64_t> order = Drain(queue);
  // The tenant of weight 2 has six of the first nine.
  EXPECT_EQ(std::count_if(order.begin(), order.begin() + 9, [](uint64_t id) { return id < 12; }),
            6);
}

TEST_F(PromptQueueTest, GeneratedTokensCountTwice) {
  const uint32_t a = accounts_.Enter("a"), b = accounts_.Enter("b");
  accounts_.Charge(a, 150);
  accounts_.Charge(b, TenantAccounts::kGeneratedCost * 100);
  PromptQueue queue({}, accounts_);
  queue.Put(Prompt("b", 10), now_);
  queue.Put(Prompt("a", 10), now_);
  EXPECT_EQ(Drain(queue), (std::vector<uint64_t>{1, 0}));
}

TEST_F(PromptQueueTest, ATenantThatComesBackHasSavedUpNothing) {
  const uint32_t busy = accounts_.Enter("busy");
  accounts_.Leave(accounts_.Enter("idle"));
  accounts_.Charge(busy, 1e6);
  const uint32_t idle = accounts_.Enter("idle");
  EXPECT_EQ(accounts_.StandingOf(idle).served, accounts_.StandingOf(busy).served);
}

TEST_F(PromptQueueTest, IdleTenantsAreForgottenBeyondABound) {
  TenantAccounts accounts({}, 10);
  const uint32_t stays = accounts.Enter("stays");
  for (int i = 0; i < 1000; ++i) accounts.Leave(accounts.Enter(std::to_string(i)));
  EXPECT_LE(accounts.size(), 12u);
  accounts.Charge(stays, 5);
  EXPECT_GE(accounts.StandingOf(stays).served, 5);
}

TEST_F(PromptQueueTest, APriorityCountsBeforeOthersOnlyAsFarAsTheOperatorGaveIt) {
  PromptQueue queue({}, accounts_);
  queue.SetRunning({}, 1000);
  queue.Put(Prompt("plain", 10), now_);
  queue.Put(Prompt("hostile", 20, 10), now_);
  queue.Put(Prompt("hostile", 10, 0), now_);
  queue.Put(Prompt("gold", 500, 3), now_);
  accounts_.Charge(accounts_.Enter("hostile"), 100);
  // Gold's counts. The hostile tenant's orders only its own requests.
  EXPECT_EQ(Drain(queue), (std::vector<uint64_t>{3, 0, 1, 2}));
}

TEST_F(PromptQueueTest, ALowPriorityIsBehindEverybody) {
  PromptQueue queue({}, accounts_);
  queue.Put(Prompt("a", 10, -1), now_);
  queue.Put(Prompt("b", 5000), now_);
  EXPECT_EQ(Drain(queue), (std::vector<uint64_t>{1, 0}));
}

TEST_F(PromptQueueTest, AFullQueueRefuses) {
  PromptQueue queue({.capacity = 2}, accounts_);
  queue.SetRunning({}, 100);
  EXPECT_EQ(queue.Put(Prompt("a", 100), now_).answer, Answer::kAccepted);
  EXPECT_EQ(queue.Put(Prompt("a", 100), now_).answer, Answer::kAccepted);
  const auto third = queue.Put(Prompt("a", 100), now_);
  EXPECT_EQ(third.answer, Answer::kFull);
  EXPECT_NEAR(third.retry_seconds, 1, 1e-9);  // When one of the two has begun.
}

TEST_F(PromptQueueTest, AFloodGivesItsPlacesToOthersButNotMoreThanTheirShare) {
  PromptQueue queue({.capacity = 6}, accounts_);
  for (int i = 0; i < 6; ++i) queue.Put(Prompt("flood", 100 + i), now_);
  for (int i = 0; i < 3; ++i) {
    const auto put = queue.Put(Prompt("other", 100), now_);
    EXPECT_EQ(put.answer, Answer::kAccepted);
    ASSERT_TRUE(put.pushed_out.has_value());
    EXPECT_LT(*put.pushed_out, 6u);
  }
  EXPECT_EQ(queue.Put(Prompt("other", 100), now_).answer, Answer::kFull);
  EXPECT_EQ(queue.Put(Prompt("flood", 100), now_).answer, Answer::kFull);
  EXPECT_EQ(queue.size(), 6u);
}

TEST_F(PromptQueueTest, ATenantsOwnBound) {
  PromptQueue queue({.capacity = 10, .tenant_capacity = 2}, accounts_);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(queue.Put(Prompt("a", 1), now_).answer, Answer::kAccepted);
  EXPECT_EQ(queue.Put(Prompt("a", 1), now_).answer, Answer::kTenantFull);
  EXPECT_EQ(queue.Put(Prompt("b", 1), now_).answer, Answer::kAccepted);
}

TEST_F(PromptQueueTest, AnUrgentRequestTakesThePlaceOfOneThatIsNot) {
  PromptQueue queue({.capacity = 1}, accounts_);
  queue.Put(Prompt("gold", 1), now_);
  const auto put = queue.Put(Prompt("gold", 1, 2), now_);
  EXPECT_EQ(put.answer, Answer::kAccepted);
  EXPECT_EQ(put.pushed_out, 0u);
  EXPECT_EQ(queue.Put(Prompt("plain", 1, 2), now_).answer, Answer::kFull);
}

TEST_F(PromptQueueTest, WhoWouldWaitTooLongIsRefusedAndToldWhenToComeBack) {
  PromptQueue queue({.capacity = 100, .max_wait_seconds = 3}, accounts_);
  const uint32_t a = accounts_.Enter("a");
  queue.SetRunning({{.tenant = a, .prefill_tokens = 2000}}, 1000);
  EXPECT_EQ(queue.Put(Prompt("a", 900), now_).answer, Answer::kAccepted);
  EXPECT_EQ(queue.Put(Prompt("a", 1600), now_).answer, Answer::kAccepted);
  const auto refused = queue.Put(Prompt("a", 1700), now_);
  EXPECT_EQ(refused.answer, Answer::kTooLong);
  EXPECT_NEAR(refused.wait_seconds, 4.5, 1e-9);
  EXPECT_NEAR(refused.retry_seconds, 1.5, 1e-9);
  EXPECT_NEAR(queue.BacklogSeconds(), 4.5, 1e-9);
  // A short one goes before those that wait, so they do not keep it out.
  const auto brief = queue.Put(Prompt("a", 10), now_);
  EXPECT_EQ(brief.answer, Answer::kAccepted);
  EXPECT_NEAR(brief.wait_seconds, 2, 1e-9);
}

TEST_F(PromptQueueTest, AFloodDoesNotMakeOthersWaitTooLong) {
  PromptQueue queue({.capacity = 100, .max_wait_seconds = 3}, accounts_);
  queue.SetRunning({}, 1000);
  for (int i = 0; i < 50; ++i) queue.Put(Prompt("flood", 1000), now_);
  // Its share lets it wait about as long as it computes itself.
  const auto put = queue.Put(Prompt("other", 1000), now_);
  EXPECT_EQ(put.answer, Answer::kAccepted);
  EXPECT_NEAR(put.wait_seconds, 1, 1e-9);
}

TEST_F(PromptQueueTest, WhoWouldMissItsDeadlineIsRefusedAtOnce) {
  PromptQueue queue({}, accounts_);
  queue.SetRunning({{.tenant = accounts_.Enter("a"), .prefill_tokens = 2000}}, 1000);
  PromptQueue::Prompt prompt = Prompt("a", 10);
  prompt.deadline = now_ + seconds(1);
  EXPECT_EQ(queue.Put(prompt, now_).answer, Answer::kTooLong);
  prompt.deadline = now_ + seconds(3);
  EXPECT_EQ(queue.Put(prompt, now_).answer, Answer::kAccepted);
}

// Prompts of at most so many tokens fit.
std::function<bool(const PromptQueue::Prompt&)> UpTo(int64_t tokens) {
  return
      [tokens](const PromptQueue::Prompt& prompt) { return prompt.claim.prefill_tokens <= tokens; };
}

TEST_F(PromptQueueTest, SmallPromptsPassOneThatDoesNotFitABoundedNumberOfTimes) {
  PromptQueue queue({.capacity = 100}, accounts_);
  queue.Put(Prompt("a", 9000), now_);
  now_ += seconds(1);
  for (int i = 0; i < 40; ++i) queue.Put(Prompt("a", 100), now_);
  uint32_t passed = 0;
  while (queue.Take(now_, UpTo(1000))) ++passed;
  EXPECT_EQ(passed, PromptQueue::kMostPasses);
  EXPECT_EQ(queue.size(), 41 - passed);
  EXPECT_EQ(queue.Take(now_, UpTo(9000))->id, 0u);
  EXPECT_TRUE(queue.Take(now_, UpTo(1000)));  // Nothing is in its way any more.
}

TEST_F(PromptQueueTest, WhatIsPassedCountsForEachPromptThatWasInFront) {
  PromptQueue queue({.capacity = 100}, accounts_);
  for (const int64_t tokens : {9000, 8000}) {
    queue.Put(Prompt("a", tokens), now_);
    now_ += seconds(1);
  }
  for (int i = 0; i < 40; ++i) queue.Put(Prompt("a", 100), now_);
  for (uint32_t i = 0; i < PromptQueue::kMostPasses - 1; ++i) {
    EXPECT_TRUE(queue.Take(now_, UpTo(1000)));
  }
  EXPECT_EQ(queue.Take(now_, UpTo(8500))->id, 1u);  // It passes the first one.
  EXPECT_FALSE(queue.Take(now_, UpTo(1000)));
}

TEST_F(PromptQueueTest, NobodyPassesAPromptOfAGreaterPriority) {
  PromptQueue queue({}, accounts_);
  queue.Put(Prompt("gold", 9000, 5), now_);
  queue.Put(Prompt("a", 100), now_);
  EXPECT_FALSE(queue.Take(now_, UpTo(1000)));
  queue.Put(Prompt("gold", 100, 5), now_);
  EXPECT_EQ(queue.Take(now_, UpTo(1000))->id, 2u);
}

}  // namespace
}  // namespace cairn::worker
