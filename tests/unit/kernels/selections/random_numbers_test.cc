#include "kernels/selections/stages/random_numbers.h"

#include <gtest/gtest.h>

#include <numeric>

namespace cairn::selections {
namespace {

TEST(SplitMix, DrawsAsPublished) {
  // The first numbers of the seed 1234567, as its authors' program prints them.
  SplitMix draw(1234567);
  EXPECT_EQ(draw.Next(), 6457827717110365317u);
  EXPECT_EQ(draw.Next(), 3203168211198807973u);
  EXPECT_EQ(draw.Next(), 9817491932198370423u);
}

TEST(SplitMix, EachListOfNumbersHasItsDraws) {
  EXPECT_EQ(SplitMix(1, {2, 3}).Next(), SplitMix(1, {2, 3}).Next());
  EXPECT_NE(SplitMix(1, {2, 3}).Next(), SplitMix(1, {3, 2}).Next());
  EXPECT_NE(SplitMix(1, {2, 3}).Next(), SplitMix(2, {2, 3}).Next());
  EXPECT_NE(SplitMix(1, {0}).Next(), SplitMix(1, {0, 0}).Next());
}

TEST(Gumbel, HasItsMeanAndSpread) {
  SplitMix draw(7);
  double sum = 0, squares = 0;
  constexpr int kDraws = 200'000;
  for (int i = 0; i < kDraws; ++i) {
    const double x = Gumbel(&draw);
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kDraws, 0.5772, 0.01) << "Euler's constant";
  EXPECT_NEAR(squares / kDraws - sum / kDraws * sum / kDraws, 1.6449, 0.03) << "pi^2 / 6";
}

TEST(Gumbel, TheTableIsItsExponential) {
  double sum = 0, squares = 0;
  for (const float w : GumbelWeights()) {
    const double x = std::log(static_cast<double>(w));
    sum += x;
    squares += x * x;
  }
  const auto n = static_cast<double>(GumbelWeights().size());
  EXPECT_NEAR(sum / n, 0.5772, 0.001);
  EXPECT_NEAR(squares / n - sum / n * sum / n, 1.6449, 0.01);
}

}  // namespace
}  // namespace cairn::selections
