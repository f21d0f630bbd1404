#include "common/lifecycle/lifecycle.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

namespace cairn {
namespace {

TimePoint Soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(60); }

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

// As many places as `party` can get.
std::vector<Gate::Pass> TakeAll(Gate* gate, const std::string& party) {
  std::vector<Gate::Pass> passes;
  Gate::Refusal why = Gate::Refusal::kNone;
  for (;;) {
    Gate::Pass pass = gate->Enter(party, &why);
    if (!pass) return passes;
    passes.push_back(std::move(pass));
  }
}

TEST(GateTest, AGreedyPartyLeavesPlacesToOthers) {
  Gate gate(1024);
  auto greedy = TakeAll(&gate, "a");
  EXPECT_NEAR(static_cast<double>(greedy.size()), 512, 2);
  Gate::Refusal why = Gate::Refusal::kNone;
  EXPECT_FALSE(gate.Enter("a", &why));
  EXPECT_EQ(why, Gate::Refusal::kShare);
  EXPECT_TRUE(gate.Enter("b", &why));
  greedy.pop_back();
  EXPECT_TRUE(gate.Enter("a", &why)) << "what it gave back it may have again";
}

TEST(GateTest, GreedyPartiesInNumberLeaveAShareOfTheSameSize) {
  Gate gate(1024);
  std::vector<Gate::Pass> all;
  for (int round = 0; round < 100; ++round) {  // One after the other takes one more.
    for (int i = 0; i < 11; ++i) {
      if (Gate::Pass pass = gate.Enter("greedy" + std::to_string(i), nullptr)) {
        all.push_back(std::move(pass));
      }
    }
  }
  EXPECT_GE(gate.limit() - gate.inside(), 1024u / 12 - 2);
  EXPECT_GE(TakeAll(&gate, "honest").size(), 1024u / 24);
}

TEST(GateTest, APartyIsForgottenWithItsLastPass) {
  Gate gate(8);
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(gate.Enter(std::to_string(i), nullptr));
  EXPECT_EQ(gate.inside(), 0u);
  EXPECT_GE(TakeAll(&gate, "1").size(), 4u);
  // Small limits are not shared.
  Gate small(4);
  EXPECT_EQ(TakeAll(&small, "a").size(), 4u);
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
