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
  auto first = budget.Take(60, &a, false);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(budget.Take(60, &b, false), nullptr);
  EXPECT_EQ(budget.Take(30, &c, false), nullptr) << "there is room, but somebody came before";
  EXPECT_TRUE(budget.short_of_room());
  first.reset();
  EXPECT_EQ(b.told, 1);
  EXPECT_EQ(c.told, 1);
  EXPECT_FALSE(budget.short_of_room());
  EXPECT_EQ(budget.Take(20, &d, false), nullptr) << "room is kept for those who were told";
  const auto second = budget.Take(60, &b, true), third = budget.Take(30, &c, true);
  EXPECT_EQ(budget.used(), 90u);
}

TEST(SendBudgetTest, WhatIsNotNeededGoesToOthers) {
  SendBudget budget(100);
  Waiter a, b;
  const auto share = budget.Take(100, &a, false);
  EXPECT_EQ(budget.Take(70, &b, false), nullptr);
  share->ShrinkTo(30);
  EXPECT_EQ(b.told, 1);
  EXPECT_EQ(budget.used(), 100u);
}

TEST(SendBudgetTest, WhoForgetsIsNotTold) {
  SendBudget budget(100);
  Waiter a, b, c;
  auto share = budget.Take(100, &a, false);
  EXPECT_EQ(budget.Take(70, &b, false), nullptr);
  EXPECT_EQ(budget.Take(70, &c, false), nullptr);
  EXPECT_TRUE(budget.Forget(&b));
  EXPECT_FALSE(budget.Forget(&b));
  share.reset();
  EXPECT_EQ(b.told, 0);
  EXPECT_EQ(c.told, 1);
  EXPECT_FALSE(budget.Forget(&c)) << "told already";
}

TEST(SendBudgetTest, MoreThanTheWholeBudgetTakesAllOfIt) {
  SendBudget budget(100);
  Waiter a;
  const auto share = budget.Take(1000, &a, false);
  EXPECT_EQ(budget.used(), 100u);
}

TEST(SendBudgetTest, SharesOutliveTheBudget) {
  std::shared_ptr<SendBudget::Share> share;
  Waiter a, b;
  {
    SendBudget budget(100);
    share = budget.Take(70, &a, false);
    EXPECT_EQ(budget.Take(60, &b, false), nullptr);
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
