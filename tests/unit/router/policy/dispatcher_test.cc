#include "services/router/policy/dispatcher.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <utility>

namespace cairn::router {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class DispatcherTest : public testing::Test {
 protected:
  void Make(std::string_view policy, Dispatcher::Options options = {}) {
    dispatcher_ = std::make_unique<Dispatcher>(options, MakePolicy(policy).value(), &clock_, 1);
  }
  static WorkerLoad Load(double prefill_seconds) {
    WorkerLoad load;
    load.prefill_seconds = prefill_seconds;
    load.prefill_tokens_per_second = 1000;
    load.drain_tokens_per_second = 1000;
    load.decode_seconds = 0.001;
    return load;
  }
  static Ask Of(uint32_t tokens, std::vector<HeldTokens> held) {
    Ask ask;
    ask.prompt_tokens = tokens;
    for (const HeldTokens& one : held) {
      Offer offer;
      offer.worker = std::string(1, static_cast<char>('a' + ask.offers.size()));
      offer.held = one;
      ask.offers.push_back(offer);
    }
    return ask;
  }

  FakeClock clock_;
  std::unique_ptr<Dispatcher> dispatcher_;
};

TEST_F(DispatcherTest, APickCountsBeforeAnyReport) {
  Make("cost");
  dispatcher_->Report("a", Load(0));
  dispatcher_->Report("b", Load(0));
  std::map<size_t, int> picks;
  // A burst at one moment, between two reports.
  for (int i = 0; i < 20; ++i) ++picks[dispatcher_->Decide(Of(1000, {{}, {}})).picked];
  EXPECT_EQ(picks[0], 10);
  EXPECT_EQ(picks[1], 10);
}

TEST_F(DispatcherTest, AReportReplacesWhatWasSentLongBeforeIt) {
  Make("cost");
  dispatcher_->Report("a", Load(0));
  dispatcher_->Decide(Of(1000, {{}}));
  dispatcher_->Report("a", Load(0.5));  // It cannot know of the request yet.
  EXPECT_NEAR(dispatcher_->Decide(Of(1, {{}})).candidates[0].queue_seconds, 1.5, 1e-6);
  clock_.Advance(milliseconds(100));
  dispatcher_->Report("a", Load(0.5));
  EXPECT_NEAR(dispatcher_->Decide(Of(1, {{}})).candidates[0].queue_seconds, 0.5, 1e-6);
}

TEST_F(DispatcherTest, AReportOfThisRouterShowsWhatItSentBefore) {
  Make("cost");
  dispatcher_->Report("a", Load(0));
  dispatcher_->Decide(Of(1000, {{}}));
  clock_.Advance(milliseconds(2));
  WorkerLoad load = Load(1);
  load.of_this_router = true;
  dispatcher_->Report("a", load);
  EXPECT_NEAR(dispatcher_->Decide(Of(1, {{}})).candidates[0].queue_seconds, 1, 1e-6);
}

TEST_F(DispatcherTest, RequestsThatAreOverAreNoQueueOfAnEngine) {
  Make("cost");
  WorkerLoad load = Load(0);
  load.of_this_router = true;
  dispatcher_->Report("a", load);
  const uint64_t first = dispatcher_->Decide(Of(1000, {{}})).ticket;
  const uint64_t second = dispatcher_->Decide(Of(1000, {{}})).ticket;
  const auto queue = [this] { return dispatcher_->numbers().workers[0].queue_seconds; };
  dispatcher_->OnEnd(first, {});
  EXPECT_GT(queue(), 1);  // The other one may still wait.
  dispatcher_->OnEnd(second, {});
  EXPECT_EQ(queue(), 0);
}

TEST_F(DispatcherTest, ACandidateSaysWhatThePickIsMadeOf) {
  Make("cost", {.memory_tokens_per_second = 1000, .disk_tokens_per_second = 500});
  dispatcher_->Report("a", Load(2));
  const Decision decision = dispatcher_->Decide(Of(4000, {{.memory = 2000, .disk = 1000}}));
  ASSERT_EQ(decision.kind, Decision::Kind::kPicked);
  const Candidate& one = decision.candidates[0];
  EXPECT_EQ(one.worker, "a");
  EXPECT_EQ(one.held_tokens, 3000u);
  EXPECT_NEAR(one.queue_seconds, 2, 1e-6);
  EXPECT_NEAR(one.fetch_seconds, 4, 1e-6);
  EXPECT_NEAR(one.work_seconds, 1 + 0.3, 1e-6);  // And 300 tokens of an answer.
  EXPECT_GT(one.cost, 5.2);
  EXPECT_NEAR(decision.wait_seconds, 2, 1e-6);
}

TEST_F(DispatcherTest, LongPromptsCostMoreForEachToken) {
  Make("cost");
  WorkerLoad load = Load(0);
  load.pair_seconds = 1e-7;
  dispatcher_->Report("a", load);
  const double one = dispatcher_->Decide(Of(1000, {{}})).candidates[0].work_seconds;
  const double ten = dispatcher_->Decide(Of(10'000, {{}})).candidates[0].work_seconds;
  EXPECT_GT(ten - 0.3, 10 * (one - 0.3) * 1.3);
}

TEST_F(DispatcherTest, WhatAnotherNodeHasIsFetchedOnlyIfThatIsCheaper) {
  Make("cost", {.elsewhere_tokens_per_second = 10'000});
  dispatcher_->Report("a", Load(0));
  EXPECT_EQ(dispatcher_->Decide(Of(4000, {{.elsewhere = 3000}})).candidates[0].held_tokens, 3000u);
  Make("cost", {.elsewhere_tokens_per_second = 100});
  dispatcher_->Report("a", Load(0));
  EXPECT_EQ(dispatcher_->Decide(Of(4000, {{.elsewhere = 3000}})).candidates[0].held_tokens, 0u);
}

TEST_F(DispatcherTest, AnUnusableWorkerIsNeverPicked) {
  Make("cost");
  Ask ask = Of(100, {{.memory = 90}, {}});
  ask.offers[0].usable = false;
  ask.offers[0].reason = "drains";
  const Decision decision = dispatcher_->Decide(ask);
  EXPECT_EQ(decision.picked, 1u);
  EXPECT_EQ(decision.candidates[0].reason, "drains");
  ask.offers[1].usable = false;
  EXPECT_EQ(dispatcher_->Decide(ask).kind, Decision::Kind::kNoWorker);
  EXPECT_EQ(dispatcher_->Decide({}).kind, Decision::Kind::kNoWorker);
}

TEST_F(DispatcherTest, ShedsByTheShortestWaitAndSaysWhenToComeBack) {
  Make("cost", {.max_wait_seconds = 2});
  dispatcher_->Report("a", Load(7.5));
  dispatcher_->Report("b", Load(9));
  const Decision shed = dispatcher_->Decide(Of(100, {{}, {}}));
  EXPECT_EQ(shed.kind, Decision::Kind::kShed);
  EXPECT_EQ(shed.retry_after, seconds(6));
  EXPECT_EQ(dispatcher_->numbers().shed, 1u);
  dispatcher_->Report("b", Load(1.9));
  EXPECT_EQ(dispatcher_->Decide(Of(100, {{}, {}})).kind, Decision::Kind::kPicked);
}

TEST_F(DispatcherTest, CountsPicksByWhatTheWorkerHolds) {
  Make("cost");
  dispatcher_->Report("a", Load(0));
  dispatcher_->Report("b", Load(0));
  EXPECT_EQ(dispatcher_->Decide(Of(1000, {{.memory = 900}, {}})).picked, 0u);
  EXPECT_EQ(dispatcher_->numbers().picks.held_most, 1u);
  dispatcher_->Report("a", Load(100));
  EXPECT_EQ(dispatcher_->Decide(Of(1000, {{.memory = 900}, {}})).picked, 1u);
  EXPECT_EQ(dispatcher_->numbers().picks.held_less, 1u);
  dispatcher_->Decide(Of(1000, {{}, {}}));
  EXPECT_EQ(dispatcher_->numbers().picks.held_nowhere, 1u);
  EXPECT_EQ(dispatcher_->numbers().picks.held_most, 1u);
}

TEST_F(DispatcherTest, ARequestThatWasAcceptedIsNotShedWhenItIsTriedAgain) {
  Make("cost", {.max_wait_seconds = 2});
  dispatcher_->Report("a", Load(7.5));
  Ask ask = Of(100, {{}});
  ask.first_try = false;
  EXPECT_EQ(dispatcher_->Decide(ask).kind, Decision::Kind::kPicked);
}

TEST_F(DispatcherTest, AnUrgentRequestDoesNotWaitForTheOthers) {
  Make("cost", {.max_wait_seconds = 2});
  WorkerLoad load = Load(8);
  load.queued = {{.priority = 0, .requests = 7, .prefill_tokens = 7000}};
  dispatcher_->Report("a", load);
  Ask ask = Of(100, {{}});
  EXPECT_EQ(dispatcher_->Decide(ask).kind, Decision::Kind::kShed);
  ask.priority = 1;
  const Decision urgent = dispatcher_->Decide(ask);
  EXPECT_EQ(urgent.kind, Decision::Kind::kPicked);
  EXPECT_NEAR(urgent.wait_seconds, 1, 1e-6);
}

// One tenant has filled the worker for a minute; another one's small request goes by its share.
TEST_F(DispatcherTest, OneTenantsLoadIsNotEverybodysWait) {
  Make("cost", {.max_wait_seconds = 2});
  dispatcher_->Report("a", Load(0));
  const auto ask = [](const char* tenant, uint32_t tokens) {
    Ask one = Of(tokens, {{}});
    one.tenant = tenant;
    return one;
  };
  const Decision large = dispatcher_->Decide(ask("greedy", 60'000));
  ASSERT_EQ(large.kind, Decision::Kind::kPicked);
  EXPECT_EQ(dispatcher_->Decide(ask("greedy", 100)).kind, Decision::Kind::kShed);
  const Decision small = dispatcher_->Decide(ask("other", 100));
  EXPECT_EQ(small.kind, Decision::Kind::kPicked);
  EXPECT_NEAR(small.wait_seconds, 0.1, 1e-6);
  // The worker's report does not say whose the load is, and is a bit more or less than was sent.
  clock_.Advance(seconds(1));
  dispatcher_->Report("a", Load(70));
  EXPECT_EQ(dispatcher_->Decide(ask("other", 100)).kind, Decision::Kind::kPicked);
  EXPECT_EQ(dispatcher_->Decide(ask("greedy", 100)).kind, Decision::Kind::kShed);
  // The other one's own load counts for it, and the greedy one's share in addition to that.
  EXPECT_EQ(dispatcher_->Decide(ask("other", 1'400)).kind, Decision::Kind::kPicked);
  EXPECT_EQ(dispatcher_->Decide(ask("other", 100)).kind, Decision::Kind::kShed);
  // A computed prompt is nobody's wait.
  dispatcher_->OnComputed(large.ticket);
  dispatcher_->OnComputed(large.ticket);
  dispatcher_->Report("a", Load(2.5));
  EXPECT_EQ(dispatcher_->Decide(ask("greedy", 100)).kind, Decision::Kind::kPicked);
}

TEST_F(DispatcherTest, LoadThatNobodyHereSentIsEverybodysWait) {
  Make("cost", {.max_wait_seconds = 2});
  dispatcher_->Report("a", Load(70));
  Ask ask = Of(100, {{}});
  ask.tenant = "other";
  EXPECT_EQ(dispatcher_->Decide(ask).kind, Decision::Kind::kShed);
}

TEST_F(DispatcherTest, AHeavierTenantWaitsForLessOfTheOthers) {
  Make("cost", {.max_wait_seconds = 2, .tenants = {{"heavy", {.weight = 4}}}});
  dispatcher_->Report("a", Load(0));
  Ask ask = Of(60'000, {{}});
  ask.tenant = "greedy";
  ASSERT_EQ(dispatcher_->Decide(ask).kind, Decision::Kind::kPicked);
  ask.prompt_tokens = 4'000;
  ask.tenant = "usual";
  EXPECT_EQ(dispatcher_->Decide(ask).kind, Decision::Kind::kShed);
  ask.tenant = "heavy";
  EXPECT_EQ(dispatcher_->Decide(ask).kind, Decision::Kind::kPicked);
}

// Anybody may write a priority into a header.
TEST_F(DispatcherTest, APriorityCountsAsFarAsTheTenantsTermsSay) {
  Make("cost", {.max_wait_seconds = 2, .tenants = {{"gold", {.weight = 1, .max_priority = 5}}}});
  WorkerLoad load = Load(8);
  load.queued = {{.priority = 0, .requests = 7, .prefill_tokens = 7000}};
  dispatcher_->Report("a", load);
  Ask ask = Of(100, {{}});
  ask.priority = 10;
  ask.tenant = "usual";
  EXPECT_EQ(dispatcher_->Decide(ask).kind, Decision::Kind::kShed);
  ask.tenant = "gold";
  EXPECT_EQ(dispatcher_->Decide(ask).kind, Decision::Kind::kPicked);
}

TEST_F(DispatcherTest, AmongItsOwnATenantsPrioritiesCount) {
  Make("cost", {.max_wait_seconds = 2});
  dispatcher_->Report("a", Load(0));
  Ask ask = Of(60'000, {{}});
  ask.tenant = "one";
  ASSERT_EQ(dispatcher_->Decide(ask).kind, Decision::Kind::kPicked);
  ask.prompt_tokens = 100;
  EXPECT_EQ(dispatcher_->Decide(ask).kind, Decision::Kind::kShed);
  ask.priority = 3;
  EXPECT_EQ(dispatcher_->Decide(ask).kind, Decision::Kind::kPicked);
}

TEST_F(DispatcherTest, ReportsThatLieNeverMakeACostThatIsNoNumber) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::vector<double> lies = {kNan, kInfinity, -kInfinity, -1, 1e308, 1e-308, 0};
  for (const std::string& policy : PolicyNames()) {
    for (const double lie : lies) {
      Make(policy);
      WorkerLoad load;
      load.prefill_seconds = lie;
      load.prefill_tokens_per_second = lie;
      load.drain_tokens_per_second = lie;
      load.pair_seconds = lie;
      load.step_seconds = lie;
      load.decode_seconds = lie;
      load.running_prompts = load.running_decodes = load.parked = UINT32_MAX;
      load.queued = {{INT32_MIN, UINT32_MAX, UINT64_MAX}};
      dispatcher_->Report("a", load);
      dispatcher_->Report("b", Load(1));
      Ask ask = Of(UINT32_MAX, {{UINT32_MAX, UINT32_MAX, UINT32_MAX}, {}});
      ask.priority = INT32_MAX;
      const Decision decision = dispatcher_->Decide(ask);
      ASSERT_EQ(decision.kind, Decision::Kind::kPicked);
      for (const Candidate& one : decision.candidates) {
        for (const double number : {one.queue_seconds, one.fetch_seconds, one.work_seconds,
                                    one.delayed_requests, one.cost, decision.wait_seconds}) {
          EXPECT_TRUE(std::isfinite(number) && number >= 0) << policy << " " << lie;
        }
      }
    }
  }
}

// It reported an endless queue, then nothing more.
TEST_F(DispatcherTest, AWorkerWhoseReportsEndIsNotStuck) {
  Make("cost");
  dispatcher_->Report("a", Load(1e9));
  dispatcher_->Report("b", Load(0));
  EXPECT_EQ(dispatcher_->Decide(Of(100, {{}, {}})).picked, 1u);
  clock_.Advance(seconds(4));
  dispatcher_->Report("b", Load(5));
  EXPECT_EQ(dispatcher_->Decide(Of(100, {{}, {}})).picked, 0u);
}

TEST_F(DispatcherTest, WithoutReportsItsOwnPicksSpreadRequests) {
  for (const char* policy : {"cost", "least_load"}) {
    Make(policy);
    std::map<size_t, int> picks;
    for (int i = 0; i < 30; ++i) ++picks[dispatcher_->Decide(Of(500, {{}, {}, {}})).picked];
    EXPECT_EQ(picks[0], 10) << policy;
    EXPECT_EQ(picks[1], 10) << policy;
  }
}

TEST_F(DispatcherTest, EndsCountOnce) {
  Make("least_load");
  const uint64_t ticket = dispatcher_->Decide(Of(10, {{}})).ticket;
  EXPECT_EQ(dispatcher_->numbers().workers[0].followed, 1u);
  dispatcher_->OnEnd(ticket, {});
  dispatcher_->OnEnd(ticket, {});
  dispatcher_->OnEnd(12345, {});
  EXPECT_EQ(dispatcher_->numbers().workers[0].followed, 0u);
}

TEST_F(DispatcherTest, AnEndDoesNotCountForAWorkerThatCameBackMeanwhile) {
  Make("least_load");
  const uint64_t ticket = dispatcher_->Decide(Of(10, {{}})).ticket;
  dispatcher_->Remove("a");
  dispatcher_->Decide(Of(10, {{}}));
  dispatcher_->OnEnd(ticket, {});
  EXPECT_EQ(dispatcher_->numbers().workers[0].followed, 1u);
}

TEST_F(DispatcherTest, ADecisionAloneHasNoTicketAndStillCounts) {
  Make("cost");
  dispatcher_->Report("a", Load(0));
  dispatcher_->Report("b", Load(0));
  Ask ask = Of(1000, {{}, {}});
  ask.followed = false;
  const Decision first = dispatcher_->Decide(ask);
  EXPECT_EQ(first.ticket, 0u);
  EXPECT_NE(dispatcher_->Decide(ask).picked, first.picked);
}

// "a" answers eight requests and has the prompt's first 1,000 tokens; "b" may compute the rest.
class DispatcherPairTest : public DispatcherTest {
 protected:
  void SetUp() override {
    Make("cost");
    WorkerLoad load = Load(0);
    load.running_decodes = 8;
    dispatcher_->Report("a", load);
    dispatcher_->Report("b", Load(0));
  }
  static Ask Pair(uint32_t tokens) {
    Ask ask = Of(tokens, {{.memory = 1000}, {}});
    for (Offer& offer : ask.offers) {
      offer.site = 1;
      offer.block_tokens = 100;
    }
    ask.offers[1].usable = false;
    ask.offers[1].prefills = true;
    return ask;
  }
  double QueueOf(size_t worker) { return dispatcher_->numbers().workers[worker].queue_seconds; }
};

TEST_F(DispatcherPairTest, TheRestOfThePromptIsSharedInWholeBlocks) {
  const Decision decision = dispatcher_->Decide(Pair(3050));
  ASSERT_EQ(decision.kind, Decision::Kind::kPicked);
  EXPECT_EQ(decision.picked, 0u);
  ASSERT_TRUE(decision.prefill);
  EXPECT_EQ(decision.prefill->worker, 1u);
  EXPECT_EQ(decision.prefill->cached_tokens, 1000u);
  EXPECT_NEAR(decision.prefill->seconds, 2, 1e-9);
  EXPECT_NE(decision.prefill->ticket, decision.ticket);
  EXPECT_NEAR(QueueOf(0), 0.05, 1e-9);
  EXPECT_NEAR(QueueOf(1), 2, 1e-9);
  dispatcher_->OnEnd(decision.ticket, {});
  EXPECT_EQ(dispatcher_->numbers().workers[0].followed, 0u);
  EXPECT_EQ(dispatcher_->numbers().workers[1].followed, 1u);
  dispatcher_->OnEnd(decision.prefill->ticket, {});
  EXPECT_EQ(dispatcher_->numbers().workers[1].followed, 0u);
}

TEST_F(DispatcherPairTest, APromptThatIsThereNeedsNobody) {
  EXPECT_FALSE(dispatcher_->Decide(Pair(1000)).prefill);
  EXPECT_FALSE(dispatcher_->Decide(Pair(1050)).prefill) << "there is no full block to hand over";
}

TEST_F(DispatcherPairTest, AWorkerWithoutASiteIsHelpedByNobody) {
  Ask ask = Pair(3000);
  ask.offers[0].site = 0;
  ask.offers[1].site = 0;
  EXPECT_FALSE(dispatcher_->Decide(ask).prefill);
  ask.offers[0].site = 1;
  ask.offers[1].site = 2;
  EXPECT_FALSE(dispatcher_->Decide(ask).prefill);
}

TEST_F(DispatcherPairTest, AQueueForPromptsEndsPairs) {
  int pairs = 0;
  while (pairs < 100 && dispatcher_->Decide(Pair(3000)).prefill) ++pairs;
  EXPECT_GT(pairs, 3);
  EXPECT_LT(pairs, 100);
}

TEST_F(DispatcherPairTest, WhatTheOtherWorkerBroughtIsAFetchFromMemory) {
  Ask ask = Pair(3050);
  ask.offers[0].held = {.disk = 1000};
  const Decision decision = dispatcher_->Decide(ask);
  ASSERT_TRUE(decision.prefill);
  // A second for 3,000 tokens is no speed of the disk.
  dispatcher_->OnEnd(
      decision.ticket,
      {.generated_tokens = 1, .complete = true, .fetched_tokens = 3000, .fetch_seconds = 1});
  clock_.Advance(seconds(10));
  Ask disk = Of(2000, {{.disk = 1000}, {}});
  disk.offers[1].usable = false;
  EXPECT_NEAR(dispatcher_->Decide(disk).candidates[0].fetch_seconds, 1000 / 80'000.0, 1e-9);
}

TEST_F(DispatcherTest, LearnsTheLengthOfAnswersAndTheSpeedOfFetches) {
  Make("cost", {.memory_tokens_per_second = 1000});
  for (int i = 0; i < 1000; ++i) {
    const uint64_t ticket = dispatcher_->Decide(Of(2000, {{.memory = 1000}})).ticket;
    clock_.Advance(seconds(3));
    dispatcher_->OnEnd(
        ticket,
        {.generated_tokens = 20, .complete = true, .fetched_tokens = 1000, .fetch_seconds = 0.1});
  }
  EXPECT_NEAR(dispatcher_->numbers().answer_tokens, 20, 1);
  EXPECT_NEAR(dispatcher_->Decide(Of(2000, {{.memory = 1000}})).candidates[0].fetch_seconds, 0.1,
              0.01);
}

TEST_F(DispatcherTest, MeasuresArrivalsAndUseOverAMinute) {
  Make("cost");
  for (int i = 0; i < 1200; ++i) {
    dispatcher_->Report("a", Load(i % 4 == 0 ? 0 : 1));
    if (i % 2 == 0) dispatcher_->Decide(Of(10, {{}}));
    clock_.Advance(milliseconds(100));
  }
  EXPECT_NEAR(dispatcher_->numbers().arrivals_per_second, 5, 0.2);
  EXPECT_NEAR(dispatcher_->numbers().use, 0.75, 0.03);
  clock_.Advance(seconds(120));
  EXPECT_EQ(dispatcher_->numbers().arrivals_per_second, 0);
  EXPECT_EQ(dispatcher_->numbers().use, 0);
}

}  // namespace
}  // namespace cairn::router
