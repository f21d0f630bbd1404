#include "services/cache/cluster/members/taker_table.h"

#include <gmock/gmock.h>

namespace cairn::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Takers = std::vector<TakerTable::Taker>;

constexpr TakerTable::Taker kA = 1, kB = 2, kC = 3, kD = 4, kE = 5, kZ = 26;

TEST(TakerTableTest, TwoTakeABlockAndOthersHearWhoTheyAre) {
  TakerTable takers;
  Takers named;
  EXPECT_TRUE(takers.Begin(1, kA, &named));
  EXPECT_TRUE(takers.Begin(1, kB, &named));
  EXPECT_THAT(named, IsEmpty());
  EXPECT_FALSE(takers.Begin(1, kC, &named));
  EXPECT_THAT(named, ElementsAre(kB, kA));
  EXPECT_TRUE(takers.Begin(2, kC, &named));
}

TEST(TakerTableTest, APlaceIsFreeAgainWhetherItWasTakenOrNot) {
  TakerTable takers;
  Takers named;
  for (const bool taken : {true, false}) {
    EXPECT_TRUE(takers.Begin(1, kA, &named));
    EXPECT_TRUE(takers.Begin(1, kB, &named));
    takers.End(1, kA, taken);
    takers.End(1, kB, taken);
  }
  EXPECT_TRUE(takers.Begin(1, kA, &named));
}

TEST(TakerTableTest, WhoTookItAllIsNamedFirstNewestFirst) {
  TakerTable takers;
  Takers named;
  for (const TakerTable::Taker member : {kA, kB, kC, kD, kE}) {
    // Those after the second one are told to ask others first, and come again.
    const bool may = takers.Begin(1, member, &named) || takers.Begin(1, member, &named);
    EXPECT_TRUE(may) << member;
    takers.End(1, member, member != kC);
  }
  named.clear();
  EXPECT_FALSE(takers.Begin(1, kZ, &named));
  EXPECT_THAT(named, ElementsAre(kE, kD, kB, kA));
}

TEST(TakerTableTest, WhoComesAfterTwoOthersIsSentToThemOnce) {
  TakerTable takers;
  Takers named;
  for (const TakerTable::Taker member : {kA, kB}) {
    EXPECT_TRUE(takers.Begin(1, member, &named));
    takers.End(1, member, true);
  }
  EXPECT_FALSE(takers.Begin(1, kC, &named));
  EXPECT_THAT(named, ElementsAre(kB, kA));
  EXPECT_TRUE(takers.Begin(1, kC, &named)) << "the others may have lost it";
  // One that took it and lost it again is sent to the other one only if there are two others.
  EXPECT_TRUE(takers.Begin(1, kA, &named));
}

TEST(TakerTableTest, ItKnowsWhetherSomebodyWasTurnedAwayMeanwhile) {
  TakerTable takers;
  Takers named;
  EXPECT_FALSE(takers.TurnedAway(1));
  EXPECT_TRUE(takers.Begin(1, kA, &named));
  EXPECT_TRUE(takers.Begin(1, kB, &named));
  EXPECT_FALSE(takers.TurnedAway(1));
  EXPECT_FALSE(takers.Begin(1, kC, &named));
  EXPECT_TRUE(takers.TurnedAway(1));
  EXPECT_FALSE(takers.TurnedAway(2));
  takers.End(1, kA, false);
  EXPECT_FALSE(takers.TurnedAway(1)) << "there is a place now";
}

TEST(TakerTableTest, NobodyIsNamedToItself) {
  TakerTable takers;
  Takers named;
  EXPECT_TRUE(takers.Begin(1, kA, &named));
  EXPECT_TRUE(takers.Begin(1, kB, &named));
  EXPECT_FALSE(takers.Begin(1, kA, &named));
  EXPECT_THAT(named, ElementsAre(kB));
}

TEST(TakerTableTest, AnEndWithoutABeginChangesNothing) {
  TakerTable takers;
  Takers named;
  takers.End(1, kA, true);
  EXPECT_TRUE(takers.Begin(1, kA, &named));
  takers.End(1, kB, true);
  EXPECT_TRUE(takers.Begin(1, kC, &named));
  EXPECT_FALSE(takers.Begin(1, kD, &named));
}

}  // namespace
}  // namespace cairn::cache
