// The promises of every eviction policy, whatever it prefers: one suite over the index with each of
// them.

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "services/cache/store/index/block_index.h"
#include "services/cache/store/placement/policies.h"

namespace cairn::cache {
namespace {

constexpr TierKind kHost = TierKind::kHost;
constexpr format::PartRect kWhole{0, 1, 0, 1};
constexpr uint32_t kSecond = 60;  // UseTicks.

BlockKey KeyOf(uint64_t n) {
  BlockKey key;
  for (size_t i = 0; i < 8; ++i) key.bytes[i] = static_cast<uint8_t>(n >> (8 * i));
  key.bytes[31] = 1;
  return key;
}

class EvictionPolicyTest : public ::testing::TestWithParam<EvictionKind> {
 protected:
  static std::unique_ptr<BlockIndex> NewIndex(EvictionKind kind) {
    return std::make_unique<BlockIndex>(kWhole, MakePolicy(kind, 1), 1);
  }

  // A path of `count` blocks with keys from `first` on, after a match as a worker sends it.
  void Store(uint64_t first, uint64_t count, NextUse next = NextUse::kUnknown) {
    std::vector<BlockKey> keys;
    for (uint64_t i = 0; i < count; ++i) keys.push_back(KeyOf(first + i));
    const uint32_t matched = index_->Match(keys, now_, true, next).matched;
    for (uint64_t i = matched; i < count; ++i) {
      PartPlace place{.rect = kWhole};
      place.Set(kHost, {.id = ++extents_, .length = 64});
      const auto parent = i > 0 ? std::optional(keys[i - 1]) : std::nullopt;
      // False: it lives below a block that was lost.
      (void)index_->Insert(keys[i], parent, {place}, kHost, 0.01f, now_);
    }
  }
  std::optional<BlockKey> Evict() {
    const auto evicted = index_->EvictOne(kHost, &released_);
    if (!evicted) return std::nullopt;
    return evicted->key;
  }
  uint32_t Matched(uint64_t first, uint64_t count) {
    std::vector<BlockKey> keys;
    for (uint64_t i = 0; i < count; ++i) keys.push_back(KeyOf(first + i));
    return index_->Match(keys, now_, false).matched;
  }

  std::unique_ptr<BlockIndex> index_ = NewIndex(GetParam());
  uint32_t now_ = 100 * kSecond;
  uint64_t extents_ = 0;
  ReleaseList released_;
};

TEST_P(EvictionPolicyTest, EveryBlockLeavesOnceAndLeafFirst) {
  constexpr uint64_t kPaths = 300, kLength = 8;
  for (uint64_t path = 0; path < kPaths; ++path, now_ += kSecond / 10) Store(100 * path, kLength);
  std::map<uint64_t, uint64_t> left;  // Blocks of each path.
  std::set<BlockKey> gone;
  now_ += 10 * kSecond;
  for (uint64_t i = 0; i < kPaths * kLength; ++i) {
    const auto key = Evict();
    ASSERT_TRUE(key.has_value()) << i;
    EXPECT_TRUE(gone.insert(*key).second);
    uint64_t number = 0;
    for (size_t b = 8; b-- > 0;) number = (number << 8) | key->bytes[b];
    // The rest of its path is the part before it.
    EXPECT_EQ(number % 100, Matched(number / 100 * 100, kLength));
  }
  EXPECT_FALSE(Evict().has_value());
  EXPECT_EQ(released_.size(), kPaths * kLength);
  EXPECT_TRUE(index_->CheckInvariants());
}

TEST_P(EvictionPolicyTest, PinnedAndDirtyBlocksStay) {
  Store(0, 4);
  Store(100, 4);
  Store(200, 4);
  const PinId pin = index_->PinBlock(*index_->FindAlive(KeyOf(3)));
  index_->SetDirty(*index_->FindAlive(KeyOf(103)), kHost, true);
  now_ += 10 * kSecond;
  while (Evict()) {
  }
  EXPECT_EQ(Matched(0, 4), 4u);
  EXPECT_EQ(Matched(100, 4), 4u);
  EXPECT_EQ(Matched(200, 4), 0u);
  index_->Unpin(pin, &released_);
  index_->SetDirty(*index_->FindAlive(KeyOf(103)), kHost, false);
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(Evict().has_value());
  EXPECT_EQ(index_->blocks(), 0u);
}

TEST_P(EvictionPolicyTest, WhatIsInUseNowGoesLast) {
  for (uint64_t path = 0; path < 50; ++path, now_ += kSecond) Store(100 * path, 2);
  now_ += 5 * kSecond;
  Store(100 * 7, 2);  // A use.
  for (int i = 0; i < 98; ++i) ASSERT_TRUE(Evict().has_value());
  EXPECT_EQ(Matched(700, 2), 2u);
}

TEST_P(EvictionPolicyTest, AProtectedBlockStaysUntilItsTime) {
  for (uint64_t path = 0; path < 20; ++path, now_ += kSecond) Store(100 * path, 1);
  index_->Protect(*index_->FindAlive(KeyOf(300)), now_ + 60 * kSecond);
  now_ += 10 * kSecond;
  Store(5000, 1);
  for (int i = 0; i < 19; ++i) ASSERT_TRUE(Evict().has_value());
  EXPECT_EQ(Matched(300, 1), 1u);
}

TEST_P(EvictionPolicyTest, NothingThatWasUsedSinceAGivenTimeGoes) {
  for (uint64_t path = 0; path < 20; ++path, now_ += kSecond) Store(100 * path, 1);
  const uint32_t below = 110 * kSecond;
  int evicted = 0;
  while (index_->EvictOne(kHost, &released_, below)) ++evicted;
  EXPECT_EQ(evicted, 10);
  for (uint64_t path = 10; path < 20; ++path) EXPECT_EQ(Matched(100 * path, 1), 1u);
}

TEST_P(EvictionPolicyTest, WhatIsOverMatchesNothingAndGoesFirstInTheOrderOfLastUse) {
  for (uint64_t path = 0; path < 20; ++path, now_ += kSecond) Store(100 * path, 2);
  Store(0, 2);  // A use.
  index_->SetLife(10 * kSecond);
  // Paths 1 to 9 were used more than 10 seconds ago.
  const uint32_t now = now_;
  for (uint64_t path = 0; path < 20; ++path) {
    EXPECT_EQ(Matched(100 * path, 2), path == 0 || path >= 10 ? 2u : 0u) << path;
  }
  for (uint64_t path = 1; path < 10; ++path) {
    for (const uint64_t block : {100 * path + 1, 100 * path}) {
      const auto evicted = index_->EvictOne(kHost, &released_, UINT64_MAX, now);
      ASSERT_TRUE(evicted.has_value());
      EXPECT_TRUE(evicted->over);
      EXPECT_EQ(evicted->key, KeyOf(block));
    }
  }
  const auto next = index_->EvictOne(kHost, &released_, UINT64_MAX, now);
  ASSERT_TRUE(next.has_value());
  EXPECT_FALSE(next->over);
  index_->SetLife(0);
  now_ += 1000 * kSecond;
  EXPECT_EQ(Matched(0, 2), 2u);
  EXPECT_TRUE(index_->CheckInvariants());
}

// The evictor compares namespaces by NextRank. If a policy or a hint could change it, a tenant
// could take room from others.
TEST_P(EvictionPolicyTest, NextRankIsThatOfLruWhateverIsHintedAndLearned) {
  const auto lru = NewIndex(EvictionKind::kLru);
  std::mt19937 rng(3);
  constexpr uint64_t kRoom = 1500;
  for (uint64_t path = 0; path < 6000; ++path, now_ += kSecond / 4) {
    Store(100 * path, 1, static_cast<NextUse>(rng() % kNextUseCount));
    PartPlace place{.rect = kWhole};
    place.Set(kHost, {.id = path, .length = 64});
    EXPECT_TRUE(lru->Insert(KeyOf(100 * path), std::nullopt, {place}, kHost, 0.01f, now_));
    if (path < kRoom) continue;
    ASSERT_TRUE(Evict().has_value());
    ASSERT_TRUE(lru->EvictOne(kHost, &released_).has_value());
    ASSERT_EQ(index_->NextRank(kHost), lru->NextRank(kHost)) << path;
  }
}

TEST_P(EvictionPolicyTest, MemoryGoesBackAndIsBoundedForEachBlock) {
  const size_t empty = index_->MemoryBytes();
  std::mt19937 rng(5);
  constexpr uint64_t kRoom = 4000;
  for (uint64_t path = 0; path < 20000; ++path, now_ += kSecond / 20) {
    Store(100 * (rng() % 15000), 1 + rng() % 3);
    while (index_->blocks() > kRoom) ASSERT_TRUE(Evict().has_value());
    released_.clear();
  }
  EXPECT_TRUE(index_->CheckInvariants());
  // The index itself takes about 290 bytes for a path of two blocks, a policy 24 for each path, 64
  // to 128 for each block that is remembered, and its learned numbers.
  EXPECT_LT(index_->MemoryBytes(), empty + kRoom * 500 + (200 << 10));
  now_ += 10 * kSecond;
  while (Evict()) {
  }
  EXPECT_EQ(index_->blocks(), 0u);
  EXPECT_LT(index_->MemoryBytes(), empty + kRoom * 128 + (300 << 10));
}

// Random stores, uses, pins, evictions and removals.
TEST_P(EvictionPolicyTest, StaysSoundWhateverHappens) {
  std::mt19937 rng(11);
  std::vector<PinId> pins;
  for (int step = 0; step < 30000; ++step) {
    const uint64_t first = 100 * (rng() % 400);
    now_ += rng() % (rng() % 500 == 0 ? 4000 * kSecond : kSecond);
    switch (rng() % 8) {
      case 0:
      case 1:
      case 2:
        Store(first, 1 + rng() % 12, static_cast<NextUse>(rng() % kNextUseCount));
        break;
      case 3:
        if (const auto ref = index_->FindAlive(KeyOf(first + rng() % 12))) {
          pins.push_back(index_->PinBlock(*ref));
        }
        break;
      case 4:
        if (!pins.empty()) {
          index_->Unpin(pins.back(), &released_);
          pins.pop_back();
        }
        break;
      case 5:
        if (const auto ref = index_->FindAlive(KeyOf(first + rng() % 12))) {
          (void)index_->RemoveFromTier(*ref, kHost, &released_);
        }
        break;
      default:
        for (int i = 0; i < 6; ++i) (void)Evict();
    }
    if (step % 1000 == 0) {
      ASSERT_TRUE(index_->CheckInvariants()) << step;
    }
  }
  for (const PinId pin : pins) index_->Unpin(pin, &released_);
  while (Evict()) {
  }
  EXPECT_EQ(index_->blocks(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Policies, EvictionPolicyTest, ::testing::ValuesIn(kEvictionKinds),
                         [](const auto& tested) { return std::string(Name(tested.param)); });

}  // namespace
}  // namespace cairn::cache
