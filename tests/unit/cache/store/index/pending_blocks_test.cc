#include "services/cache/store/index/pending_blocks.h"

#include <gtest/gtest.h>

#include "services/cache/store/tier/host_room.h"
#include "tests/unit/cache/store/index/index_fixture.h"

namespace cairn::cache {
namespace {

using testing::KeyOf;
using testing::kWhole;

constexpr format::PartRect kTop{0, 2, 0, 2}, kBottom{2, 4, 0, 2};

class PendingBlocksTest : public ::testing::Test {
 protected:
  std::optional<PendingBlocks::Complete> Commit(const format::PartRect& rect, uint32_t bytes = 10,
                                                const PendingBlocks::About& about = {},
                                                TimePoint expires = TimePoint()) {
    EXPECT_EQ(pending_.Fit(KeyOf(1), rect), PartFit::kFree);
    return pending_.Commit(KeyOf(1), {rect, {bytes, 0}, {}}, about, expires, &replaced_);
  }

  PendingBlocks pending_{kWhole};
  std::vector<PartPlace> replaced_;
};

TEST_F(PendingBlocksTest, CompletesWhenTheGridIsCoveredWithPartsInOrder) {
  EXPECT_FALSE(pending_.Completes(KeyOf(1), kBottom));
  EXPECT_FALSE(Commit(kBottom, 60, {.recompute_seconds = 1}));
  EXPECT_EQ(pending_.incomplete_bytes(), kHostPageBytes);
  EXPECT_EQ(pending_.incomplete_blocks(), 1u);
  EXPECT_TRUE(pending_.Completes(KeyOf(1), kTop));
  const auto done = Commit(kTop, 40, {.parent = KeyOf(9), .recompute_seconds = 3});
  ASSERT_TRUE(done);
  EXPECT_EQ(done->parts[0].rect, kTop);
  EXPECT_EQ(done->parent, KeyOf(9));
  EXPECT_EQ(done->recompute_seconds, 3.0f);
  EXPECT_EQ(pending_.incomplete_bytes(), 0u);
  EXPECT_EQ(pending_.incomplete_blocks(), 0u);
  EXPECT_FALSE(pending_.Contains(KeyOf(1)));
  EXPECT_TRUE(replaced_.empty());
}

// With their lengths alone, a block of thousands of small parts would count for a tenth of its
// room.
TEST_F(PendingBlocksTest, APartCountsAsTheWholePagesThatItTakes) {
  Commit({0, 1, 0, 1}, 1);
  Commit({1, 2, 0, 1}, kHostPageBytes);
  Commit({2, 3, 0, 1}, kHostPageBytes + 1);
  EXPECT_EQ(pending_.incomplete_bytes(), 4 * kHostPageBytes);
}

TEST_F(PendingBlocksTest, WritersDoNotExcludeEachOther) {
  pending_.AddWriter(KeyOf(1));
  pending_.AddWriter(KeyOf(1));
  EXPECT_EQ(pending_.Fit(KeyOf(1), kTop), PartFit::kFree);
  EXPECT_TRUE(pending_.Contains(KeyOf(1)));
  EXPECT_EQ(pending_.incomplete_blocks(), 0u);
  Commit(kTop);
  EXPECT_EQ(pending_.Fit(KeyOf(1), kTop), PartFit::kCovered);
  EXPECT_EQ(pending_.Fit(KeyOf(1), {0, 1, 1, 2}), PartFit::kCovered);
  EXPECT_EQ(pending_.Fit(KeyOf(1), {1, 3, 0, 2}), PartFit::kOverlaps);
  EXPECT_TRUE(Commit(kBottom));
  EXPECT_TRUE(pending_.Contains(KeyOf(1)));  // Both still have to learn that they came late.
  pending_.RemoveWriter(KeyOf(1));
  EXPECT_TRUE(pending_.Contains(KeyOf(1)));
  pending_.RemoveWriter(KeyOf(1));
  EXPECT_FALSE(pending_.Contains(KeyOf(1)));
}

TEST_F(PendingBlocksTest, APartTakesThePlaceOfThoseThatItCovers) {
  Commit({0, 1, 0, 1}, 1);
  Commit({1, 2, 1, 2}, 2);
  Commit(kBottom, 40);
  EXPECT_TRUE(pending_.Completes(KeyOf(1), kTop));
  const auto done = Commit(kTop, 30);
  ASSERT_TRUE(done);
  EXPECT_EQ(done->parts.size(), 2u);
  ASSERT_EQ(replaced_.size(), 2u);
  EXPECT_EQ(replaced_[0].bytes[TierKind::kHost] + replaced_[1].bytes[TierKind::kHost], 3u);
  EXPECT_EQ(pending_.incomplete_bytes(), 0u);
}

TEST_F(PendingBlocksTest, ExpiryDropsPartsButKeepsWriters) {
  const TimePoint soon = TimePoint() + std::chrono::seconds(60);
  pending_.AddWriter(KeyOf(1));
  Commit(kTop, 40, {}, soon);
  std::vector<PartPlace> dropped;
  pending_.Expire(soon - std::chrono::seconds(1), false, &dropped);
  EXPECT_TRUE(dropped.empty());
  pending_.Expire(soon, false, &dropped);
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_EQ(pending_.incomplete_blocks(), 0u);
  EXPECT_TRUE(pending_.Contains(KeyOf(1)));
  EXPECT_EQ(pending_.Fit(KeyOf(1), kTop), PartFit::kFree);
}

TEST_F(PendingBlocksTest, FitLooksAtNeighboursOnly) {
  constexpr uint16_t kLayers = 4096;
  PendingBlocks pending(format::PartRect{0, kLayers, 0, 8});
  std::vector<PartPlace> replaced;
  for (uint16_t n = 0; n < kLayers - 1; ++n) {
    const auto layer = static_cast<uint16_t>(n * 1237 % kLayers);  // In no order.
    const format::PartRect rect{layer, static_cast<uint16_t>(layer + 1), 0, 8};
    ASSERT_EQ(pending.Fit(KeyOf(1), rect), PartFit::kFree);
    ASSERT_EQ(pending.Fit(KeyOf(1), {layer, static_cast<uint16_t>(layer + 1), 3, 4}),
              PartFit::kFree);
    pending.Commit(KeyOf(1), {rect, {1, 0}, {}}, {}, TimePoint(), &replaced);
  }
  // Pairwise comparisons would be some 8 million for each of the three.
  EXPECT_LT(pending.looked_at(), 3u * 3 * kLayers);
}

TEST_F(PendingBlocksTest, ReservingManyPartsLooksAtNone) {
  for (int n = 0; n < 4096; ++n) {
    EXPECT_EQ(pending_.Fit(KeyOf(1), kTop), PartFit::kFree);
    pending_.AddWriter(KeyOf(1));
  }
  EXPECT_EQ(pending_.looked_at(), 0u);
}

TEST_F(PendingBlocksTest, AFloodOfKeysLeavesNoMemoryBehind) {
  const size_t before = pending_.MemoryBytes();
  for (uint64_t n = 0; n < 100000; ++n) pending_.AddWriter(KeyOf(n));
  EXPECT_GT(pending_.MemoryBytes(), 100000 * sizeof(BlockKey));
  for (uint64_t n = 0; n < 100000; ++n) pending_.RemoveWriter(KeyOf(n));
  EXPECT_LT(pending_.MemoryBytes(), before + (64 << 10));
}

}  // namespace
}  // namespace cairn::cache
