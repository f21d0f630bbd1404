#include "services/worker/session/fetch_pilot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "tests/unit/worker/session/fetch_simulation.h"

namespace cairn::worker {
namespace {

constexpr double kMegabyte = 1e6;

// Two requests that teach the worker its speed and the wire's.
void Learn(FetchSimulation& worker) {
  worker.Run(16, 200, Policy::kComputeAll);
  worker.Run(60, 300, Policy::kComputeAll);
  for (int i = 0; i < 4; ++i) worker.Run(16, 100, Policy::kChoose);
}

std::string Describe(const SimulatedMachine& m, uint32_t blocks, int64_t rest) {
  return std::to_string(m.bytes_per_second / kMegabyte) + " MB/s, queue " +
         std::to_string(m.queue_seconds) + " s, " + std::to_string(blocks) + " blocks and " +
         std::to_string(rest) + " tokens";
}

TEST(FetchSimulationTest, ChooserIsNeverMuchSlowerThanTheBetterOfTheTwo) {
  double worst = 0;
  std::string where;
  double best = 1;
  for (const double rate : {2.0, 5.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 150.0, 200.0, 400.0,
                            800.0, 1600.0, 6400.0}) {
    for (const double queue : {0.0, 0.02, 0.2, 1.0}) {
      for (const uint32_t blocks : {1u, 2u, 4u, 9u, 16u, 31u, 64u, 125u}) {
        for (const int64_t rest : {1, 60, 250, 1024, 3000}) {
          SimulatedMachine machine;
          machine.bytes_per_second = rate * kMegabyte;
          FetchSimulation worker(machine);
          Learn(worker);
          worker.machine().queue_seconds = queue;
          const double fetch = worker.Run(blocks, rest, Policy::kFetchAll);
          const double compute = worker.Run(blocks, rest, Policy::kComputeAll);
          const double chosen = worker.Run(blocks, rest, Policy::kChoose);
          const double ratio = chosen / std::min(fetch, compute);
          EXPECT_LE(ratio, 1.05) << Describe(worker.machine(), blocks, rest) << ": " << chosen
                                 << " s, fetch " << fetch << " s, compute " << compute
                                 << " s, computed " << worker.computed_blocks();
          if (ratio > worst) {
            worst = ratio;
            where = Describe(worker.machine(), blocks, rest);
          }
          best = std::min(best, ratio);
        }
      }
    }
  }
  std::printf("time against the better of fetch and compute: %.3f to %.3f (at %s)\n", best, worst,
              where.c_str());
}

// Fetching the prefix takes as long as computing it: half of each is enough.
TEST(FetchSimulationTest, FetchAsDearAsComputingThePrefixIsHalved) {
  SimulatedMachine machine;
  FetchSimulation worker(machine);
  const double compute = worker.Run(31, 40, Policy::kComputeAll);
  worker.machine().bytes_per_second = 31.0 * 30 * 49152 / compute;
  Learn(worker);
  const double fetch = worker.Run(31, 40, Policy::kFetchAll);
  const double chosen = worker.Run(31, 40, Policy::kChoose);
  EXPECT_LE(chosen, 0.65 * std::min(fetch, compute));
  EXPECT_GT(worker.computed_blocks(), 8u);
  EXPECT_LT(worker.computed_blocks(), 24u);
}

// Fetching the prefix takes as long as computing the rest: both at once.
TEST(FetchSimulationTest, FetchAsDearAsTheRestIsHiddenBehindIt) {
  SimulatedMachine machine;
  FetchSimulation worker(machine);
  const double both = worker.Run(31, 31 * 64, Policy::kComputeAll);
  const double rest = both - worker.Run(31, 1, Policy::kComputeAll);
  worker.machine().bytes_per_second = 31.0 * 30 * 49152 / rest;
  Learn(worker);
  EXPECT_LE(worker.Run(31, 31 * 64, Policy::kChoose), 0.65 * (rest + rest));
}

TEST(FetchSimulationTest, WireThatBecomesSlowIsMetLater) {
  SimulatedMachine machine;
  machine.bytes_per_second = 400 * kMegabyte;
  FetchSimulation worker(machine);
  Learn(worker);
  worker.Run(64, 100, Policy::kChoose);
  const uint32_t before = worker.computed_blocks();
  worker.machine().change_at = 0.05;
  worker.machine().change_to = 0.01;
  const double compute = worker.Run(64, 100, Policy::kComputeAll);
  EXPECT_LE(worker.Run(64, 100, Policy::kChoose), 1.2 * compute);
  EXPECT_GT(worker.computed_blocks(), before);
}

TEST(FetchSimulationTest, WireThatBecomesFastIsNoticed) {
  SimulatedMachine machine;
  machine.bytes_per_second = 5 * kMegabyte;
  FetchSimulation worker(machine);
  Learn(worker);
  worker.machine().bytes_per_second = 800 * kMegabyte;
  for (int i = 0; i < 4; ++i) worker.Run(64, 100, Policy::kChoose);
  const double fetch = worker.Run(64, 100, Policy::kFetchAll);
  EXPECT_LE(worker.Run(64, 100, Policy::kChoose), 1.05 * fetch);
}

// Nothing is known: as a worker that just started.
TEST(FetchSimulationTest, FirstRequestFetches) {
  FetchSimulation worker(SimulatedMachine{});
  worker.Run(31, 100, Policy::kChoose);
  EXPECT_EQ(worker.computed_blocks(), 0u);
}

TEST(FetchPlanTest, AsksForTheLowestLayerThatMissesCellsAndThoseLikeIt) {
  FetchPlan plan(4, 3);
  plan.SetTarget(1);
  EXPECT_EQ(*plan.Next(100), (FetchPlan::Range{1, 4, 0, 3}));
  EXPECT_EQ(*plan.Next(6), (FetchPlan::Range{1, 4, 0, 2}));
  EXPECT_EQ(*plan.Next(1), (FetchPlan::Range{1, 4, 0, 1}));
  for (uint32_t b = 1; b < 4; ++b) plan.Arrived(b, 0);
  plan.Arrived(3, 1);
  EXPECT_EQ(*plan.Next(100), (FetchPlan::Range{1, 3, 1, 2}));
  // The ends meet earlier than planned: what the front misses comes first.
  plan.SetTarget(0);
  EXPECT_EQ(*plan.Next(100), (FetchPlan::Range{0, 1, 0, 1}));
  plan.Computed(0);
  plan.Computed(1);
  plan.Computed(2);
  EXPECT_EQ(*plan.Next(100), (FetchPlan::Range{3, 4, 2, 3}));
  EXPECT_EQ(plan.LayerMissing(1), 0u);
  EXPECT_EQ(plan.LayerMissing(2), 1u);
  plan.Arrived(3, 2);
  plan.Arrived(3, 2);
  EXPECT_FALSE(plan.Next(100).has_value());
}

TEST(PrefillModelTest, LearnsThatLateChunksAreSlower) {
  const SimulatedMachine truth;
  PrefillModel model;
  EXPECT_FALSE(model.known());
  EXPECT_EQ(model.Seconds(0, 256), 0);
  for (int64_t at = 0; at < 4096; at += 256) model.Observe(at, 256, truth.ChunkSeconds(at, 256));
  for (const int64_t at : {0, 2048, 6000}) {
    EXPECT_NEAR(model.Seconds(at, 256), truth.ChunkSeconds(at, 256),
                0.05 * truth.ChunkSeconds(at, 256));
  }
  EXPECT_GT(model.Seconds(4096, 256), model.Seconds(0, 256));
}

TEST(PrefillModelTest, OneChunkIsASpeed) {
  PrefillModel model;
  model.Observe(0, 128, 0.1);
  EXPECT_NEAR(model.Seconds(0, 256), 0.2, 0.02);
  model.Observe(0, 128, 0);  // A clock that stood still teaches nothing.
  EXPECT_NEAR(model.Seconds(0, 256), 0.2, 0.02);
}

TEST(LiveRateTest, BelievesTheLastTenthsOfASecond) {
  LiveRate rate(1e9);
  EXPECT_NEAR(rate.bytes_per_second(), 1e9, 1);
  for (int i = 0; i < 100; ++i) rate.Add(0.01, 100'000);
  EXPECT_NEAR(rate.bytes_per_second(), 1e7, 1e6);
  rate.Add(1, 0);
  EXPECT_LT(rate.bytes_per_second(), 1e6);
}

}  // namespace
}  // namespace cairn::worker
