#include "services/cache/cluster/members/taker_table.h"

#include <gmock/gmock.h>

namespace cairn::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Names = std::vector<std::string>;

TEST(TakerTableTest, TwoTakeABlockAndOthersHearWhoTheyAre) {
  TakerTable takers;
  Names named;
  EXPECT_TRUE(takers.Begin(1, "a", &named));
  EXPECT_TRUE(takers.Begin(1, "b", &named));
  EXPECT_THAT(named, IsEmpty());
  EXPECT_FALSE(takers.Begin(1, "c", &named));
  EXPECT_THAT(named, ElementsAre("b", "a"));
  EXPECT_TRUE(takers.Begin(2, "c", &named));
}

TEST(TakerTableTest, APlaceIsFreeAgainWhetherItWasTakenOrNot) {
  TakerTable takers;
  Names named;
  for (const bool taken : {true, false}) {
    EXPECT_TRUE(takers.Begin(1, "a", &named));
    EXPECT_TRUE(takers.Begin(1, "b", &named));
    takers.End(1, "a", taken);
    takers.End(1, "b", taken);
  }
  EXPECT_TRUE(takers.Begin(1, "a", &named));
}

TEST(TakerTableTest, WhoTookItAllIsNamedFirstNewestFirst) {
  TakerTable takers;
  Names named;
  for (const char* member : {"a", "b", "c", "d", "e"}) {
    // Those after the second one are told to ask others first, and come again.
    const bool may = takers.Begin(1, member, &named) || takers.Begin(1, member, &named);
    EXPECT_TRUE(may) << member;
    takers.End(1, member, member != Names{"c"}[0]);
  }
  named.clear();
  EXPECT_FALSE(takers.Begin(1, "z", &named));
  EXPECT_THAT(named, ElementsAre("e", "d", "b", "a"));
}

TEST(TakerTableTest, WhoComesAfterTwoOthersIsSentToThemOnce) {
  TakerTable takers;
  Names named;
  for (const char* member : {"a", "b"}) {
    EXPECT_TRUE(takers.Begin(1, member, &named));
    takers.End(1, member, true);
  }
  EXPECT_FALSE(takers.Begin(1, "c", &named));
  EXPECT_THAT(named, ElementsAre("b", "a"));
  EXPECT_TRUE(takers.Begin(1, "c", &named)) << "the others may have lost it";
  // One that took it and lost it again is sent to the other one only if there are two others.
  EXPECT_TRUE(takers.Begin(1, "a", &named));
}

TEST(TakerTableTest, ItKnowsWhetherSomebodyWasTurnedAwayMeanwhile) {
  TakerTable takers;
  Names named;
  EXPECT_FALSE(takers.TurnedAway(1));
  EXPECT_TRUE(takers.Begin(1, "a", &named));
  EXPECT_TRUE(takers.Begin(1, "b", &named));
  EXPECT_FALSE(takers.TurnedAway(1));
  EXPECT_FALSE(takers.Begin(1, "c", &named));
  EXPECT_TRUE(takers.TurnedAway(1));
  EXPECT_FALSE(takers.TurnedAway(2));
  takers.End(1, "a", false);
  EXPECT_FALSE(takers.TurnedAway(1)) << "there is a place now";
}

TEST(TakerTableTest, NobodyIsNamedToItself) {
  TakerTable takers;
  Names named;
  EXPECT_TRUE(takers.Begin(1, "a", &named));
  EXPECT_TRUE(takers.Begin(1, "b", &named));
  EXPECT_FALSE(takers.Begin(1, "a", &named));
  EXPECT_THAT(named, ElementsAre("b"));
}

TEST(TakerTableTest, AnEndWithoutABeginChangesNothing) {
  TakerTable takers;
  Names named;
  takers.End(1, "a", true);
  EXPECT_TRUE(takers.Begin(1, "a", &named));
  takers.End(1, "b", true);
  EXPECT_TRUE(takers.Begin(1, "c", &named));
  EXPECT_FALSE(takers.Begin(1, "d", &named));
}

}  // namespace
}  // namespace cairn::cache
