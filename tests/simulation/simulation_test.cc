#include "tests/simulation/simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;

TEST(SimulationTest, TasksGoOnWhenTheirTimeHasCome) {
  Simulation simulation(1);
  simulation.Start([&] {
    simulation.Sleep(milliseconds(30));
    simulation.Note("late");
  });
  simulation.Start([&] {
    simulation.Sleep(milliseconds(20));
    simulation.Note("early");
    simulation.Start([&] { simulation.Note("new"); });
  });
  simulation.Run();
  EXPECT_THAT(simulation.trace(), ElementsAre("0.020000 early", "0.020000 new", "0.030000 late"));
}

TEST(SimulationTest, AWaitEndsWithItsConditionOrWithItsDeadline) {
  Simulation simulation(1);
  Mutex mu;
  CondVar changed;
  bool ready = false;
  const auto wait = [&](Duration most) {
    MutexLock lock(mu);
    const bool came =
        changed.WaitUntil(mu, simulation.clock(), simulation.Now() + most, [&] { return ready; });
    simulation.Note(came ? "came" : "deadline");
  };
  simulation.Start([&] { wait(seconds(1)); });
  simulation.Start([&] { wait(milliseconds(5)); });
  simulation.Start([&] {
    simulation.Sleep(milliseconds(10));
    MutexLock lock(mu);
    ready = true;
    changed.NotifyAll();
  });
  simulation.Run();
  EXPECT_THAT(simulation.trace(), ElementsAre("0.005000 deadline", "0.010000 came"));
}

TEST(SimulationTest, TheSeedDecidesTheOrder) {
  const auto order = [](uint64_t seed) {
    Simulation simulation(seed);
    for (int task = 0; task < 8; ++task) {
      simulation.Start([&simulation, task] { simulation.Note(std::to_string(task)); });
    }
    simulation.Run();
    return simulation.trace();
  };
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
}

TEST(SimulationTest, AStoppedPoolHasNoTaskLeft) {
  Simulation simulation(1);
  simulation.Start([&] {
    SimulatedPool pool(simulation);
    bool done = false;
    ASSERT_TRUE(pool.Post([&] {
                      simulation.Sleep(milliseconds(5));
                      done = true;
                    })
                    .ok());
    pool.Stop();
    EXPECT_TRUE(done);
    EXPECT_EQ(pool.Post([] {}).code(), StatusCode::kUnavailable);
  });
  simulation.Run();
  EXPECT_EQ(simulation.Elapsed(), milliseconds(5));
}

TEST(SimulationDeathTest, TasksThatWaitForEachOtherEndTheTest) {
  EXPECT_DEATH(
      {
        Simulation simulation(1);
        simulation.Start([&] {
          SimulatedPool pool(simulation);
          (void)pool.Post([&] { pool.Stop(); });
          pool.Stop();
        });
        simulation.Run();
      },
      "");
}

}  // namespace
}  // namespace cairn::testing
