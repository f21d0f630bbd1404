// Prompts that never fit into the worker's pool: a worker that spills them to its node as it goes,
// and what happens when the node dies, falls silent or forgets in the middle.

#include <functional>

#include "common/config/config.h"
#include "common/status/matchers.h"
#include "tests/simulation/node.h"
#include "tests/simulation/simulation.h"
#include "tests/simulation/worker.h"
#include "tests/support/methods.h"

namespace cairn::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using worker::GenerateSummary;
using worker::SpillStats;

constexpr uint64_t kTokenBytes = 1024;  // Bytes of the model's KV.
constexpr size_t kPrompt = 900;
// Room for 448 tokens: 256 that wait to be spilt, a chunk of at most 128, and the answer.
constexpr uint64_t kSmallPool = 448 * kTokenBytes;

void Play(const std::function<void(Simulation&)>& scenario) {
  Simulation simulation(1);
  simulation.Start([&] { scenario(simulation); });
  simulation.Run();
}

WorkerOptions Small(std::string recipe = "raw") {
  WorkerOptions options;
  options.engine.kv_pool_bytes = kSmallPool;
  // Several windows a layer, so that nothing of a pass is still there in the next one.
  options.engine.spill.window_tokens = 256;
  options.engine.recipe = std::move(recipe);
  return options;
}

// The answer of a worker with room for everything.
std::string AnswerWithRoom(Simulation& simulation, const worker::GenerateRequest& request) {
  Worker alone(simulation, nullptr);
  return AnswerOf(alone.Run(request));
}

class SpilledPromptTest : public ::testing::Test {
 protected:
  // Runs a long prompt in a small worker, does `trouble` meanwhile, and expects the right answer.
  SpillStats RunWithTrouble(const std::function<void(Simulation&, Node&)>& trouble,
                            uint32_t max_tokens = 24) {
    SpillStats stats;
    Play([&](Simulation& simulation) {
      const worker::GenerateRequest request = Prompt(kPrompt, 1, max_tokens);
      const std::string want = AnswerWithRoom(simulation, request);
      Node node(simulation);
      node.Start();
      {
        Worker worker(simulation, NewClient(node), Small());
        SimulatedPool other(simulation);
        ASSERT_OK(other.Post([&] { trouble(simulation, node); }));
        EXPECT_EQ(AnswerOf(worker.Run(request)), want);
        other.Stop();
        stats = worker.engine().GetStats().spill;
        // All pages come back.
        worker.Idle();
        EXPECT_EQ(worker.engine().GetStats().kv_pages_free,
                  worker.engine().GetStats().kv_pages_total);
      }
    });
    return stats;
  }
};

TEST_F(SpilledPromptTest, TheAnswerIsThatOfAWorkerWithRoom) {
  const SpillStats stats = RunWithTrouble([](Simulation&, Node&) {});
  EXPECT_EQ(stats.prompts, 1u);
  EXPECT_GE(stats.spilled_tokens, kPrompt - 448);
  EXPECT_EQ(stats.repeated_passes + stats.lost_tokens, 0u);
  // Each chunk and each token of the answer has read all that was spilt before it.
  EXPECT_GT(stats.read.bytes.total(), 10 * kPrompt * kTokenBytes);
}

TEST_F(SpilledPromptTest, WhatTheNodeHasIsNotComputedAgain) {
  Play([](Simulation& simulation) {
    const worker::GenerateRequest request = Prompt(kPrompt);
    const std::string want = AnswerWithRoom(simulation, request);
    Node node(simulation);
    node.Start();
    Worker worker(simulation, NewClient(node), Small());
    const GenerateSummary cold = worker.Run(request);
    EXPECT_EQ(cold.fetched_tokens, 0u);
    EXPECT_EQ(cold.miss_reason, MissReason::kAbsent);
    // The blocks that it had spilt were read back, each time from the node's memory.
    EXPECT_EQ(cold.fetched.host, worker.engine().GetStats().spill.read.bytes.host);
    EXPECT_GT(cold.fetched.host, kPrompt * kTokenBytes);
    EXPECT_EQ(cold.fetched.disk + cold.fetched.lent, 0u);
    worker.Idle();
    const GenerateSummary warm = worker.Run(request);
    EXPECT_EQ(warm.fetched_tokens, 768u);  // Whole units of 256 tokens.
    EXPECT_EQ(warm.computed_tokens, kPrompt - 768);
    EXPECT_EQ(warm.chosen_tokens, 128u) << "at the node, but no whole unit";
    EXPECT_EQ(warm.miss_reason, MissReason::kNone);
    EXPECT_GT(warm.fetched.host, 768 * kTokenBytes);
    EXPECT_EQ(AnswerOf(cold), want);
    EXPECT_EQ(AnswerOf(warm), want);
    // A worker with room reads the same blocks.
    Worker large(simulation, NewClient(node));
    const GenerateSummary fetched = large.Run(request);
    EXPECT_GT(fetched.fetched_tokens, 768u);
    EXPECT_EQ(AnswerOf(fetched), want);
  });
}

TEST_F(SpilledPromptTest, ANodeThatComesBackGoesOnWithWhatIsOnItsDisk) {
  const SpillStats stats = RunWithTrouble([](Simulation& simulation, Node& node) {
    simulation.Sleep(milliseconds(60));  // The prompt takes some 100.
    node.Flush();
    node.Die();
    simulation.Sleep(milliseconds(700));
    node.Start();
  });
  EXPECT_GE(stats.repeated_passes, 1u);
  EXPECT_EQ(stats.lost_tokens, 0u);
}

TEST_F(SpilledPromptTest, WhatANodeForgotIsComputedAgain) {
  const SpillStats stats = RunWithTrouble([](Simulation& simulation, Node& node) {
    simulation.Sleep(milliseconds(60));
    node.Die();  // Its disk is not written yet.
    simulation.Sleep(milliseconds(10));
    node.Start();
  });
  EXPECT_GT(stats.lost_tokens, 0u);
}

TEST_F(SpilledPromptTest, ANodeThatDiesDuringTheAnswerGivesTheSameAnswer) {
  const SpillStats kept = RunWithTrouble(
      [](Simulation& simulation, Node& node) {
        simulation.Sleep(milliseconds(115));
        node.Flush();
        node.Die();
        simulation.Sleep(milliseconds(300));
        node.Start();
      },
      64);
  EXPECT_GE(kept.repeated_passes, 1u);
  EXPECT_EQ(kept.lost_tokens, 0u);
}

TEST_F(SpilledPromptTest, ASilentNodeCostsDeadlinesAndNoWrongRow) {
  const SpillStats stats = RunWithTrouble([](Simulation& simulation, Node& node) {
    simulation.Sleep(milliseconds(60));
    node.link().silent_after_slices = 2;
    simulation.Sleep(milliseconds(1500));
    node.link().silent_after_slices.reset();
  });
  EXPECT_GE(stats.repeated_passes, 1u);
}

TEST_F(SpilledPromptTest, ABumpUnderTheRequestMakesItComputeAgain) {
  const SpillStats stats = RunWithTrouble([](Simulation& simulation, Node& node) {
    simulation.Sleep(milliseconds(60));
    for (const NamespaceInfo& ns : node.engine().ListNamespaces("")) {
      EXPECT_OK(node.engine().BumpEpoch(ns.fingerprint));
    }
  });
  EXPECT_GT(stats.lost_tokens, 0u);
}

TEST_F(SpilledPromptTest, ANodeThatStaysAwayEndsTheRequestWithAClearError) {
  Play([](Simulation& simulation) {
    Node node(simulation);
    node.Start();
    Worker worker(simulation, NewClient(node), Small());
    SimulatedPool other(simulation);
    ASSERT_OK(other.Post([&] {
      simulation.Sleep(milliseconds(60));
      node.Die();
    }));
    const TimePoint begin = simulation.Now();
    const auto got = worker.engine().Generate(Prompt(kPrompt), {});
    EXPECT_THAT(got.status(), StatusIs(StatusCode::kUnavailable, HasSubstr("cache node")));
    EXPECT_LT(simulation.Now() - begin, seconds(8));
    // The worker goes on, and a prompt that fits needs no node.
    EXPECT_EQ(AnswerOf(worker.Run(Prompt(200))), AnswerWithRoom(simulation, Prompt(200)));
    other.Stop();
  });
}

TEST_F(SpilledPromptTest, WhatCannotBeSpiltIsRefusedWithTheReason) {
  Play([](Simulation& simulation) {
    Node node(simulation);
    node.Start();
    const auto refused = [&](Worker& worker, const worker::GenerateRequest& request,
                             const std::string& why) {
      EXPECT_THAT(worker.engine().Generate(request, {}).status(),
                  StatusIs(StatusCode::kResourceExhausted,
                           ::testing::AllOf(HasSubstr("kv_pool: got 448KiB, expected at least"),
                                            HasSubstr(why))));
    };
    Worker alone(simulation, nullptr, Small());
    refused(alone, Prompt(kPrompt), "no cache node");
    Worker lossy(simulation, NewClient(node), Small("int8"));
    refused(lossy, Prompt(kPrompt), "'int8' is not raw");
    Worker worker(simulation, NewClient(node), Small());
    worker::GenerateRequest no_cache = Prompt(kPrompt);
    no_cache.no_cache = true;
    refused(worker, no_cache, "uses no cache");
    // 256 tokens, a block, and the answer: named in bytes of whole pages, 9 of 64 tokens.
    static_assert(9 * 64 * kTokenBytes == 576 << 10);
    refused(worker, Prompt(700, 1, 200), "need 576KiB");
  });
}

TEST_F(SpilledPromptTest, ANodeThatIsTooSmallEndsTheRequestAtOnceAndSaysSo) {
  Play([](Simulation& simulation) {
    // Room for five blocks, of the eight that the worker must spill.
    Node node(simulation, {.host_bytes = 400 << 10, .disk = false});
    node.Start();
    Worker worker(simulation, NewClient(node), Small());
    const TimePoint begin = simulation.Now();
    EXPECT_THAT(worker.engine().Generate(Prompt(kPrompt), {}).status(),
                StatusIs(StatusCode::kResourceExhausted,
                         ::testing::AllOf(HasSubstr("the cache node is too small"),
                                          HasSubstr("900 tokens takes 960KiB there"))));
    EXPECT_LT(simulation.Now() - begin, seconds(1));
    EXPECT_EQ(AnswerOf(worker.Run(Prompt(200))), AnswerWithRoom(simulation, Prompt(200)));
  });
}

TEST_F(SpilledPromptTest, ASmallNodeWithADiskKeepsTheRestThere) {
  Play([](Simulation& simulation) {
    const worker::GenerateRequest request = Prompt(kPrompt);
    const std::string want = AnswerWithRoom(simulation, request);
    Node node(simulation, {.host_bytes = 400 << 10});
    node.Start();
    Worker worker(simulation, NewClient(node), Small());
    const GenerateSummary got = worker.Run(request);
    EXPECT_EQ(AnswerOf(got), want);
    EXPECT_GT(got.fetched.disk, 0u);
  });
}

TEST_F(SpilledPromptTest, TokensOfOthersGoOnWhileTheNodeTakesLongForASpill) {
  Play([](Simulation& simulation) {
    Node node(simulation);
    node.Start();
    node.link().push_time = milliseconds(30);  // Of each block. A token computes for 0.1.
    WorkerOptions options = Small();
    options.engine.kv_pool_bytes = 2 * kSmallPool;
    options.engine.max_running = 2;
    options.engine.decode_share = 0.1;
    Worker worker(simulation, NewClient(node), std::move(options));
    SimulatedPool other(simulation);
    ASSERT_OK(other.Post([&] { EXPECT_EQ(worker.Run(Prompt(kPrompt)).finish_reason, "length"); }));
    Duration longest{0};
    TimePoint last = simulation.Now();
    worker::GenerateCallbacks callbacks;
    callbacks.on_token = [&](model::TokenId, std::string_view) {
      longest = std::max(longest, simulation.Now() - last);
      last = simulation.Now();
      return true;
    };
    worker::GenerateRequest chat = Prompt(64, 2, 300);
    chat.no_cache = true;
    EXPECT_OK(worker.engine().Generate(chat, callbacks));
    EXPECT_EQ(worker.engine().GetStats().spill.spilled_tokens, 0u) << "it is still under way";
    other.Stop();
    EXPECT_GE(worker.engine().GetStats().spill.spilled_tokens, kPrompt - 448);
    EXPECT_LT(longest, node.link().push_time);
  });
}

TEST_F(SpilledPromptTest, TokensOfOthersGoOnWhileTheNodeTakesLongToAnswer) {
  Play([](Simulation& simulation) {
    Node node(simulation);
    node.Start();
    WorkerOptions options = Small();
    options.engine.kv_pool_bytes = 2 * kSmallPool;
    options.engine.max_running = 2;
    options.engine.decode_share = 0.1;
    Worker worker(simulation, NewClient(node), std::move(options));
    const Duration usual = node.link().latency;
    const Duration answer = milliseconds(60);
    node.link().latency = answer;  // Until the node is asked for the beginning of the prompt.
    SimulatedPool others(simulation);
    ASSERT_OK(others.Post([&] { EXPECT_EQ(worker.Run(Prompt(kPrompt)).finish_reason, "length"); }));
    ASSERT_OK(others.Post([&] {
      simulation.Sleep(milliseconds(20));
      node.link().latency = usual;
    }));
    Duration longest{0};
    TimePoint last = simulation.Now();
    worker::GenerateCallbacks callbacks;
    callbacks.on_token = [&](model::TokenId, std::string_view) {
      longest = std::max(longest, simulation.Now() - last);
      last = simulation.Now();
      return true;
    };
    worker::GenerateRequest chat = Prompt(64, 2, 300);
    chat.no_cache = true;
    EXPECT_OK(worker.engine().Generate(chat, callbacks));
    others.Stop();
    EXPECT_GE(worker.engine().GetStats().spill.spilled_tokens, kPrompt - 448);
    EXPECT_LT(longest, answer / 2);
  });
}

TEST_F(SpilledPromptTest, ABudgetThatIsTooSmallIsRefusedBeforeAnyWork) {
  if (!kBuiltWithMethods) GTEST_SKIP() << kNoMethods;
  Play([](Simulation& simulation) {
    const worker::GenerateRequest request = Prompt(kPrompt);
    Node node(simulation);
    node.Start();
    const auto with_budget = [](uint64_t bytes) {
      WorkerOptions options = Small();
      options.engine.read_policy = "precision";
      options.engine.kv_budget = bytes;
      return options;
    };
    uint64_t least = 0;
    {
      Worker worker(simulation, NewClient(node), with_budget(64 << 10));
      const auto refused = worker.engine().Generate(request, {});
      ASSERT_THAT(refused.status(),
                  StatusIs(StatusCode::kInvalidArgument,
                           HasSubstr("kv_budget: got 64KiB, expected at least ")));
      const std::string message = Message(refused.status());
      const size_t at = message.find("at least ") + 9;
      least = *config::ParseBytes(message.substr(at, message.find(':', at) - at));
      EXPECT_EQ(worker.engine().GetStats().spill.prompts, 0u);
    }
    // Whole units of the prompt are read by rows, and only what is behind them is in pages.
    Worker worker(simulation, NewClient(node), with_budget(least));
    const GenerateSummary got = worker.Run(request);
    EXPECT_EQ(got.reading.far_tokens, 768u) << got.reading.off;
    EXPECT_LE(got.reading.near_bytes, least);
    EXPECT_EQ(got.prompt_logits_sha256,
              Worker(simulation, nullptr).Run(request).prompt_logits_sha256)
        << "of the prompt, which is exact";
  });
}

TEST_F(SpilledPromptTest, ClustersAtTheNodeSpareReadingAllThatWasSpilt) {
  if (!kBuiltWithMethods) GTEST_SKIP() << kNoMethods;
  Play([](Simulation& simulation) {
    const worker::GenerateRequest request = Prompt(kPrompt);
    Node node(simulation);
    node.Start();
    const auto with = [](const char* policy) {
      WorkerOptions options = Small();
      options.engine.read_policy = policy;
      return options;
    };
    Worker first(simulation, NewClient(node), with("clusters"));
    const GenerateSummary made = first.Run(request);
    ASSERT_EQ(made.reading.far_tokens, 768u) << made.reading.off;
    EXPECT_EQ(made.reading.counters.stored_indexes, 1u);
    first.Idle();
    // The same KV is at the node in both runs that follow, and only the first one has the clusters.
    Worker second(simulation, NewClient(node), with("clusters"));
    const GenerateSummary fetched = second.Run(request);
    EXPECT_EQ(fetched.reading.counters.fetched_indexes, 1u);
    EXPECT_EQ(AnswerOf(fetched), AnswerOf(made));
    Worker third(simulation, NewClient(node), with("clusters:centres=0.06"));
    const GenerateSummary other = third.Run(request);
    EXPECT_EQ(other.reading.counters.fetched_indexes, 0u);
    // One of three windows of a layer is read for the first row.
    EXPECT_LE(second.engine().GetStats().spill.read.bytes.total() + 2 * 256 * kTokenBytes,
              third.engine().GetStats().spill.read.bytes.total());
  });
}

TEST_F(SpilledPromptTest, ACancelledRequestLeavesNothing) {
  Play([](Simulation& simulation) {
    Node node(simulation);
    node.Start();
    Worker worker(simulation, NewClient(node), Small());
    worker::GenerateRequest request = Prompt(kPrompt);
    request.deadline = simulation.Now() + milliseconds(70);
    const GenerateSummary got = worker.Run(request);
    EXPECT_EQ(got.finish_reason, "deadline");
    worker.Idle();
    EXPECT_EQ(worker.engine().GetStats().kv_pages_free, worker.engine().GetStats().kv_pages_total);
    simulation.Sleep(seconds(1));
    EXPECT_EQ(node.engine().GetStats().leases, 0u);
  });
}

}  // namespace
}  // namespace cairn::testing
