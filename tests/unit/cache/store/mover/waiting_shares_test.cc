#include "services/cache/store/mover/waiting_shares.h"

#include <gtest/gtest.h>

namespace cairn::cache {
namespace {

constexpr uint64_t kRoom = 2400;

uint64_t TakeAll(WaitingShares* shares, OwnerId room, const std::string& tenant, uint64_t bytes) {
  uint64_t taken = 0;
  while (shares->Take({room, bytes}, tenant, kRoom)) taken += bytes;
  return taken;
}

TEST(WaitingSharesTest, OneTenantTakesAQuarterOfARoom) {
  WaitingShares shares;
  EXPECT_EQ(TakeAll(&shares, kCommon, "greedy", 1), kRoom / 4);
  EXPECT_EQ(TakeAll(&shares, kCommon, "next", 1), kRoom / 8) << "others find some";
}

TEST(WaitingSharesTest, HoweverManyTheyAreHalfOfTheRoomDoesNotWait) {
  WaitingShares shares;
  for (int i = 0; i < 50; ++i) TakeAll(&shares, kCommon, std::to_string(i), 1);
  EXPECT_LE(shares.bytes(kCommon), kRoom / 2 + 50);
}

TEST(WaitingSharesTest, RoomsAreApart) {
  WaitingShares shares;
  TakeAll(&shares, kCommon, "greedy", 1);
  EXPECT_EQ(TakeAll(&shares, 1, "owner", 1), kRoom / 4);
}

TEST(WaitingSharesTest, WhoIsFullWaitsForAThirdOfItsShare) {
  WaitingShares shares;
  ASSERT_EQ(TakeAll(&shares, kCommon, "greedy", 1), kRoom / 4);
  for (uint64_t i = 0; i < kRoom / 12; ++i) {
    EXPECT_FALSE(shares.Take({kCommon, 1}, "greedy", kRoom)) << i;
    shares.GiveBack({kCommon, 1}, "greedy");
  }
  shares.GiveBack({kCommon, 1}, "greedy");
  EXPECT_EQ(TakeAll(&shares, kCommon, "greedy", 1), kRoom / 12 + 1);
}

TEST(WaitingSharesTest, TheFirstBlockOfATenantAlwaysWaits) {
  WaitingShares shares;
  EXPECT_TRUE(shares.Take({kCommon, 10 * kRoom}, "large", kRoom));
  EXPECT_FALSE(shares.Take({kCommon, 1}, "large", kRoom));
}

TEST(WaitingSharesTest, WhatIsGivenBackIsForgotten) {
  WaitingShares shares;
  ASSERT_TRUE(shares.Take({kCommon, 10}, "a", kRoom));
  ASSERT_TRUE(shares.Take({7, 20}, "a", kRoom));
  shares.GiveBack({kCommon, 10}, "a");
  shares.GiveBack({kCommon, 0}, "nobody");
  EXPECT_EQ(shares.bytes(kCommon), 0u);
  EXPECT_EQ(shares.bytes(7), 20u);
  shares.GiveBack({7, 20}, "a");
  EXPECT_EQ(shares.rooms(), 0u);
}

}  // namespace
}  // namespace cairn::cache
