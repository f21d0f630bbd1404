#include "tools/cairn/fidelity/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace cairn::cli {
namespace {

TEST(CompareTest, EqualRowsDivergeByExactlyNothing) {
  const std::vector<float> x = {1.5f, -3, 0.25f, 80};
  const Divergence d = Compare(x, x, 2);
  EXPECT_EQ(d.kl, 0);
  EXPECT_EQ(d.full_nll, d.other_nll);
  EXPECT_TRUE(d.same_top1);
}

TEST(CompareTest, IsTheDefinitionOnTwoOutcomes) {
  // p = (0.75, 0.25), q = (0.5, 0.5).
  const std::vector<float> full = {std::log(3.0f), 0};
  const std::vector<float> other = {7, 7};
  const Divergence d = Compare(full, other, 1);
  EXPECT_NEAR(d.kl, 0.75 * std::log(1.5) + 0.25 * std::log(0.5), 1e-7);
  EXPECT_NEAR(d.full_nll, std::log(4), 1e-7);
  EXPECT_NEAR(d.other_nll, std::log(2), 1e-12);
  EXPECT_TRUE(d.same_top1);  // The first of equal ones.
}

TEST(CompareTest, DoesNotDependOnAConstantAndIsNotSymmetric) {
  const std::vector<float> a = {1, 2, 4};
  const std::vector<float> b = {4, 1, 1};
  std::vector<float> shifted = b;
  for (float& v : shifted) v += 64;
  EXPECT_NEAR(Compare(a, b, 0).kl, Compare(a, shifted, 0).kl, 1e-12);
  EXPECT_GT(std::abs(Compare(a, b, 0).kl - Compare(b, a, 0).kl), 1e-3);
  EXPECT_FALSE(Compare(a, b, 0).same_top1);
}

TEST(CompareTest, LargeLogitsDoNotOverflow) {
  const std::vector<float> a = {1e4f, -1e4f};
  EXPECT_TRUE(std::isfinite(Compare(a, {a}, 1).full_nll));
}

TEST(BootstrapTest, MeanIsWeightedAndTheIntervalHoldsIt) {
  const std::vector<Group> groups = {{2, 1}, {0, 3}};
  const Interval i = Bootstrap(groups);
  EXPECT_EQ(i.mean, 0.5);
  EXPECT_EQ(i.low, 0);
  EXPECT_EQ(i.high, 2);
}

TEST(BootstrapTest, ManyGroupsGiveTheStandardError) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal(10, 2);
  std::vector<Group> groups(400);
  for (Group& g : groups) g = {normal(random), 1};
  const Interval i = Bootstrap(groups);
  EXPECT_NEAR(i.high - i.low, 2 * 1.96 * 2 / std::sqrt(400), 0.08);
  EXPECT_EQ(Bootstrap(groups).low, i.low);  // The same again.
}

TEST(BootstrapTest, NothingIsZero) { EXPECT_EQ(Bootstrap({}).mean, 0); }

}  // namespace
}  // namespace cairn::cli
