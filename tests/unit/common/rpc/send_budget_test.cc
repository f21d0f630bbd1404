#include "common/rpc/send_budget.h"

#include <gtest/gtest.h>

namespace cairn::rpc {
namespace {

struct Waiter final : SendBudget::Waiter {
  void OnRoom() override { ++told; }
  int told = 0;
};

TEST(SendBudgetTest, WhoCameFirstIsToldFirst) {
  SendBudget budget(100);
  Waiter a, b, c, d;
  auto first = budget.Take("a", 60, &a, false);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(budget.Take("b", 60, &b, false), nullptr);
  EXPECT_EQ(budget.Take("c", 30, &c, false), nullptr) << "there is room, but somebody came before";
  EXPECT_TRUE(budget.short_of_room());
  first.reset();
  EXPECT_EQ(b.told, 1);
  EXPECT_EQ(c.told, 1);
  EXPECT_FALSE(budget.short_of_room());
  EXPECT_EQ(budget.Take("d", 20, &d, false), nullptr) << "room is kept for those who were told";
  const auto second = budget.Take("b", 60, &b, true), third = budget.Take("c", 30, &c, true);
  EXPECT_EQ(budget.used(), 90u);
}

TEST(SendBudgetTest, WhatIsNotNeededGoesToOthers) {
  SendBudget budget(100);
  Waiter a, b;
  const auto share = budget.Take("a", 100, &a, false);
  EXPECT_EQ(budget.Take("b", 70, &b, false), nullptr);
  share->ShrinkTo(30);
  EXPECT_EQ(b.told, 1);
  EXPECT_EQ(budget.used(), 100u);
}

TEST(SendBudgetTest, AShareMayShrinkToNothing) {
  // As of a frame that only says what was matched.
  SendBudget budget(100);
  Waiter a;
  auto share = budget.Take("a", 100, &a, false);
  share->ShrinkTo(0);
  EXPECT_EQ(budget.used(), 0u);
  share.reset();
  EXPECT_EQ(budget.used(), 0u);
  EXPECT_NE(budget.Take("b", 100, &a, false), nullptr);
}

TEST(SendBudgetTest, WhoForgetsIsNotTold) {
  SendBudget budget(100);
  Waiter a, b, c;
  auto share = budget.Take("a", 100, &a, false);
  EXPECT_EQ(budget.Take("b", 70, &b, false), nullptr);
  EXPECT_EQ(budget.Take("c", 70, &c, false), nullptr);
  EXPECT_TRUE(budget.Forget(&b));
  EXPECT_FALSE(budget.Forget(&b));
  share.reset();
  EXPECT_EQ(b.told, 0);
  EXPECT_EQ(c.told, 1);
  EXPECT_FALSE(budget.Forget(&c)) << "told already";
}

TEST(SendBudgetTest, AConnectionTakesHalfOfWhatOthersLeave) {
  SendBudget budget(100);
  Waiter waiters[32], other;
  std::vector<std::shared_ptr<SendBudget::Share>> shares;
  // Readers of one connection that take nothing.
  for (Waiter& waiter : waiters) shares.push_back(budget.Take("greedy", 10, &waiter, false));
  EXPECT_EQ(budget.used(), 50u);
  EXPECT_TRUE(budget.short_of_room()) << "so that those who take nothing are cut off";
  const auto honest = budget.Take("honest", 10, &other, false);
  EXPECT_NE(honest, nullptr) << "others do not wait behind them";
  shares[0].reset();
  EXPECT_EQ(waiters[5].told, 1) << "each that goes lets one of its own in, in their order";
  EXPECT_EQ(waiters[6].told, 0);
}

TEST(SendBudgetTest, ManyGreedyConnectionsLeaveTheirShare) {
  SendBudget budget(1000);
  Waiter waiter;
  std::vector<std::shared_ptr<SendBudget::Share>> shares;
  for (int round = 0; round < 100; ++round) {
    for (const char* party : {"a", "b", "c"}) {
      shares.push_back(budget.Take(party, 10, &waiter, false));
    }
  }
  EXPECT_EQ(budget.used(), 750u);
  EXPECT_NE(budget.Take("d", 10, &waiter, false), nullptr);
}

TEST(SendBudgetTest, MoreThanTheWholeBudgetTakesAllOfIt) {
  SendBudget budget(100);
  Waiter a;
  const auto share = budget.Take("a", 1000, &a, false);
  EXPECT_EQ(budget.used(), 100u);
}

TEST(SendBudgetTest, SharesOutliveTheBudget) {
  std::shared_ptr<SendBudget::Share> share;
  Waiter a, b;
  {
    SendBudget budget(100);
    share = budget.Take("a", 70, &a, false);
    EXPECT_EQ(budget.Take("b", 60, &b, false), nullptr);
  }
  // gRPC lets go of the bytes later. They go back to what waits, not to the budget that is gone.
  EXPECT_EQ(b.told, 0);
  share->ShrinkTo(50);
  EXPECT_EQ(b.told, 0) << "50 of 100 bytes are in use, and it waits for 60";
  share.reset();
  EXPECT_EQ(b.told, 1);
}

}  // namespace
}  // namespace cairn::rpc
