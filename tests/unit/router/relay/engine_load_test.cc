#include "services/router/relay/engine_load.h"

#include <gtest/gtest.h>

namespace cairn::router {
namespace {

using std::chrono::milliseconds;

TEST(LinearFitTest, FindsALine) {
  LinearFit fit(32);
  for (int i = 1; i <= 50; ++i) {
    const double x = 100.0 * (i % 7 + 1);
    fit.Add(x, 0.02 + x / 5000);
  }
  EXPECT_NEAR(fit.slope(), 1.0 / 5000, 1e-9);
  EXPECT_NEAR(fit.intercept(), 0.02, 1e-6);
}

TEST(LinearFitTest, OneThatIsFarOffChangesLittleManyAreBelieved) {
  LinearFit fit(32);
  for (int i = 0; i < 40; ++i) fit.Add(100 + 10 * (i % 5), 1 + 0.1 * (i % 5));
  const double before = fit.At(100);
  fit.Add(100, 1000);
  EXPECT_LT(fit.At(100), 1.5 * before);
  for (int i = 0; i < 200; ++i) fit.Add(100 + 10 * (i % 5), 100 + 10 * (i % 5));
  EXPECT_NEAR(fit.At(100), 100, 1);
}

TEST(LinearFitTest, EqualMeasurementsHaveARatioAndNoSlope) {
  LinearFit fit(32);
  for (int i = 0; i < 10; ++i) fit.Add(200, 0.1);
  EXPECT_EQ(fit.slope(), 0);
  EXPECT_NEAR(fit.intercept(), 0.1, 1e-9);
  EXPECT_NEAR(fit.ratio(), 0.0005, 1e-9);
}

class EngineLoadTest : public ::testing::Test {
 protected:
  uint64_t Stream(uint32_t tokens, uint32_t held = 0) {
    return load_.Begin({.tokens = tokens, .held_tokens = held, .stream = true});
  }
  // Prompts of several lengths, one after the other, each at 10,000 tokens a second.
  void Learn() {
    for (int i = 1; i <= 8; ++i) {
      const uint64_t id = Stream(static_cast<uint32_t>(1000 * i));
      clock_.Advance(milliseconds(100 * i));
      load_.Tokens(id, 1);
      load_.End(id);
      clock_.Advance(milliseconds(500));
    }
  }
  FakeClock clock_;
  EngineLoad load_{&clock_};
};

TEST_F(EngineLoadTest, IdleSaysNothing) {
  const WorkerLoad load = load_.Report();
  EXPECT_EQ(load.prefill_seconds, 0);
  EXPECT_EQ(load.running_decodes, 0u);
  EXPECT_EQ(load.prefill_tokens_per_second, 0);
  EXPECT_TRUE(load.queued.empty());
}

TEST_F(EngineLoadTest, MeasuresTheSpeedOfPromptsThatWaitedForNoOther) {
  Learn();
  EXPECT_NEAR(load_.Report().prefill_tokens_per_second, 10'000, 200);
}

TEST_F(EngineLoadTest, WhatIsHeldIsNoWork) {
  Learn();
  Stream(8000, 6000);
  const WorkerLoad load = load_.Report();
  EXPECT_NEAR(load.prefill_seconds, 0.2, 0.02);
  ASSERT_EQ(load.queued.size(), 1u);
  EXPECT_EQ(load.queued[0].prefill_tokens, 2000u);
}

TEST_F(EngineLoadTest, PromptsThatWaitGetFewerAsTimePasses) {
  Learn();
  const uint64_t first = Stream(4000);
  Stream(4000);
  EXPECT_NEAR(load_.Report().prefill_seconds, 0.8, 0.05);
  clock_.Advance(milliseconds(200));
  EXPECT_NEAR(load_.Report().prefill_seconds, 0.6, 0.05);
  // The first one is late: some of it counts until its token comes.
  clock_.Advance(milliseconds(2000));
  EXPECT_NEAR(load_.Report().prefill_seconds, 0.44, 0.05);
  load_.Tokens(first, 1);
  const WorkerLoad load = load_.Report();
  EXPECT_EQ(load.running_decodes, 1u);
  ASSERT_EQ(load.queued.size(), 1u);
  EXPECT_EQ(load.queued[0].requests, 1u);
}

TEST_F(EngineLoadTest, MeasuresWhatOneMoreDecodeCosts) {
  std::vector<uint64_t> open;
  for (int decodes = 1; decodes <= 16; ++decodes) {
    open.push_back(Stream(10));
    load_.Tokens(open.back(), 1);
    for (int step = 0; step < 20; ++step) {
      clock_.Advance(std::chrono::microseconds(8000 + 200 * decodes));
      for (const uint64_t id : open) load_.Tokens(id, 1);
    }
  }
  const WorkerLoad load = load_.Report();
  EXPECT_EQ(load.running_decodes, 16u);
  EXPECT_NEAR(load.step_seconds, 0.008, 0.001);
  EXPECT_NEAR(load.decode_seconds, 0.0002, 0.00005);
}

// While prompts are computed steps take longer, and that is no fault of those that decode.
TEST_F(EngineLoadTest, StepsThatComputePromptsSayNothingAboutDecodes) {
  std::vector<uint64_t> open;
  for (int decodes = 1; decodes <= 16; ++decodes) {
    open.push_back(Stream(10));
    load_.Tokens(open.back(), 1);
    for (int step = 0; step < 20; ++step) {
      clock_.Advance(std::chrono::microseconds(8000 + 200 * decodes));
      for (const uint64_t id : open) load_.Tokens(id, 1);
    }
    const uint64_t prompt = Stream(1000);
    clock_.Advance(milliseconds(50 * decodes));
    for (const uint64_t id : open) load_.Tokens(id, 1);
    clock_.Advance(milliseconds(50 * decodes));
    load_.Tokens(prompt, 1);
    for (const uint64_t id : open) load_.Tokens(id, 1);
    load_.End(prompt);
  }
  EXPECT_NEAR(load_.Report().decode_seconds, 0.0002, 0.00005);
}

TEST_F(EngineLoadTest, AnEventMayHaveSeveralTokens) {
  EXPECT_EQ(load_.TokensOf(10), 10u);
  const uint64_t id = Stream(10);
  load_.Tokens(id, 1);
  for (int event = 0; event < 100; ++event) {
    clock_.Advance(milliseconds(80));
    load_.Tokens(id, 1);
  }
  EXPECT_NEAR(load_.Report().step_seconds, 0.08, 0.001);
  load_.Length(101, 1010);
  EXPECT_NEAR(load_.Report().step_seconds, 0.008, 0.0001);
  EXPECT_EQ(load_.TokensOf(10), 100u);
}

TEST_F(EngineLoadTest, WholeAnswersCountAsDecodesWhenTheirPromptShouldBeDone) {
  Learn();
  const uint64_t id = load_.Begin({.tokens = 5000, .held_tokens = 0, .stream = false});
  EXPECT_NEAR(load_.Report().prefill_seconds, 0.5, 0.05);
  clock_.Advance(milliseconds(700));
  EXPECT_EQ(load_.Report().prefill_seconds, 0);
  EXPECT_EQ(load_.Report().running_decodes, 1u);
  load_.End(id);
  EXPECT_EQ(load_.Report().running_decodes, 0u);
}

TEST_F(EngineLoadTest, RequestsThatFailSayNothingAboutSpeed) {
  for (int i = 0; i < 10; ++i) {
    const uint64_t id = Stream(1000);
    clock_.Advance(milliseconds(1));
    load_.End(id);
    load_.End(id);  // The second time nothing happens.
  }
  const WorkerLoad load = load_.Report();
  EXPECT_EQ(load.prefill_tokens_per_second, 0);
  EXPECT_TRUE(load.queued.empty());
}

}  // namespace
}  // namespace cairn::router
