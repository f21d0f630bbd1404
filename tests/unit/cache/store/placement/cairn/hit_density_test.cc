#include "services/cache/store/placement/cairn/hit_density.h"

#include <gtest/gtest.h>

namespace cairn::cache {
namespace {

constexpr BlockGroup kOften = 1, kRarely = 2, kUnseen = 3;

TEST(HitDensityTest, WithoutCountsItIsTheOrderOfLastUse) {
  const HitDensity density;
  for (int bin = 1; bin < AgeCells::kBins; ++bin) {
    EXPECT_LE(density.Density(kUnseen, bin), density.Density(kUnseen, bin - 1)) << bin;
  }
}

TEST(HitDensityTest, WhatIsUsedMoreIsWorthMore) {
  HitDensity density;
  for (int bin = 0; bin < AgeCells::kBins; ++bin) {
    density.AddExposure(kOften, bin, 100'000);
    density.AddUses(kOften, bin, 1000);
    density.AddExposure(kRarely, bin, 100'000);
    density.AddUses(kRarely, bin, 10);
  }
  density.Learn();
  for (int bin = 0; bin < AgeCells::kBins; ++bin) {
    EXPECT_GT(density.Density(kOften, bin), 3 * density.Density(kRarely, bin)) << bin;
  }
}

// A block that comes back after a minute, and else never, is kept until then, and not longer. Its
// hazard before that is zero, so a rank by the likelihood of a use now would drop it first.
TEST(HitDensityTest, LooksAheadToTheNextUse) {
  HitDensity density;
  const int back = AgeCells::BinOfAge(static_cast<int64_t>(60 / AgeCells::kSecondsPerSlot));
  for (int bin = 0; bin < AgeCells::kBins; ++bin) {
    density.AddExposure(kOften, bin, 1'000'000);
    density.AddExposure(kRarely, bin, 1'000'000);
    density.AddUses(kRarely, bin, 1000);
  }
  density.AddUses(kOften, back, 500'000);
  density.Learn();
  EXPECT_GT(density.Density(kOften, 0), density.Density(kRarely, 0));
  EXPECT_GT(density.Density(kOften, back), 2 * density.Density(kOften, 0));
  EXPECT_LT(density.Density(kOften, back + 4), density.Density(kRarely, back + 4));
}

TEST(HitDensityTest, OldCountsFade) {
  HitDensity density;
  density.AddUses(kOften, 3, 800);
  density.AddExposure(kOften, 3, 1600);
  density.Decay(0.25);
  EXPECT_EQ(density.UsesOf(kOften), 200);
  EXPECT_EQ(density.ExposureOf(kOften), 400);
}

}  // namespace
}  // namespace cairn::cache
