#include "tools/cairn/demo/estimate.h"

#include <gtest/gtest.h>

namespace cairn::cli {
namespace {

constexpr DemoSpeed kSpeed{
    .start_s = 1, .prompt_token_s = 0.002, .answer_token_s = 0.02, .measured_tokens = 300};
constexpr DemoSize kSize{.questions = 8,
                         .turns = 4,
                         .shared_tokens = 4300,
                         .chat_tokens = 2000,
                         .long_tokens = 1300,
                         .beyond_tokens = 6000};

double Total(const DemoSpeed& speed, const DemoSize& size = kSize) {
  return DemoEstimate(speed, size).total_s();
}

TEST(DemoEstimateTest, AMachineOfHalfTheSpeedTakesTwiceAsLongForTokens) {
  DemoSpeed fast = kSpeed, slow = kSpeed;
  fast.start_s = slow.start_s = 0;
  slow.prompt_token_s *= 2;
  slow.answer_token_s *= 2;
  // Kills and fetches take seconds that have nothing to do with it.
  EXPECT_LT(Total(slow), 2 * Total(fast));
  EXPECT_GT(Total(slow), 1.8 * Total(fast));
}

TEST(DemoEstimateTest, TokensBehindManyOthersCostMore) {
  DemoSize twice = kSize;
  twice.shared_tokens *= 2;
  const DemoSpeed prompts{
      .start_s = 0, .prompt_token_s = 0.002, .answer_token_s = 0, .measured_tokens = 300};
  EXPECT_GT(Total(prompts, twice), 1.8 * Total(prompts));
}

TEST(DemoEstimateTest, FewerQuestionsAndNoNodeOfItsOwnTakeLess) {
  DemoSize few = kSize, external = kSize;
  few.questions = 2;
  external.own_node = false;
  EXPECT_LT(Total(kSpeed, few), 0.75 * Total(kSpeed));
  EXPECT_LT(Total(kSpeed, external), 0.95 * Total(kSpeed));
  EXPECT_GT(Total(kSpeed, external), 0.5 * Total(kSpeed));
}

TEST(DemoEstimateTest, ASlowMachineAsksAsManyQuestionsAsFit) {
  const double all = Total(kSpeed);
  EXPECT_EQ(QuestionsWithin(all, kSpeed, kSize, 3), 8u);
  const uint32_t some = QuestionsWithin(0.8 * all, kSpeed, kSize, 3);
  EXPECT_GT(some, 3u);
  DemoSize fewer = kSize;
  fewer.questions = some;
  EXPECT_LE(Total(kSpeed, fewer), 0.8 * all);
  ++fewer.questions;
  EXPECT_GT(Total(kSpeed, fewer), 0.8 * all);
  EXPECT_EQ(QuestionsWithin(0, kSpeed, kSize, 3), 3u);
}

TEST(DemoEstimateTest, WhatIsLeftFollowsTheMachine) {
  const DemoEstimate estimate(kSpeed, kSize);
  EXPECT_DOUBLE_EQ(estimate.LeftFrom("cold", 0), estimate.total_s());
  const double left = estimate.LeftFrom("disk", estimate.total_s());
  // Twice as long so far: twice as long from here on.
  EXPECT_DOUBLE_EQ(estimate.LeftFrom("disk", 2 * estimate.total_s()), 2 * left);
  EXPECT_LT(left, estimate.total_s());
  EXPECT_EQ(DemoEstimate().LeftFrom("disk", 5), 0) << "nothing was measured";
}

TEST(DemoEstimateTest, AsLongAsLittleIsDoneTheMeasurementCounts) {
  DemoSpeed prompts = kSpeed;
  prompts.start_s = 0;
  DemoSize few = kSize;
  few.questions = 1;
  few.shared_tokens = 10;
  const DemoEstimate estimate(prompts, few);
  EXPECT_LT(estimate.LeftFrom("cold chat", 1e6), estimate.total_s());
}

TEST(DemoEstimateTest, IsSaidAsCoarseAsItIs) {
  EXPECT_EQ(About(0), "about 10 s");
  EXPECT_EQ(About(44), "about 40 s");
  EXPECT_EQ(About(94), "about 90 s");
  EXPECT_EQ(About(236), "about 4 min");
  EXPECT_EQ(About(3570), "about 1 h 0 min");
  EXPECT_EQ(About(4800), "about 1 h 20 min");
}

}  // namespace
}  // namespace cairn::cli
