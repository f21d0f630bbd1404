#include "common/lifecycle/lifecycle.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

namespace cairn {
namespace {

TimePoint Soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(10); }

TEST(GateTest, RefusesAfterClosingAndReportsWhenEmpty) {
  Gate gate;
  Gate::Pass first = gate.Enter();
  ASSERT_TRUE(first);
  gate.Close();
  Gate::Refusal why = Gate::Refusal::kNone;
  EXPECT_FALSE(gate.Enter(&why));
  EXPECT_EQ(why, Gate::Refusal::kClosed);
  EXPECT_FALSE(gate.WaitEmpty(std::chrono::steady_clock::now()));
  std::thread leaver([pass = std::move(first)] {});
  EXPECT_TRUE(gate.WaitEmpty(Soon()));
  leaver.join();
}

TEST(GateTest, HoldsAtMostItsLimit) {
  Gate gate(2);
  Gate::Pass a = gate.Enter(), b = gate.Enter();
  Gate::Refusal why = Gate::Refusal::kNone;
  EXPECT_FALSE(gate.Enter(&why));
  EXPECT_EQ(why, Gate::Refusal::kFull);
  a = Gate::Pass();
  EXPECT_TRUE(gate.Enter());
  EXPECT_EQ(gate.inside(), 1u);
}

TEST(ShutdownSignalsTest, TurnsSigtermIntoAValueAndTheSecondOneKills) {
  // In a child: signals are process-wide.
  EXPECT_EXIT(
      {
        ShutdownSignals signals;
        kill(getpid(), SIGTERM);
        if (signals.Wait() != SIGTERM) _exit(1);
        kill(getpid(), SIGTERM);
        for (;;) pause();
      },
      ::testing::KilledBySignal(SIGTERM), "");
}

TEST(ShutdownSignalsTest, WaitUntilReturnsZeroAtTheDeadline) {
  EXPECT_EXIT(
      {
        ShutdownSignals signals;
        const int at_deadline = signals.WaitUntil(std::chrono::steady_clock::now());
        kill(getpid(), SIGINT);
        const int after = signals.WaitUntil(Soon());
        _exit(at_deadline == 0 && after == SIGINT ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace cairn
