#include "services/router/policy/pairing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace cairn::router {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

PairingQuestion Question() {
  return {.compute_tokens = 4000,
          .prefill = {.prefill_tokens_per_second = 1000},
          .decode = {.prefill_tokens_per_second = 1000, .running_decodes = 8},
          .link_tokens_per_second = 100'000};
}

TEST(PairingTest, ALongPromptStaysAwayFromDecodes) {
  EXPECT_TRUE(Pairing().Decide(Question()).apart);
}

TEST(PairingTest, AnIdleWorkerComputesItsPromptItself) {
  PairingQuestion question = Question();
  question.decode.running_decodes = 0;
  EXPECT_FALSE(Pairing().Decide(question).apart);
}

TEST(PairingTest, AQueueAtThePrefillWorkerCanBeLongerThanTheGain) {
  PairingQuestion question = Question();
  question.prefill.prefill_seconds = 100;
  EXPECT_FALSE(Pairing().Decide(question).apart);
}

TEST(PairingTest, AQueueAtTheDecodeWorkerIsWaitedForMeanwhile) {
  PairingQuestion question = Question();
  question.decode.running_decodes = 0;
  question.decode.prefill_seconds = 3;
  EXPECT_TRUE(Pairing().Decide(question).apart);
}

TEST(PairingTest, ASlowLinkKeepsThePromptTogether) {
  PairingQuestion question = Question();
  question.link_tokens_per_second = 50;
  EXPECT_FALSE(Pairing().Decide(question).apart);
}

TEST(PairingTest, WhatHasNoFullBlockIsNotWorthTheWay) {
  for (const uint32_t tokens : {0u, 1u, 63u, 64u}) {
    PairingQuestion question = Question();
    question.compute_tokens = tokens;
    EXPECT_FALSE(Pairing().Decide(question).apart) << tokens;
  }
}

TEST(PairingTest, TheCostsAreSeconds) {
  PairingQuestion question = Question();
  question.compute_tokens = 64 * 10 + 1;
  question.prefill.prefill_seconds = 2;
  const PairingAnswer answer = Pairing().Decide(question);
  EXPECT_EQ(answer.handed_tokens, 640u);
  EXPECT_DOUBLE_EQ(answer.together_seconds, 0.641 * 9);
  EXPECT_DOUBLE_EQ(answer.apart_seconds, 2 + 0.64 + 128 / 100'000.0 + 0.001 * 9);
}

TEST(PairingTest, LiesGiveNumbersAllTheSame) {
  for (const double lie : {kNaN, kInfinity, -kInfinity, -1.0, 0.0, 1e300, 1e-300}) {
    PairingQuestion question = Question();
    question.prefill = {
        .prefill_seconds = lie, .prefill_tokens_per_second = lie, .running_decodes = lie};
    EXPECT_FALSE(std::isnan(Pairing().Decide(question).apart_seconds)) << lie;
    question = Question();
    question.decode = question.prefill;
    question.decode.prefill_tokens_per_second = lie;
    question.link_tokens_per_second = lie;
    question.compute_tokens = UINT32_MAX;
    EXPECT_FALSE(std::isnan(Pairing().Decide(question).together_seconds)) << lie;
  }
}

}  // namespace
}  // namespace cairn::router
