#include "services/cache/store/tier/disk/value_file_map.h"

#include <gtest/gtest.h>

namespace cairn::cache::disk {
namespace {

constexpr uint64_t kPage = kPageBytes;
constexpr auto kFresh = ValueFileMap::Stream::kFresh;
constexpr auto kMoved = ValueFileMap::Stream::kMoved;

// Segments of 10 pages, 5 of them.
class ValueFileMapTest : public ::testing::Test {
 protected:
  ValueFileMapTest() {
    for (uint32_t i = 0; i < 5; ++i) map_.Add(i);
  }
  Place Put(uint64_t id, uint64_t pages, ValueFileMap::Stream stream = kFresh) {
    const auto place = map_.Allocate(stream, id, pages * kPage, /*last=*/true, now_);
    EXPECT_TRUE(place) << id;
    map_.Settle(*place, pages * kPage, /*lives=*/true);
    return *place;
  }
  void Remove(const Place& place, uint64_t pages) {
    map_.Kill(place, pages * kPage);
    map_.Unhold(place.segment);
  }

  ValueFileMap map_{10 * kPage, 5};
  TimePoint now_{};
};

TEST_F(ValueFileMapTest, ExtentsFollowEachOther) {
  EXPECT_EQ(Put(1, 3), (Place{0, 0}));
  EXPECT_EQ(Put(2, 7), (Place{0, 3}));
  EXPECT_EQ(Put(3, 1), (Place{1, 0}));
  EXPECT_EQ(map_.segment(0).state, ValueFileMap::State::kSealed);
  EXPECT_EQ(map_.free(), 3u);
}

TEST_F(ValueFileMapTest, MovedExtentsHaveTheirOwnSegment) {
  EXPECT_EQ(Put(1, 1).segment, 0u);
  EXPECT_EQ(Put(2, 1, kMoved).segment, 1u);
  EXPECT_EQ(Put(3, 1).segment, 0u);
}

TEST_F(ValueFileMapTest, ASegmentIsFreeWhenNothingLivesAndNothingHolds) {
  const Place a = Put(1, 10);
  Put(2, 1);
  map_.Hold(0);  // A reader.
  map_.Kill(a, 10 * kPage);
  EXPECT_EQ(map_.free(), 3u);
  EXPECT_EQ(map_.nearly_free(), 1u);
  map_.Unhold(0);  // The reader; the record is still there.
  EXPECT_EQ(map_.free(), 3u);
  map_.Unhold(0);
  EXPECT_EQ(map_.free(), 4u);
  EXPECT_EQ(map_.nearly_free(), 0u);
  EXPECT_TRUE(map_.segment(0).ids.empty());
}

TEST_F(ValueFileMapTest, AnOpenSegmentBeginsAnewWhenItIsEmpty) {
  Remove(Put(1, 4), 4);
  EXPECT_EQ(Put(2, 4), (Place{0, 0}));
}

TEST_F(ValueFileMapTest, AFailedWriteHoldsItsSegmentOnlyWhileItRuns) {
  const auto place = map_.Allocate(kFresh, 1, 10 * kPage, true, now_);
  Put(2, 1);
  EXPECT_EQ(map_.segment(0).state, ValueFileMap::State::kSealed);
  map_.Settle(*place, 10 * kPage, /*lives=*/false);
  EXPECT_EQ(map_.segment(0).state, ValueFileMap::State::kFree);
}

TEST_F(ValueFileMapTest, TheLastFreeSegmentIsKeptForMoves) {
  for (uint64_t id = 0; id < 4; ++id) Put(id, 10);
  EXPECT_FALSE(map_.Allocate(kFresh, 9, kPage, /*last=*/false, now_));
  EXPECT_TRUE(map_.Allocate(kMoved, 9, kPage, /*last=*/true, now_));
}

TEST_F(ValueFileMapTest, VictimsComeOldestFirstAndOnce) {
  for (uint64_t id = 0; id < 4; ++id) Put(id, 10);
  EXPECT_EQ(map_.TakeVictim(), 0u);
  EXPECT_EQ(map_.TakeVictim(), 1u);
  EXPECT_EQ(map_.TakeVictim(), 2u);
  EXPECT_EQ(map_.TakeVictim(), std::nullopt) << "the open one is none";
  EXPECT_EQ(map_.draining_bytes(), 30 * kPage);
}

TEST_F(ValueFileMapTest, TheEmptiestIsMovedDrainingOnesFirst) {
  std::vector<Place> places;
  for (uint64_t id = 0; id < 7; ++id) places.push_back(Put(id, 5));
  EXPECT_EQ(map_.Cheapest(), std::nullopt) << "nothing is dead";
  Remove(places[2], 5);
  EXPECT_EQ(map_.Cheapest(), 1u);
  EXPECT_EQ(map_.TakeVictim(), 0u);
  EXPECT_EQ(map_.Cheapest(), 1u) << "the victim lives whole";
  Remove(places[0], 5);
  EXPECT_EQ(map_.Cheapest(), 0u);
}

TEST_F(ValueFileMapTest, EndsThatWereTooShortGiveNothingBack) {
  Put(1, 6);
  Put(2, 6);
  Put(3, 6);
  EXPECT_EQ(map_.Cheapest(), std::nullopt);
  // Two ends of four pages each; two segments of five are for use.
  EXPECT_TRUE(map_.Fits(12 * kPage));
  EXPECT_FALSE(map_.Fits(13 * kPage));
}

TEST_F(ValueFileMapTest, WritingGoesOnBehindTheNewestAfterARestart) {
  ASSERT_TRUE(map_.Restore(1, {2, 0}, 4 * kPage, 7));
  ASSERT_TRUE(map_.Restore(2, {4, 3}, 2 * kPage, 9));
  ASSERT_TRUE(map_.Restore(3, {2, 4}, 4 * kPage, 7));
  map_.FinishRestore(now_);
  EXPECT_EQ(Put(4, 5), (Place{4, 5}));
  EXPECT_EQ(map_.TakeVictim(), 2u);
  EXPECT_EQ(Put(5, 1).segment, 0u);
  EXPECT_GT(map_.segment(0).order, 9u);
}

TEST_F(ValueFileMapTest, PlacesThatCannotBeAreRefused) {
  EXPECT_FALSE(map_.Restore(1, {5, 0}, kPage, 1));
  EXPECT_FALSE(map_.Restore(1, {UINT32_MAX, 0}, kPage, 1));
  EXPECT_FALSE(map_.Restore(1, {0, 10}, kPage, 1));
  EXPECT_FALSE(map_.Restore(1, {0, UINT32_MAX}, kPage, 1));
  EXPECT_FALSE(map_.Restore(1, {0, 8}, 3 * kPage, 1));
  EXPECT_FALSE(map_.Restore(1, {0, 0}, 0, 1));
  EXPECT_TRUE(map_.Restore(1, {0, 8}, 2 * kPage, 1));
}

TEST_F(ValueFileMapTest, FilesBeyondTheNumberGoWhenTheyAreFree) {
  EXPECT_EQ(map_.NextAbsent(), std::nullopt);
  EXPECT_EQ(map_.Surplus(), std::nullopt);
  map_.Add(8);
  EXPECT_EQ(map_.Surplus(), 8u);
  map_.Remove(8);
  EXPECT_EQ(map_.Surplus(), std::nullopt);
  map_.Remove(3);
  EXPECT_EQ(map_.NextAbsent(), 3u);
}

// After the capacity changed.
TEST_F(ValueFileMapTest, SegmentsOfAnotherSizeAreReadButNotUsedAgain) {
  map_.Remove(4);
  map_.Add(4, 4 * kPage);
  EXPECT_EQ(map_.free(), 4u);
  EXPECT_EQ(map_.Surplus(), 4u) << "free, and too short for what is written now";
  EXPECT_FALSE(map_.Restore(1, {4, 3}, 2 * kPage, 7));
  EXPECT_TRUE(map_.Restore(1, {4, 0}, 2 * kPage, 7));
  map_.FinishRestore(now_);
  EXPECT_EQ(map_.Surplus(), std::nullopt);
  // Writing goes on in it, as far as it goes.
  EXPECT_EQ(Put(2, 2), (Place{4, 2}));
  EXPECT_EQ(Put(3, 1), (Place{0, 0}));
  Remove({4, 0}, 2);
  Remove({4, 2}, 2);
  EXPECT_EQ(map_.Surplus(), 4u);
}

TEST_F(ValueFileMapTest, WhatASmallerCapacityHasNoRoomForLeaves) {
  map_.Add(5, 40 * kPage);
  EXPECT_TRUE(map_.TooLarge());
  EXPECT_TRUE(map_.Restore(1, {5, 0}, 6 * kPage, 1));
  EXPECT_TRUE(map_.Restore(2, {0, 0}, 5 * kPage, 2));
  map_.FinishRestore(now_);
  EXPECT_FALSE(map_.TooLarge());
  EXPECT_EQ(map_.NextLeaving(), 5u);
  const auto moved = map_.Allocate(kMoved, 1, 6 * kPage, /*last=*/true, now_);
  ASSERT_TRUE(moved);
  map_.Settle(*moved, 6 * kPage, /*lives=*/true);
  Remove({5, 0}, 6);
  EXPECT_EQ(map_.NextLeaving(), std::nullopt);
  EXPECT_EQ(map_.Surplus(), 5u);
  map_.Remove(5);
  EXPECT_EQ(map_.Surplus(), std::nullopt);
}

// The records thread forgets what recovery refused while recovery goes on.
TEST_F(ValueFileMapTest, NothingIsFreeBeforeAllWasRestored) {
  EXPECT_TRUE(map_.Restore(1, {0, 0}, 2 * kPage, 1));
  Remove({0, 0}, 2);
  EXPECT_TRUE(map_.Restore(2, {0, 4}, 2 * kPage, 1));
  map_.FinishRestore(now_);
  EXPECT_EQ(Put(3, 1), (Place{0, 6}));
}

}  // namespace
}  // namespace cairn::cache::disk
