// Steps on a clock of their own: a worker that takes exactly as long as a formula says.

#include "services/worker/scheduling/batch_scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "services/worker/scheduling/preemption.h"
#include "services/worker/scheduling/usage_meter.h"

namespace cairn::worker {
namespace {

using Candidate = Scheduler::Candidate;

struct Speeds {
  double step = 0.002, decode = 0.001;
  double token = 0.001;  // Seconds for a token of a prompt.
};

// Requests that decode forever, and prompts that never end.
class Machine {
 public:
  Machine(double share, const Speeds& speeds, int64_t decodes, bool prompts)
      : speeds_(speeds), scheduler_({.max_running = 100, .decode_share = share}, accounts_) {
    const uint32_t tenant = accounts_.Enter("t");
    running_.resize(static_cast<size_t>(decodes) + (prompts ? 1 : 0));
    for (size_t i = 0; i < running_.size(); ++i) {
      running_[i].id = i;
      running_[i].decoding = i < static_cast<size_t>(decodes);
      running_[i].claim.tenant = tenant;
      if (!running_[i].decoding) running_[i].claim.prefill_tokens = 1 << 20;
    }
  }

  void Run(double until) {
    while (now_ < until) {
      const StepPlan plan = scheduler_.Next(running_, TimePoint());
      PassShape pass;
      for (const size_t index : plan.order) {
        if (running_[index].decoding) {
          ++pass.decodes;
        } else {
          pass.prefill_tokens = std::min<int64_t>(plan.prefill_tokens, 512);
        }
      }
      EXPECT_EQ(pass.prefill_tokens % 64, 0);
      double seconds = static_cast<double>(pass.prefill_tokens) * speeds_.token;
      if (pass.decodes > 0) {
        seconds += speeds_.step + speeds_.decode * static_cast<double>(pass.decodes);
        longest_ = std::max(longest_, seconds);
      }
      ASSERT_GT(seconds, 0);
      now_ += seconds;
      prefilled_ += pass.prefill_tokens;
      decoded_ += pass.decodes;
      scheduler_.Computed(pass, seconds);
    }
  }
  double prefill_rate() const { return static_cast<double>(prefilled_) / now_; }
  double decode_rate() const { return static_cast<double>(decoded_) / now_; }
  double longest() const { return longest_; }
  const BatchScheduler& scheduler() const { return scheduler_; }

 private:
  const Speeds speeds_;
  TenantAccounts accounts_;
  BatchScheduler scheduler_;
  std::vector<Candidate> running_;
  double now_ = 0, longest_ = 0;
  int64_t prefilled_ = 0, decoded_ = 0;
};

// A block costs many decode steps (a processor), about one, and less than one (an accelerator).
class SharesTest : public ::testing::TestWithParam<Speeds> {};

TEST_P(SharesTest, DecodesAndPromptsKeepTheirShareAndNoDecodeWaitsLong) {
  for (const double share : {0.2, 0.5, 0.8}) {
    for (const int64_t decodes : {1, 4, 16}) {
      SCOPED_TRACE(fmt::format("share {} decodes {}", share, decodes));
      const Speeds& speeds = GetParam();
      Machine decoding(share, speeds, decodes, false);
      Machine computing(share, speeds, 0, true);
      Machine both(share, speeds, decodes, true);
      for (Machine* one : {&decoding, &computing, &both}) one->Run(60);
      // 3 % for measuring decodes alone now and then, and for the largest chunk.
      const double step = speeds.step + speeds.decode * static_cast<double>(decodes);
      const double block = 64 * speeds.token;
      EXPECT_GE(both.decode_rate(), (share - 0.03) * decoding.decode_rate());
      if (step / share < 512 * speeds.token) {
        EXPECT_GE(both.prefill_rate(), (1 - share - 0.03) * computing.prefill_rate());
      }
      EXPECT_LE(both.longest(), 1.05 * (step / share + block));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Machines, SharesTest,
                         ::testing::Values(Speeds{}, Speeds{0.008, 0.00015, 0.000125},
                                           Speeds{0.02, 0.001, 0.0002}));

TEST(BatchSchedulerTest, APromptThatIsAloneIsComputedInWholeChunks) {
  TenantAccounts accounts;
  const uint32_t tenant = accounts.Enter("t");
  BatchScheduler scheduler({.max_running = 4}, accounts);
  std::vector<Candidate> running(1);
  running[0].claim.tenant = tenant;
  running[0].claim.prefill_tokens = 1000;
  EXPECT_GE(scheduler.Next(running, TimePoint()).prefill_tokens, 1 << 20);
}

TEST(BatchSchedulerTest, WhoEndsGoesFirstThenDecodesThenTheShortestPrompt) {
  TenantAccounts accounts;
  const uint32_t tenant = accounts.Enter("t");
  BatchScheduler scheduler({.max_running = 8}, accounts);
  scheduler.Computed({.prefill_tokens = 64}, 0.064);
  std::vector<Candidate> running(5);
  for (Candidate& one : running) one.claim.tenant = tenant;
  running[0].claim.prefill_tokens = 900;
  running[1].claim.prefill_tokens = 300;
  running[2].decoding = true;
  running[3].claim.prefill_tokens = 600;
  running[4].claim.prefill_tokens = 2000;
  running[4].ending = true;
  EXPECT_EQ(scheduler.Next(running, TimePoint()).order, (std::vector<size_t>{4, 2, 1, 3, 0}));
  running[0].claim.priority = 1;  // The tenant's own order.
  EXPECT_EQ(scheduler.Next(running, TimePoint()).order, (std::vector<size_t>{4, 2, 0, 1, 3}));
}

TEST(BatchSchedulerTest, MeasuresWhatItIsTold) {
  Machine machine(0.5, {0.008, 0.00015, 0.000125}, 8, true);
  machine.Run(20);
  const MeasuredRates rates = machine.scheduler().rates();
  EXPECT_NEAR(rates.prefill_tokens_per_second, 8000, 400);
  EXPECT_NEAR(rates.step_seconds + 8 * rates.decode_seconds, 0.0092, 0.0004);
  EXPECT_NEAR(rates.drain_tokens_per_second, 4000, 400);
}

TEST(ChooseVictimTest, TheCheapestOfTheLowestPriorityUnlessItIsNotLower) {
  TenantAccounts accounts({{"gold", {.weight = 1, .max_priority = 5}}});
  const PromptOrder order(accounts);
  const uint32_t gold = accounts.Enter("gold"), plain = accounts.Enter("plain");
  std::vector<Candidate> running(5);
  const int32_t priorities[] = {0, -1, -1, -1, -1};
  const int64_t positions[] = {10, 500, 200, 100, 50};
  for (size_t i = 0; i < running.size(); ++i) {
    running[i].claim.tenant = plain;
    running[i].claim.priority = priorities[i];
    running[i].position = positions[i];
  }
  running[3].ending = true;
  running[4].can_park = false;
  PromptClaim waiting;
  waiting.tenant = plain;
  EXPECT_EQ(ChooseVictim(running, waiting, order), 2u);
  waiting.priority = -1;
  EXPECT_EQ(ChooseVictim(running, waiting, order), std::nullopt);
  // Nobody gains from a priority that the operator has not given.
  running.resize(1);
  waiting.priority = 10;
  EXPECT_EQ(ChooseVictim(running, waiting, order), std::nullopt);
  waiting.tenant = gold;
  EXPECT_EQ(ChooseVictim(running, waiting, order), 0u);
}

TEST(ChooseGiverTest, TheLastOneOfTheLowestPriorityGivesItsPages) {
  TenantAccounts accounts({{"gold", {.weight = 1, .max_priority = 5}}});
  const PromptOrder order(accounts);
  std::vector<Scheduler::Candidate> running(4);
  for (size_t i = 0; i < running.size(); ++i) {
    running[i].id = i + 1;
    running[i].claim.tenant = accounts.Enter("gold");
  }
  EXPECT_EQ(ChooseGiver(running, order), std::nullopt);  // Nobody lacks a page.
  running[0].starved = true;
  EXPECT_EQ(ChooseGiver(running, order), 3u);
  running[3].can_park = false;
  running[2].claim.priority = 1;
  EXPECT_EQ(ChooseGiver(running, order), 1u);
  running[1].ending = true;
  EXPECT_EQ(ChooseGiver(running, order), 0u);  // It lacks one itself.
}

TEST(UsageMeterTest, PagesCostWhatTheEngineComputesMeanwhile) {
  const TimePoint start = FakeClock().Now();
  UsageMeter meter(start);
  EXPECT_EQ(meter.Read(start, 0, 50, 100, 1000), 0);
  EXPECT_EQ(meter.Read(start + std::chrono::seconds(2), 0, 50, 100, 1000), 1000);
  EXPECT_EQ(meter.Read(start + std::chrono::seconds(2), 10, 50, 100, 1000),
            10 * TenantAccounts::kGeneratedCost);
  // Without a measured speed, only tokens.
  EXPECT_EQ(meter.Read(start + std::chrono::seconds(9), 11, 50, 100, 0),
            TenantAccounts::kGeneratedCost);
}

TEST(StepRatesTest, LearnsWhatStepsAndTokensCost) {
  StepRates rates;
  for (int64_t round = 0; round < 100; ++round) {
    const int64_t decodes = 1 + round % 7;
    rates.Observe({.decodes = decodes}, 0.01 + 0.002 * static_cast<double>(decodes));
    const int64_t tokens = 64 * (1 + round % 3), position = 100 * (round % 20);
    const double seconds =
        static_cast<double>(tokens) * (0.001 + 1e-7 * static_cast<double>(position));
    rates.Observe({.decodes = 3, .prefill_tokens = tokens, .prefill_position = position},
                  0.016 + seconds);
  }
  EXPECT_NEAR(rates.DecodeSeconds(20), 0.05, 0.001);
  EXPECT_NEAR(rates.PrefillSeconds(0, 64), 64 * (0.001 + 32e-7), 1e-4);
  EXPECT_NEAR(rates.PrefillSeconds(4000, 64), 64 * (0.001 + 4032e-7), 1e-3);
}

TEST(StepRatesTest, EqualSamplesAreExplainedByOneTerm) {
  StepRates rates;
  EXPECT_EQ(rates.DecodeSeconds(1), 0);
  for (int i = 0; i < 10; ++i) rates.Observe({.decodes = 4}, 0.02);
  EXPECT_NEAR(rates.DecodeSeconds(4), 0.02, 1e-9);
}

}  // namespace
}  // namespace cairn::worker
