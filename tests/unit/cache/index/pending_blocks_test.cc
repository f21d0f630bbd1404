#include "services/cache/index/pending_blocks.h"

#include <gtest/gtest.h>

#include "tests/unit/cache/index/index_fixture.h"

namespace cairn::cache {
namespace {

using testing::KeyOf;
using testing::kWhole;

constexpr format::PartRect kTop{0, 2, 0, 2}, kBottom{2, 4, 0, 2};

TEST(PendingBlocksTest, CompletesWhenTheGridIsCoveredWithPartsInOrder) {
  PendingBlocks pending(kWhole);
  EXPECT_EQ(pending.Claim(KeyOf(1), kBottom), PartFit::kFree);
  EXPECT_EQ(pending.Claim(KeyOf(1), kTop), PartFit::kFree);
  EXPECT_FALSE(pending.Completes(KeyOf(1), kBottom));
  EXPECT_FALSE(pending.Commit(KeyOf(1), {kBottom, {60, 0}, {}}, std::nullopt, 1.0f, TimePoint()));
  EXPECT_EQ(pending.incomplete_bytes(), 60u);
  EXPECT_TRUE(pending.Completes(KeyOf(1), kTop));
  const auto done = pending.Commit(KeyOf(1), {kTop, {40, 0}, {}}, KeyOf(9), 3.0f, TimePoint());
  ASSERT_TRUE(done);
  EXPECT_EQ(done->parts[0].rect, kTop);
  EXPECT_EQ(done->parent, KeyOf(9));
  EXPECT_EQ(done->recompute_seconds, 3.0f);
  EXPECT_EQ(pending.incomplete_bytes(), 0u);
  EXPECT_FALSE(pending.Contains(KeyOf(1)));
}

TEST(PendingBlocksTest, ClaimsExcludeEachOtherAndComeBack) {
  PendingBlocks pending(kWhole);
  EXPECT_EQ(pending.Claim(KeyOf(1), kTop), PartFit::kFree);
  EXPECT_EQ(pending.Claim(KeyOf(1), kTop), PartFit::kCovered);
  EXPECT_EQ(pending.Claim(KeyOf(1), {1, 3, 0, 2}), PartFit::kOverlaps);
  pending.Unclaim(KeyOf(1), kTop);
  EXPECT_EQ(pending.Claim(KeyOf(1), {1, 3, 0, 2}), PartFit::kFree);
}

TEST(PendingBlocksTest, ExpiryDropsPartsButKeepsOpenClaims) {
  PendingBlocks pending(kWhole);
  const TimePoint soon = TimePoint() + std::chrono::seconds(60);
  pending.Claim(KeyOf(1), kTop);
  pending.Claim(KeyOf(1), kBottom);
  pending.Commit(KeyOf(1), {kTop, {40, 0}, {}}, std::nullopt, 0, soon);
  std::vector<PartPlace> dropped;
  pending.Expire(soon - std::chrono::seconds(1), false, &dropped);
  EXPECT_TRUE(dropped.empty());
  pending.Expire(soon, false, &dropped);
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_EQ(pending.incomplete_blocks(), 0u);
  EXPECT_EQ(pending.Claim(KeyOf(1), kBottom), PartFit::kCovered);
  EXPECT_EQ(pending.Claim(KeyOf(1), kTop), PartFit::kFree);
}

}  // namespace
}  // namespace cairn::cache
