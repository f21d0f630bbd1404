// Keys and pins that somebody chose in order to make the index work or grow: what it does is
// counted, never timed.

#include <gtest/gtest.h>

#include <set>

#include "services/cache/store/index/block_index.h"
#include "tests/unit/cache/store/index/index_fixture.h"

namespace cairn::cache {
namespace {

using testing::KeyOf;
using testing::kWhole;
using testing::OnePart;

// Keys that a hash of two products with known multiplicands maps to one value for every seed.
BlockKey CollidingKey(uint64_t n) {
  const uint64_t words[4] = {n * 0x9e3779b97f4a7c15ull + 1, 0xe7037ed1a0b428dbull,
                             0x8ebc6af09c88c6e3ull, n ^ 0x5555555555555555ull};
  BlockKey key;
  std::memcpy(key.bytes.data(), words, sizeof(words));
  return key;
}

// Keys whose first 8 bytes are equal.
BlockKey SameHeadKey(uint64_t n) {
  BlockKey key;
  std::memcpy(key.bytes.data() + 8, &n, sizeof(n));
  return key;
}

class HostileKeysTest : public ::testing::Test {
 protected:
  void Store(uint64_t n, std::optional<uint64_t> parent) {
    const std::optional<BlockKey> above = parent ? std::optional(KeyOf(*parent)) : std::nullopt;
    ASSERT_TRUE(index_.Insert(KeyOf(n), above, OnePart(n), TierKind::kHost, 0, 0));
  }
  BlockIndex::Walk Match(const std::vector<uint64_t>& numbers) {
    std::vector<BlockKey> keys;
    for (const uint64_t n : numbers) keys.push_back(KeyOf(n));
    return index_.Match(keys, 0, true);
  }

  BlockIndex index_{kWhole, nullptr, 42};
  ReleaseList released_;
};

TEST_F(HostileKeysTest, ARepeatedKeyEndsTheMatch) {
  Store(1, std::nullopt);
  const BlockIndex::Walk walk = Match(std::vector<uint64_t>(1000, 1));
  EXPECT_EQ(walk.matched, 1u);
  EXPECT_EQ(walk.path_runs.size(), 1u);
}

TEST_F(HostileKeysTest, AKeyRepeatedBehindAJumpEndsTheMatch) {
  for (uint64_t n = 1; n <= 5; ++n) Store(n, n == 1 ? std::nullopt : std::optional(n - 1));
  EXPECT_EQ(Match({3, 4, 1, 2, 3, 4}).matched, 4u);
  EXPECT_EQ(Match({4, 5, 3, 4}).matched, 3u);
  EXPECT_EQ(Match({5, 4, 3, 2, 1, 5}).matched, 5u);
  EXPECT_EQ(Match({1, 2, 3, 4, 5}).matched, 5u);
  EXPECT_TRUE(index_.CheckInvariants());
}

TEST_F(HostileKeysTest, MemoryOfPinsComesBack) {
  for (uint64_t n = 1; n <= 64; ++n) Store(n, n == 1 ? std::nullopt : std::optional(n - 1));
  const BlockRef first = *index_.Find(KeyOf(1));
  const PinId stays = index_.PinBlock(*index_.Find(KeyOf(64)));
  const size_t before = index_.MemoryBytes();
  std::vector<PinId> pins;
  for (int i = 0; i < 20'000; ++i) pins.push_back(index_.PinBlock(first));
  for (const PinId pin : pins) index_.Unpin(pin, &released_);
  EXPECT_EQ(index_.MemoryBytes(), before);
  index_.Unpin(stays, &released_);
  EXPECT_TRUE(index_.CheckInvariants());
}

TEST_F(HostileKeysTest, APinEndsWithoutAWalkOverTheOthers) {
  for (uint64_t n = 1; n <= 64; ++n) Store(n, n == 1 ? std::nullopt : std::optional(n - 1));
  std::vector<PinId> pins;
  for (uint64_t i = 0; i < 20'000; ++i) {
    pins.push_back(index_.PinBlock(*index_.Find(KeyOf(1 + i % 64))));
  }
  const uint64_t before = index_.steps();
  for (const PinId pin : pins) index_.Unpin(pin, &released_);
  // Only where the deepest pin moved up.
  EXPECT_LE(index_.steps() - before, 64 * kTierCount);
  EXPECT_FALSE(index_.HasPins());
  EXPECT_TRUE(index_.CheckInvariants());
}

TEST_F(HostileKeysTest, APinTakesNoStepsInTiersThatHoldNothing) {
  // A path of nodes that cannot be merged.
  constexpr uint64_t kDeep = 5000;
  for (uint64_t n = 1; n <= kDeep; ++n) {
    Store(n, n == 1 ? std::nullopt : std::optional(n - 1));
    if (n > 1) Store(kDeep + n, n - 1);
  }
  const uint64_t before = index_.steps();
  const PinId pin = index_.PinBlock(*index_.Find(KeyOf(kDeep)));
  EXPECT_LE(index_.steps() - before, kTierCount);
  EXPECT_TRUE(index_.IsPinned(*index_.Find(KeyOf(1))));
  EXPECT_TRUE(index_.CheckInvariants());

  // Once the tier is used, the pin counts there too: no block that it reaches is evicted.
  const BlockRef root = *index_.Find(KeyOf(1));
  std::vector<Extent> extents;
  for (const PartPlace& part : index_.PartsOf(root)) {
    extents.push_back({.id = 1'000'000, .length = part.bytes[TierKind::kHost]});
  }
  index_.AddToTier(root, TierKind::kDisk, extents);
  EXPECT_TRUE(index_.CheckInvariants());
  EXPECT_TRUE(index_.IsPinned(root));
  EXPECT_FALSE(index_.EvictOne(TierKind::kDisk, &released_).has_value());
  index_.Unpin(pin, &released_);
  EXPECT_TRUE(index_.CheckInvariants());
  EXPECT_TRUE(index_.EvictOne(TierKind::kDisk, &released_).has_value());
}

TEST_F(HostileKeysTest, RootsAreLinkedInStepsByTheirNumber) {
  constexpr uint64_t kRoots = 4000;
  std::vector<uint64_t> roots;
  for (uint64_t n = 0; n < kRoots; ++n) {
    roots.push_back(n);
    Store(n, std::nullopt);
    // Nothing is merged: two children each.
    Store(kRoots + n, n);
    Store(2 * kRoots + n, n);
  }
  const uint64_t before = index_.steps();
  EXPECT_EQ(Match(roots).matched, kRoots);
  EXPECT_LE(index_.steps() - before, 65'536 + 16 * kRoots);
  EXPECT_TRUE(index_.CheckInvariants());
  // A block that was not linked is matched all the same.
  EXPECT_EQ(Match(roots).matched, kRoots);
}

TEST_F(HostileKeysTest, ALinkTakesABoundedNumberOfSteps) {
  // A path of nodes that cannot be merged, and a root with children.
  constexpr uint64_t kDeep = 5000;
  for (uint64_t n = 1; n <= kDeep; ++n) {
    Store(n, n == 1 ? std::nullopt : std::optional(n - 1));
    if (n > 1) Store(kDeep + n, n - 1);
  }
  Store(100'000, std::nullopt);
  Store(100'001, 100'000);
  Store(100'002, 100'000);
  const uint64_t before = index_.steps();
  index_.Link(KeyOf(100'000), KeyOf(kDeep));
  EXPECT_LE(index_.steps() - before, 2048u);
  EXPECT_TRUE(index_.CheckInvariants());
}

TEST_F(HostileKeysTest, AnIndexThatWasFullAndIsEmptyIsSmall) {
  const size_t empty = index_.MemoryBytes();
  // Roots: each has a node of its own.
  for (uint64_t n = 0; n < 20'000; ++n) Store(n, std::nullopt);
  const size_t full = index_.MemoryBytes();
  while (index_.EvictOne(TierKind::kHost, &released_)) {
  }
  EXPECT_EQ(index_.blocks(), 0u);
  EXPECT_LT(index_.MemoryBytes() - empty, full / 20);
  for (uint64_t n = 0; n < 1000; ++n) Store(n, std::nullopt);
  EXPECT_TRUE(index_.CheckInvariants());
}

TEST_F(HostileKeysTest, ManyPartsCountAsWhatTheyTake) {
  const format::PartRect whole{0, 1, 0, 1024};
  BlockIndex index(whole, nullptr, 42);
  const size_t before = index.MemoryBytes();
  PartPlaces parts;
  for (uint16_t head = 0; head < 1024; ++head) {
    parts.push_back({{0, 1, head, static_cast<uint16_t>(head + 1)}, {{10, 10, 10}}, {{1, 1, 1}}});
  }
  for (uint64_t n = 0; n < 10; ++n) {
    ASSERT_TRUE(index.Insert(KeyOf(n), std::nullopt, parts, TierKind::kHost, 0, 0));
  }
  EXPECT_GE(index.MemoryBytes() - before, 10 * parts.size() * sizeof(PartPlace));
  while (index.EvictOne(TierKind::kHost, &released_)) {
  }
  EXPECT_LT(index.MemoryBytes() - before, 64u << 10);
}

// Keys compared by a look-up in a table of 2,000 keys of this kind.
template <typename MakeKey>
size_t MostComparisons(MakeKey make_key) {
  constexpr uint64_t kKeys = 2000;
  KeyMap map(/*seed=*/7);
  std::vector<BlockKey> keys;
  for (uint64_t n = 0; n < kKeys; ++n) {
    keys.push_back(make_key(n));
    map.Insert(keys.back(), {static_cast<NodeId>(n), 0});
  }
  size_t most = 0;
  for (uint64_t n = 0; n < 2 * kKeys; ++n) {
    size_t comparisons = 0;
    const auto found = map.Find(make_key(n), [&](BlockRef ref) -> const BlockKey& {
      ++comparisons;
      return keys[ref.node];
    });
    EXPECT_EQ(found.has_value(), n < kKeys);
    most = std::max(most, comparisons);
  }
  return most;
}

TEST(KeyMapTest, ChosenKeysCollideNoMoreThanOthers) {
  EXPECT_LE(MostComparisons(KeyOf), 2u);
  EXPECT_LE(MostComparisons(CollidingKey), 2u);
  EXPECT_LE(MostComparisons(SameHeadKey), 2u);
}

TEST(DigestHashTest, KeysWithEqualBeginningsHaveDifferentHashes) {
  std::set<size_t> hashes, absl_hashes;
  for (uint64_t n = 0; n < 1000; ++n) {
    hashes.insert(std::hash<Digest>()(SameHeadKey(n)));
    absl_hashes.insert(absl::Hash<Digest>()(SameHeadKey(n)));
  }
  EXPECT_EQ(hashes.size(), 1000u);
  EXPECT_EQ(absl_hashes.size(), 1000u);
}

}  // namespace
}  // namespace cairn::cache
