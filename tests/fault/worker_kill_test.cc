// kill -9 of one of several workers at random points under load: the others' answers stay the same,
// and nothing of the dead one is left at the node.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "tests/fault/support/fault_support.h"
#include "tests/integration/worker_support.h"

namespace cairn::fault {
namespace {

using testing::Answer;
using testing::WorkerProcess;

// Prompts of 3 to 15 full blocks.
struct Prompt {
  uint32_t tokens = 0;
  uint32_t seed = 0;
};
constexpr Prompt kPrompts[] = {{970, 1}, {700, 1}, {500, 2}, {970, 3}, {200, 2}};

void ExpectSame(const Answer& got, const Answer& expected) {
  ASSERT_TRUE(got.status.ok()) << ToString(got.status);
  EXPECT_EQ(got.tokens, expected.tokens);
  EXPECT_EQ(got.logits_digest, expected.logits_digest);
}

TEST(FaultWorkerKillTest, OthersAnswerTheSame) {
  // The small model: many requests, and what dies is a worker, whatever it computes.
  setenv("CAIRN_TEST_MODEL", "tests/data/gguf/kquant.gguf", 1);
  std::vector<Answer> expected;
  {
    auto alone = WorkerProcess::Start("");
    ASSERT_TRUE(alone.ok()) << ToString(alone.status());
    for (const Prompt& prompt : kPrompts)
      expected.push_back((*alone)->Generate(prompt.tokens, prompt.seed));
  }
  auto node = Node::Start({"--host.capacity", "256MiB"});
  ASSERT_TRUE(node.ok()) << ToString(node.status());
  auto client = ConnectTo((*node)->address());
  auto survivor = WorkerProcess::Start((*node)->address());
  ASSERT_TRUE(survivor.ok()) << ToString(survivor.status());

  std::mt19937_64 random(Seed());
  uint64_t fetched = 0, answers = 0, answered_by_victims = 0;
  const uint32_t rounds = Rounds(8);
  for (uint32_t round = 0; round < rounds; ++round) {
    SCOPED_TRACE(fmt::format("round {}", round));
    // Later rounds find the prefixes; every second one begins with nothing, so that pushes are
    // under way too.
    if (round % 2 == 0) {
      const auto admin = client::ConnectAdmin({.address = (*node)->address()});
      ASSERT_TRUE((*admin)->DropTenant("default").ok());
    }
    auto victim = WorkerProcess::Start((*node)->address());
    ASSERT_TRUE(victim.ok()) << ToString(victim.status());
    std::atomic<bool> stop{false};
    std::thread load([&] {
      for (size_t i = round; !stop; ++i) {
        const size_t which = i % std::size(kPrompts);
        const Answer answer = (*victim)->Generate(kPrompts[which].tokens, kPrompts[which].seed);
        if (!answer.status.ok()) return;  // It is dead.
        EXPECT_EQ(answer.tokens, expected[which].tokens);
        EXPECT_EQ(answer.logits_digest, expected[which].logits_digest);
        ++answered_by_victims;
      }
    });
    std::thread killer([&] {
      // Not a wait for something: the moment of death is what is random.
      std::this_thread::sleep_for(milliseconds(random() % 300));
      (*victim)->process().Signal(SIGKILL);
    });
    for (size_t which = 0; which < std::size(kPrompts); ++which) {
      const Answer answer = (*survivor)->Generate(kPrompts[which].tokens, kPrompts[which].seed);
      ExpectSame(answer, expected[which]);
      fetched += answer.fetched_tokens;
      ++answers;
    }
    killer.join();
    stop = true;
    load.join();
    // The survivor's session and ours, when it has one.
    EXPECT_TRUE((*survivor)->WaitIdle());
    EXPECT_EQ(StillHeld(*client, 2, seconds(120)), "");
  }
  // A worker that starts after all that finds what the dead and the living left, and it is right.
  auto last = WorkerProcess::Start((*node)->address());
  ASSERT_TRUE(last.ok());
  ASSERT_TRUE((*last)->WaitConnected(true));
  for (size_t which = 0; which < std::size(kPrompts); ++which) {
    const Answer answer = (*last)->Generate(kPrompts[which].tokens, kPrompts[which].seed);
    ExpectSame(answer, expected[which]);
    fetched += answer.fetched_tokens;
  }
  EXPECT_GT(fetched, 0u);
  std::printf(
      "%u workers killed; the survivor gave %llu answers, the dead %llu; %llu tokens fetched\n",
      rounds, static_cast<unsigned long long>(answers),
      static_cast<unsigned long long>(answered_by_victims),
      static_cast<unsigned long long>(fetched));
  survivor->reset();
  last->reset();
  EXPECT_EQ(StillHeld(*client, 1, seconds(120)), "");
  EXPECT_EQ(LeftAfterDrop(**node, *client, "default", seconds(120)), "");
}

}  // namespace
}  // namespace cairn::fault
