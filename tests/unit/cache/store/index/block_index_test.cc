#include "services/cache/store/index/block_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "services/cache/store/index/recently_gone.h"
#include "tests/unit/cache/store/index/index_fixture.h"

namespace cairn::cache {
namespace {

using testing::KeyOf;
using testing::kWhole;
using testing::OnePart;

class BlockIndexTest : public ::testing::Test {
 protected:
  void Store(uint64_t n, std::optional<uint64_t> parent, TierKind tier = TierKind::kHost,
             uint32_t now = 0) {
    const std::optional<BlockKey> above = parent ? std::optional(KeyOf(*parent)) : std::nullopt;
    ASSERT_TRUE(index_.Insert(KeyOf(n), above, OnePart(n), tier, 0, now));
  }
  // A chain first .. last.
  void StoreChain(uint64_t first, uint64_t last, uint32_t now = 0) {
    for (uint64_t n = first; n <= last; ++n) {
      Store(n, n == first ? std::nullopt : std::optional(n - 1), TierKind::kHost, now);
    }
  }
  uint32_t Matched(std::initializer_list<uint64_t> numbers, uint32_t now = 0) {
    std::vector<BlockKey> keys;
    for (uint64_t n : numbers) keys.push_back(KeyOf(n));
    return index_.Match(keys, now, true).matched;
  }
  PinId Pin(uint64_t n) { return index_.PinBlock(*index_.Find(KeyOf(n))); }
  PinId Lease(uint64_t n) { return index_.PinBlock(*index_.Find(KeyOf(n)), PinKind::kLease); }
  void CopyTo(TierKind tier, std::initializer_list<uint64_t> numbers) {
    for (const uint64_t n : numbers) {
      const Extent extent{1000 + n, 100};
      index_.AddToTier(*index_.Find(KeyOf(n)), tier, {&extent, 1});
      EXPECT_TRUE(index_.CheckInvariants());
    }
  }
  std::optional<BlockKey> Evict(TierKind tier = TierKind::kHost) {
    const auto evicted = index_.EvictOne(tier, &released_);
    EXPECT_TRUE(index_.CheckInvariants());
    return evicted ? std::optional(evicted->key) : std::nullopt;
  }

  BlockIndex index_{kWhole, nullptr, 42};
  ReleaseList released_;
};

TEST_F(BlockIndexTest, MatchesTheLongestStoredPrefix) {
  StoreChain(1, 5);
  EXPECT_EQ(Matched({1, 2, 3, 4, 5, 6}), 5u);
  EXPECT_EQ(Matched({1, 2, 9, 4}), 2u);
  EXPECT_EQ(Matched({9}), 0u);
  EXPECT_EQ(index_.nodes(), 1u);
}

TEST_F(BlockIndexTest, PinnedPathsAreWhatPinsReach) {
  StoreChain(1, 5);
  Store(20, 3);
  StoreChain(30, 31);
  const auto covered = [&](uint64_t n) {
    const bool covers = index_.FindPinnedPaths().Covers(*index_.Find(KeyOf(n)));
    EXPECT_EQ(covers, index_.IsPinned(*index_.Find(KeyOf(n)))) << n;
    return covers;
  };
  const PinId pin = Pin(20), again = Pin(20), lower = Pin(4);
  for (const uint64_t n : {1, 2, 3, 20, 4}) EXPECT_TRUE(covered(n)) << n;
  for (const uint64_t n : {5, 30, 31}) EXPECT_FALSE(covered(n)) << n;
  for (const PinId p : {pin, again, lower}) index_.Unpin(p, &released_);
  for (const uint64_t n : {1, 2, 3, 20, 4, 5}) EXPECT_FALSE(covered(n)) << n;
}

TEST_F(BlockIndexTest, ABlockThatMovesWithinATierIsTheSame) {
  StoreChain(1, 2);
  const auto ref = *index_.Find(KeyOf(1));
  EXPECT_TRUE(index_.HasMoreBelow(ref, TierKind::kHost));
  EXPECT_FALSE(index_.HasMoreBelow(*index_.Find(KeyOf(2)), TierKind::kHost));
  EXPECT_FALSE(index_.HasMoreBelow(ref, TierKind::kDisk));
  const Extent elsewhere{77, 100};
  index_.Relocate(ref, TierKind::kHost, {&elsewhere, 1}, &released_);
  ASSERT_EQ(released_.size(), 1u);
  EXPECT_EQ(released_[0].extent.id, 1u);
  EXPECT_EQ(index_.PartsOf(ref)[0].In(TierKind::kHost), elsewhere);
  EXPECT_EQ(Matched({1, 2}), 2u);
  EXPECT_TRUE(index_.CheckInvariants());
}

TEST_F(BlockIndexTest, BranchSplitsARunAndBothWaysMatch) {
  StoreChain(1, 5);
  Store(20, 3);
  Store(21, 20);
  EXPECT_EQ(Matched({1, 2, 3, 4, 5}), 5u);
  EXPECT_EQ(Matched({1, 2, 3, 20, 21}), 5u);
  EXPECT_EQ(index_.nodes(), 3u);
  EXPECT_TRUE(index_.CheckInvariants());
}

TEST_F(BlockIndexTest, MatchMayStartInTheMiddleOfAPath) {
  StoreChain(1, 5);
  EXPECT_EQ(Matched({3, 4, 5}), 3u);
}

TEST_F(BlockIndexTest, ChildrenStoredBeforeTheirParentsAreFoundOnceThePathIsWhole) {
  Store(3, 2);
  EXPECT_EQ(Matched({1, 2, 3}), 0u);
  Store(1, std::nullopt);
  EXPECT_EQ(Matched({1, 2, 3}), 1u);
  Store(2, 1);
  EXPECT_EQ(Matched({1, 2, 3}), 3u);
  EXPECT_TRUE(index_.CheckInvariants());
}

TEST_F(BlockIndexTest, BlocksWithoutParentsAreLinkedByTheFirstPrompt) {
  for (uint64_t n = 1; n <= 6; ++n) Store(n, std::nullopt);
  EXPECT_EQ(index_.nodes(), 6u);
  EXPECT_EQ(Matched({1, 2, 3, 4, 5, 6}), 6u);
  EXPECT_EQ(index_.nodes(), 1u);
  EXPECT_EQ(index_.ParentOf(*index_.Find(KeyOf(4))), KeyOf(3));
  EXPECT_TRUE(index_.CheckInvariants());
}

TEST_F(BlockIndexTest, ContradictingParentsCloseNoCircle) {
  StoreChain(1, 3);
  index_.Link(KeyOf(1), KeyOf(3));
  EXPECT_EQ(index_.ParentOf(*index_.Find(KeyOf(1))), std::nullopt);
  index_.Link(KeyOf(1), KeyOf(1));
  EXPECT_EQ(Matched({3, 1, 2}), 3u);  // Two runs: served, not linked.
  EXPECT_TRUE(index_.CheckInvariants());
}

TEST_F(BlockIndexTest, FirstInsertWins) {
  Store(1, std::nullopt);
  EXPECT_FALSE(index_.Insert(KeyOf(1), std::nullopt, OnePart(99), TierKind::kHost, 0, 0));
  EXPECT_EQ(index_.PartsOf(*index_.Find(KeyOf(1)))[0].extent[0], 1u);
}

TEST_F(BlockIndexTest, EvictsTailsFirstInOrderOfUse) {
  StoreChain(1, 3, 1);
  StoreChain(11, 12, 2);
  Matched({1, 2, 3}, 3);
  EXPECT_EQ(Evict(), KeyOf(12));
  EXPECT_EQ(Evict(), KeyOf(11));
  EXPECT_EQ(Evict(), KeyOf(3));
  EXPECT_EQ(Evict(), KeyOf(2));
  EXPECT_EQ(Evict(), KeyOf(1));
  EXPECT_EQ(Evict(), std::nullopt);
  EXPECT_EQ(index_.blocks(), 0u);
  EXPECT_EQ(index_.nodes(), 0u);
  EXPECT_EQ(released_.size(), 5u);
}

TEST_F(BlockIndexTest, ParentOutlivesItsYoungerBranch) {
  StoreChain(1, 2, 1);
  Store(10, 2, TierKind::kHost, 5);
  Store(20, 2, TierKind::kHost, 9);
  EXPECT_EQ(Evict(), KeyOf(10));
  EXPECT_EQ(Evict(), KeyOf(20));
  EXPECT_EQ(Evict(), KeyOf(2));
}

TEST_F(BlockIndexTest, PinKeepsThePathAboveItAndNothingBelow) {
  StoreChain(1, 5);
  const PinId pin = Pin(3);
  EXPECT_EQ(Evict(), KeyOf(5));
  EXPECT_EQ(Evict(), KeyOf(4));
  EXPECT_EQ(Evict(), std::nullopt);
  index_.Unpin(pin, &released_);
  EXPECT_EQ(Evict(), KeyOf(3));
}

TEST_F(BlockIndexTest, ALeaseKeepsABlockOnlyInItsSlowestTier) {
  StoreChain(1, 4);
  CopyTo(TierKind::kDisk, {1, 2, 4});
  const PinId lease = Lease(3);
  EXPECT_EQ(Evict(), KeyOf(4));      // Behind the lease.
  EXPECT_EQ(Evict(), std::nullopt);  // The last copy of 3.
  CopyTo(TierKind::kDisk, {3});
  EXPECT_EQ(Evict(), KeyOf(3));
  EXPECT_EQ(Evict(), KeyOf(2));
  EXPECT_EQ(Evict(TierKind::kDisk), KeyOf(4));
  EXPECT_EQ(Evict(TierKind::kDisk), std::nullopt);
  EXPECT_EQ(Matched({1, 2, 3}), 3u);
  // 1 is in host still. Its copy on disk is lost, so the one in host stays.
  index_.RemoveFromTier(*index_.Find(KeyOf(1)), TierKind::kDisk, &released_);
  EXPECT_TRUE(index_.CheckInvariants());
  EXPECT_EQ(Evict(), std::nullopt);
  index_.Unpin(lease, &released_);
  EXPECT_EQ(Evict(), KeyOf(1));
  EXPECT_EQ(Evict(TierKind::kDisk), KeyOf(3));
}

TEST_F(BlockIndexTest, ALeaseBelowABranchKeepsTheBlocksAboveIt) {
  StoreChain(1, 3);
  Store(20, 2);
  Store(21, 20);
  CopyTo(TierKind::kDisk, {20, 21});
  const PinId lease = Lease(21);
  EXPECT_TRUE(index_.IsLeased(*index_.Find(KeyOf(2))));
  EXPECT_FALSE(index_.IsLeased(*index_.Find(KeyOf(3))));
  EXPECT_FALSE(index_.IsPinned(*index_.Find(KeyOf(2))));
  // Nothing of the branch is in host any more, and 2 and 1 are nowhere else.
  std::set<BlockKey> evicted;
  while (const auto key = Evict()) evicted.insert(*key);
  EXPECT_EQ(evicted, (std::set<BlockKey>{KeyOf(3), KeyOf(20), KeyOf(21)}));
  index_.Unpin(lease, &released_);
  EXPECT_FALSE(index_.IsLeased(*index_.Find(KeyOf(2))));
  EXPECT_EQ(Evict(), KeyOf(2));
}

TEST_F(BlockIndexTest, ALeaseKeepsNoBytesThatWereRemoved) {
  StoreChain(1, 2);
  const PinId lease = Lease(2);
  index_.RemoveFromTier(*index_.Find(KeyOf(2)), TierKind::kHost, &released_);
  EXPECT_EQ(released_.size(), 1u);  // Nobody was told where they lie.
  // The place on the path stays, and the block comes to life there.
  EXPECT_EQ(index_.KeyAt(index_.PinnedBlock(lease)), KeyOf(2));
  Store(2, 1);
  EXPECT_EQ(Evict(), std::nullopt);
  index_.Unpin(lease, &released_);
  EXPECT_EQ(Evict(), KeyOf(2));
}

TEST_F(BlockIndexTest, LeasesSurviveSplitAndMerge) {
  StoreChain(1, 6);
  const PinId deep = Lease(5), shallow = Lease(2);
  Store(20, 3);
  EXPECT_EQ(index_.KeyAt(index_.PinnedBlock(deep)), KeyOf(5));
  EXPECT_EQ(index_.KeyAt(index_.PinnedBlock(shallow)), KeyOf(2));
  EXPECT_TRUE(index_.CheckInvariants());
  EXPECT_FALSE(index_.IsLeased(*index_.Find(KeyOf(20))));
  index_.Unpin(deep, &released_);
  EXPECT_TRUE(index_.CheckInvariants());
  EXPECT_FALSE(index_.IsLeased(*index_.Find(KeyOf(3))));
  EXPECT_TRUE(index_.IsLeased(*index_.Find(KeyOf(2))));
  index_.Unpin(shallow, &released_);
  EXPECT_FALSE(index_.HasPins());
  EXPECT_TRUE(index_.CheckInvariants());
}

TEST_F(BlockIndexTest, WhatIsUsedAgainIsNotWhatIsOver) {
  StoreChain(1, 2, 10);
  const BlockRef first = *index_.Find(KeyOf(1));
  index_.UseAgain(first, 15, 5);
  EXPECT_EQ(index_.MetaAt(first).last_use, 10u);  // Not long enough ago.
  index_.UseAgain(first, 16, 5);
  EXPECT_EQ(index_.MetaAt(first).last_use, 16u);
  index_.SetLife(20);
  index_.UseAgain(*index_.Find(KeyOf(2)), 31, 5);
  EXPECT_EQ(index_.MetaAt(*index_.Find(KeyOf(2))).last_use, 10u);
}

TEST_F(BlockIndexTest, PinsSurviveSplitAndMerge) {
  StoreChain(1, 6);
  const PinId deep = Pin(5);
  const PinId shallow = Pin(2);
  Store(20, 3);
  EXPECT_EQ(index_.KeyAt(index_.PinnedBlock(deep)), KeyOf(5));
  EXPECT_EQ(index_.KeyAt(index_.PinnedBlock(shallow)), KeyOf(2));
  EXPECT_TRUE(index_.CheckInvariants());
  // Any part of the path, across the split.
  for (uint32_t begin = 0; begin <= 5; ++begin) {
    for (uint32_t end = begin; end <= 5; ++end) {
      std::vector<BlockRef> path;
      ASSERT_TRUE(index_.PathTo(deep, 5, begin, end, &path));
      ASSERT_EQ(path.size(), end - begin);
      for (uint32_t i = begin; i < end; ++i) EXPECT_EQ(index_.KeyAt(path[i - begin]), KeyOf(i + 1));
    }
  }
  std::vector<BlockRef> longer;
  EXPECT_FALSE(index_.PathTo(deep, 6, 0, 6, &longer));
  index_.Unpin(deep, &released_);
  index_.Unpin(shallow, &released_);
  EXPECT_TRUE(index_.CheckInvariants());
}

TEST_F(BlockIndexTest, DirtyBlocksAreNotEvictedFromHost) {
  StoreChain(1, 2);
  index_.SetDirty(*index_.Find(KeyOf(2)), TierKind::kHost, true);
  EXPECT_EQ(Evict(), std::nullopt);
  index_.SetDirty(*index_.Find(KeyOf(2)), TierKind::kHost, false);
  EXPECT_EQ(Evict(), KeyOf(2));
}

TEST_F(BlockIndexTest, EachTierEvictsForItself) {
  StoreChain(1, 2);
  const Extent extent{77, 100};
  index_.AddToTier(*index_.Find(KeyOf(1)), TierKind::kDisk, {&extent, 1});
  index_.AddToTier(*index_.Find(KeyOf(2)), TierKind::kDisk, {&extent, 1});
  EXPECT_EQ(Evict(TierKind::kHost), KeyOf(2));
  EXPECT_EQ(Matched({1, 2}), 2u);
  EXPECT_EQ(Evict(TierKind::kDisk), KeyOf(2));
  EXPECT_EQ(Matched({1, 2}), 1u);
}

TEST_F(BlockIndexTest, LostBlockKeepsItsDescendantsAndComesBack) {
  StoreChain(1, 4);
  EXPECT_TRUE(index_.RemoveFromTier(*index_.Find(KeyOf(2)), TierKind::kHost, &released_));
  EXPECT_EQ(Matched({1, 2, 3, 4}), 1u);
  EXPECT_EQ(Matched({3, 4}), 2u);
  EXPECT_TRUE(index_.CheckInvariants());
  Store(2, 1);
  EXPECT_EQ(Matched({1, 2, 3, 4}), 4u);
  EXPECT_TRUE(index_.CheckInvariants());
}

TEST_F(BlockIndexTest, BytesRemovedUnderAReaderAreReleasedAfterIt) {
  StoreChain(1, 2);
  const PinId reader = Pin(2);
  index_.RemoveFromTier(*index_.Find(KeyOf(2)), TierKind::kHost, &released_);
  const PinId later = Pin(1);
  EXPECT_TRUE(released_.empty());
  index_.Unpin(reader, &released_);
  ASSERT_EQ(released_.size(), 1u);  // The later pin cannot know the bytes.
  EXPECT_EQ(released_[0].extent, (Extent{2, 100}));
  index_.Unpin(later, &released_);
  EXPECT_TRUE(index_.CheckInvariants());
}

TEST_F(BlockIndexTest, ManyPartsKeepTheirExtentsPerTier) {
  PartPlaces parts{{{0, 2, 0, 2}, {60, 0}, {5, 0}}, {{2, 4, 0, 2}, {40, 0}, {6, 0}}};
  ASSERT_TRUE(index_.Insert(KeyOf(1), std::nullopt, parts, TierKind::kHost, 0, 0));
  const Extent disk[] = {{15, 30}, {16, 20}};
  index_.AddToTier(*index_.Find(KeyOf(1)), TierKind::kDisk, disk);
  const auto found = index_.PartsOf(*index_.Find(KeyOf(1)));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[1].In(TierKind::kHost), (Extent{6, 40}));
  EXPECT_EQ(found[1].In(TierKind::kDisk), (Extent{16, 20}));
  EXPECT_EQ(index_.bytes(), 100u);
  EXPECT_EQ(Evict(), KeyOf(1));
  ASSERT_EQ(released_.size(), 2u);
  EXPECT_EQ(released_[0].extent, (Extent{5, 60}));
}

TEST_F(BlockIndexTest, BytesAreCountedAsEachTierHoldsThem) {
  StoreChain(1, 2);
  const Extent disk{77, 40};
  index_.AddToTier(*index_.Find(KeyOf(2)), TierKind::kDisk, {&disk, 1});
  EXPECT_EQ(index_.bytes(), 200u);
  EXPECT_TRUE(index_.CheckInvariants());
  const auto host = index_.EvictOne(TierKind::kHost, &released_);
  ASSERT_TRUE(host);
  EXPECT_EQ(host->bytes, 100u);
  EXPECT_EQ(index_.bytes(), 140u);
  const std::vector<BlockKey> keys = {KeyOf(1), KeyOf(2)};
  const auto walk = index_.Match(keys, 1, false);
  ASSERT_EQ(walk.runs.size(), 2u);
  EXPECT_EQ(walk.runs[1].bytes, 40u);
  const Extent back{78, 40};
  index_.AddToTier(*index_.Find(KeyOf(2)), TierKind::kHost, {&back, 1});
  const auto disk_gone = index_.EvictOne(TierKind::kDisk, &released_);
  ASSERT_TRUE(disk_gone);
  EXPECT_EQ(released_.back().extent, disk);
  EXPECT_EQ(index_.bytes(), 140u);
  EXPECT_TRUE(index_.CheckInvariants());
}

TEST_F(BlockIndexTest, CompactJoinsWhatWasInsertedInAnyOrder) {
  for (uint64_t n : {5, 3, 1, 4, 2, 9, 8}) {
    Store(n, n == 1 ? std::nullopt : std::optional<uint64_t>(n == 8 ? 3 : n - 1));
  }
  index_.Compact();
  EXPECT_TRUE(index_.CheckInvariants());
  EXPECT_EQ(index_.nodes(), 3u);
  EXPECT_EQ(Matched({1, 2, 3, 4, 5}), 5u);
  EXPECT_EQ(Matched({1, 2, 3, 8, 9}), 5u);
}

TEST_F(BlockIndexTest, ReclaimGivesEveryExtentBack) {
  StoreChain(1, 600);
  size_t steps = 0;
  while (index_.Reclaim(100, &released_) == BlockIndex::Reclaimed::kSome) ++steps;
  EXPECT_EQ(steps, 5u);
  EXPECT_EQ(released_.size(), 600u);
  EXPECT_EQ(index_.blocks(), 0u);
}

TEST_F(BlockIndexTest, ReclaimKeepsWhatPinsKeepAndNothingElse) {
  std::mt19937_64 rng(7);
  for (int round = 0; round < 20; ++round) {
    BlockIndex index(kWhole, nullptr, 1);
    std::vector<uint64_t> parent(400);
    for (uint64_t n = 1; n < 400; ++n) {
      // Chains, branches, and roots in any order.
      parent[n] = rng() % 4 == 0 ? rng() % n : n - 1;
      std::optional<BlockKey> above;
      if (parent[n] > 0) above = KeyOf(parent[n]);
      index.Insert(KeyOf(n), above, OnePart(n), rng() % 2 == 0 ? TierKind::kHost : TierKind::kDisk,
                   1, 0);
      if (rng() % 8 == 0) index.SetDirty(*index.Find(KeyOf(n)), TierKind::kHost, true);
    }
    std::map<PinId, uint64_t> pins;
    for (int i = 0; i < 5; ++i) {
      const uint64_t n = 1 + rng() % 399;
      const PinKind kind = rng() % 2 == 0 ? PinKind::kPlace : PinKind::kLease;
      pins[index.PinBlock(*index.Find(KeyOf(n)), kind)] = n;
    }
    const auto kept = [&] {
      std::set<uint64_t> path;
      for (const auto& [pin, deepest] : pins) {
        for (uint64_t n = deepest; n > 0; n = parent[n]) path.insert(n);
      }
      return path;
    };
    ReleaseList released;
    while (true) {
      BlockIndex::Reclaimed reclaimed;
      do {
        reclaimed = index.Reclaim(1 + rng() % 50, &released);
        ASSERT_TRUE(index.CheckInvariants());
      } while (reclaimed == BlockIndex::Reclaimed::kSome);
      ASSERT_EQ(index.blocks(), kept().size());
      ASSERT_EQ(released.size(), 399 - kept().size());
      for (const uint64_t n : kept()) ASSERT_TRUE(index.FindAlive(KeyOf(n))) << n;
      if (pins.empty()) {
        EXPECT_EQ(reclaimed, BlockIndex::Reclaimed::kAll);
        break;
      }
      EXPECT_EQ(reclaimed, BlockIndex::Reclaimed::kPinned);
      EXPECT_EQ(index.Reclaim(1000, &released), BlockIndex::Reclaimed::kPinned);
      index.Unpin(pins.begin()->first, &released);
      pins.erase(pins.begin());
      if (pins.size() == 2) {  // One goes in the middle of a walk.
        (void)index.Reclaim(1, &released);
        index.Unpin(pins.begin()->first, &released);
        pins.erase(pins.begin());
      }
    }
    EXPECT_EQ(index.nodes(), 0u);
  }
}

TEST(RecentlyGoneTest, RemembersWhyUntilOverwritten) {
  RecentlyGone gone(16);
  const Digest ns = KeyOf(1);
  gone.Remember(ns, KeyOf(2), RecentlyGone::Why::kEvicted);
  gone.Remember(ns, KeyOf(3), RecentlyGone::Why::kCorrupt);
  EXPECT_EQ(gone.Find(ns, KeyOf(3)), RecentlyGone::Why::kCorrupt);
  EXPECT_EQ(gone.Find(KeyOf(9), KeyOf(3)), RecentlyGone::Why::kUnknown);
  for (uint64_t n = 10; n < 500; ++n) gone.Remember(ns, KeyOf(n), RecentlyGone::Why::kEvicted);
  EXPECT_EQ(gone.Find(ns, KeyOf(2)), RecentlyGone::Why::kUnknown);
}

TEST_F(BlockIndexTest, TheFastestTierServes) {
  Store(1, std::nullopt, TierKind::kDisk);
  const BlockRef ref = *index_.Find(KeyOf(1));
  const auto found = [&] {
    std::optional<TierKind> tier;
    const BlockKey key = KeyOf(1);
    index_.FindAll({&key, 1}, {&tier, 1});
    return tier;
  };
  EXPECT_EQ(found(), TierKind::kDisk);
  const Extent extent{1, 100};
  index_.AddToTier(ref, TierKind::kDevice, {&extent, 1});
  EXPECT_EQ(found(), TierKind::kDevice);
  index_.AddToTier(ref, TierKind::kHost, {&extent, 1});
  EXPECT_EQ(found(), TierKind::kDevice);
  index_.RemoveFromTier(ref, TierKind::kDevice, &released_);
  EXPECT_EQ(found(), TierKind::kHost);
}

TEST_F(BlockIndexTest, ADirtyCopyStaysInItsTierAlone) {
  Store(1, std::nullopt);
  const BlockRef ref = *index_.Find(KeyOf(1));
  const Extent extent{1, 100};
  index_.AddToTier(ref, TierKind::kDevice, {&extent, 1});
  index_.SetDirty(ref, TierKind::kDevice, true);
  EXPECT_FALSE(Evict(TierKind::kDevice));
  const auto evicted = index_.EvictOne(TierKind::kHost, &released_);
  ASSERT_TRUE(evicted);
  EXPECT_FALSE(evicted->gone);
  EXPECT_FALSE(evicted->demoted);  // The remaining copy is faster.
  index_.SetDirty(ref, TierKind::kDevice, false);
  EXPECT_TRUE(Evict(TierKind::kDevice));
}

}  // namespace
}  // namespace cairn::cache
