#include "cairn/common/tier_kind.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

// On the wire, in shared memory and in Python.
TEST(TierKind, NumbersNeverChange) {
  EXPECT_EQ(static_cast<int>(TierKind::kHost), 0);
  EXPECT_EQ(static_cast<int>(TierKind::kDisk), 1);
  EXPECT_EQ(static_cast<int>(TierKind::kDevice), 2);
  EXPECT_EQ(TierCode(std::nullopt), 0);
  EXPECT_EQ(TierCode(TierKind::kHost), 1);
  EXPECT_EQ(TierCode(TierKind::kDisk), 2);
  EXPECT_EQ(TierCode(TierKind::kDevice), 3);
}

TEST(TierKind, EveryCodeComesBackAndOthersAreNoTier) {
  for (const TierKind kind : kTiersByRank) EXPECT_EQ(TierFromCode(TierCode(kind)), kind);
  EXPECT_EQ(TierFromCode(0), std::nullopt);
  EXPECT_EQ(TierFromCode(-1), std::nullopt);
  EXPECT_EQ(TierFromCode(4), std::nullopt);
}

TEST(TierKind, RankIsNotTheNumber) {
  EXPECT_TRUE(Faster(TierKind::kDevice, TierKind::kHost));
  EXPECT_TRUE(Faster(TierKind::kHost, TierKind::kDisk));
  EXPECT_FALSE(Faster(TierKind::kDisk, TierKind::kDevice));
  EXPECT_FALSE(Faster(TierKind::kHost, TierKind::kHost));
}

TEST(ByTier, IsIndexedByKindAndByNumber) {
  ByTier<int> values = {{1, 2, 3}};
  EXPECT_EQ(values[TierKind::kHost], 1);
  EXPECT_EQ(values[TierKind::kDevice], 3);
  values[TierKind::kDisk] = 7;
  EXPECT_EQ(values[size_t{1}], 7);
}

}  // namespace
}  // namespace cairn
