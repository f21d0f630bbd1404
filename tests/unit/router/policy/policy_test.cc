#include "services/router/policy/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace cairn::router {
namespace {

using testing::HasSubstr;

std::unique_ptr<Policy> Make(std::string_view name) { return MakePolicy(name).value(); }

WorkerView View(double queue, double prefill, uint32_t held = 0) {
  WorkerView view;
  view.queue_seconds = queue;
  view.prefill_seconds = prefill;
  view.held_tokens = held;
  return view;
}

TEST(PolicyTest, AnUnknownNameIsAnErrorThatNamesTheOthers) {
  const auto policy = MakePolicy("random");
  ASSERT_FALSE(policy.ok());
  EXPECT_THAT(ToString(policy.status()), HasSubstr("got 'random', expected cost, affinity"));
}

TEST(PolicyTest, EachNameMakesThePolicyOfThatName) {
  for (const std::string& name : PolicyNames()) EXPECT_EQ(Make(name)->name(), name);
  EXPECT_EQ(PolicyNames().front(), "cost");
}

TEST(PolicyTest, RoundRobinGivesEachWorkerTheSame) {
  const std::vector<WorkerView> workers = {View(9, 9), View(0, 0), View(3, 3)};
  Random random(1);
  const auto policy = Make("round_robin");
  std::map<size_t, int> picks;
  for (int i = 0; i < 30; ++i) ++picks[policy->Pick({.workers = workers}, random)];
  for (const auto& [worker, count] : picks) EXPECT_EQ(count, 10) << worker;
  EXPECT_EQ(picks.size(), 3u);
}

TEST(PolicyTest, TiesGoToEachWorkerSometimes) {
  const std::vector<WorkerView> workers(4, View(1, 1));
  for (const char* name : {"least_load", "affinity", "cost"}) {
    Random random(7);
    std::map<size_t, int> picks;
    const auto policy = Make(name);
    for (int i = 0; i < 400; ++i) ++picks[policy->Pick({.workers = workers}, random)];
    ASSERT_EQ(picks.size(), 4u) << name;
    for (const auto& [worker, count] : picks) EXPECT_GT(count, 60) << name;
  }
}

TEST(PolicyTest, LeastLoadTakesTheFewestRequests) {
  std::vector<WorkerView> workers(3);
  workers[0].requests = 3;
  workers[1].requests = 1;
  workers[2].requests = 2;
  Random random(1);
  EXPECT_EQ(Make("least_load")->Pick({.workers = workers}, random), 1u);
}

TEST(PolicyTest, AffinityTakesTheLongestMatchHoweverLongItsQueueIs) {
  const std::vector<WorkerView> workers = {View(0, 9, 10), View(100, 1, 90), View(50, 1, 90)};
  Random random(1);
  EXPECT_EQ(Make("affinity")->Pick({.workers = workers}, random), 2u);
}

TEST(PolicyTest, TheCostIsTheSumInSeconds) {
  WorkerView worker = View(2, 1);
  worker.fetch_seconds = 3;
  worker.decode_seconds = 0.5;
  worker.copied_seconds = 5;
  const std::vector<WorkerView> workers(2, worker);
  // 2 of 4 arrivals in a second come here, in the 3.5 s that it is here; 7 wait as long again for
  // each other at half use.
  const Situation situation = {
      .workers = workers, .prompt_tokens = 1, .arrivals_per_second = 4, .use = 0.5};
  const Cost cost = CostOf(worker, situation);
  EXPECT_DOUBLE_EQ(cost.delayed_requests, 14);
  EXPECT_DOUBLE_EQ(cost.seconds, 3 + (1.5 + 2.5) * 15);
}

// Nobody overtakes there.
TEST(PolicyTest, TheWholeQueueCountsAtAWorkerThatComputesFirstInFirstOut) {
  WorkerView worker = View(2, 1);
  const std::vector<WorkerView> workers(1, worker);
  const Situation situation = {.workers = workers, .prompt_tokens = 1};
  const double ordered = CostOf(worker, situation).seconds;
  worker.first_in_first_out = true;
  EXPECT_DOUBLE_EQ(CostOf(worker, situation).seconds, ordered + (1 - .3) * 2);
}

TEST(PolicyTest, TheCostStaysFiniteAtFullUse) {
  const std::vector<WorkerView> workers(1, View(3600, 3600));
  const Situation situation = {
      .workers = workers, .prompt_tokens = 1, .arrivals_per_second = 1e6, .use = 1};
  EXPECT_DOUBLE_EQ(CostOf(workers[0], situation).delayed_requests, 50);
}

// The trap of the least time to first token: an idle worker computes everything again, although the
// one that has it is nearly free.
TEST(PolicyTest, UnderLoadTheCostStaysWithThePrefix) {
  const std::vector<WorkerView> workers = {View(4, 0.1, 8000), View(0, 1, 0)};
  Random random(1);
  const auto policy = Make("cost");
  EXPECT_EQ(policy->Pick({.workers = workers, .arrivals_per_second = 0, .use = 0}, random), 1u);
  EXPECT_EQ(policy->Pick({.workers = workers, .arrivals_per_second = 8, .use = 0.8}, random), 0u);
}

}  // namespace
}  // namespace cairn::router
