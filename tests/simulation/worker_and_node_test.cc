// A worker and its node, from the request to the disk, in one thread and on a clock of their own.

#include <filesystem>
#include <map>

#include "common/log/log.h"
#include "common/status/matchers.h"
#include "tests/simulation/node.h"
#include "tests/simulation/simulation.h"
#include "tests/simulation/worker.h"

namespace cairn::testing {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using worker::GenerateSummary;

constexpr double kTick = 1e-6;  // Seconds. Sums of times are rounded.

// Plays a scenario, and returns what happened.
std::vector<std::string> Play(uint64_t seed, const std::function<void(Simulation&)>& scenario) {
  Simulation simulation(seed);
  simulation.Start([&] { scenario(simulation); });
  simulation.Run();
  return simulation.trace();
}

// The log has a thread of its own from its first line on, so one is written before.
size_t Threads() {
  log::Info("counting_threads");
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

// The answer to the prompt without a cache.
std::string AnswerWithoutCache(Simulation& simulation, const worker::GenerateRequest& request) {
  Worker alone(simulation, nullptr);
  return AnswerOf(alone.Run(request));
}

TEST(WorkerAndNodeTest, AComputedPromptIsPushedAndTheNextOneIsFetched) {
  const size_t threads = Threads();
  Play(1, [&](Simulation& simulation) {
    Node node(simulation);
    node.Start();
    Worker worker(simulation, NewClient(node));
    const GenerateSummary cold = worker.Run(Prompt(300));
    EXPECT_EQ(cold.fetched_tokens, 0u);
    EXPECT_EQ(cold.miss_reason, MissReason::kAbsent);
    worker.Idle();
    const GenerateSummary warm = worker.Run(Prompt(300));
    EXPECT_EQ(warm.fetched_tokens, 256u);
    EXPECT_LT(warm.total_seconds, cold.total_seconds / 2);
    EXPECT_EQ(AnswerOf(warm), AnswerOf(cold));
    EXPECT_EQ(AnswerOf(cold), AnswerWithoutCache(simulation, Prompt(300)));
    EXPECT_EQ(Threads(), threads);
  });
}

// A prompt that one worker computes and another one answers (docs/operate/disaggregation.md).
struct Paired {
  GenerateSummary prefill, answer;
  Duration took{0};
};
Paired Pair(Simulation& simulation, Node& node, worker::GenerateRequest request,
            std::optional<Duration> prefill_ends = std::nullopt) {
  Worker first(simulation, NewClient(node));
  Worker second(simulation, NewClient(node));
  Paired paired;
  bool over = false;
  const TimePoint begin = simulation.Now();
  worker::GenerateCallbacks callbacks;
  callbacks.on_announced = [&] {
    worker::GenerateRequest then = request;
    then.await_prefill = seconds(60);
    simulation.Start([&, then] {
      paired.answer = second.Run(then);
      paired.took = simulation.Now() - begin;
      over = true;
    });
    return true;
  };
  worker::GenerateRequest now = request;
  now.prefill_only = true;
  if (prefill_ends) now.deadline = begin + *prefill_ends;
  auto summary = first.engine().Generate(now, callbacks);
  EXPECT_OK(summary);
  if (summary.ok()) paired.prefill = *std::move(summary);
  while (!over) simulation.Sleep(milliseconds(1));
  return paired;
}

TEST(WorkerAndNodeTest, OneWorkerComputesAPromptAndAnotherOneAnswers) {
  Play(1, [](Simulation& simulation) {
    Node node(simulation);
    node.Start();
    GenerateSummary alone;
    {
      Worker one(simulation, nullptr);
      alone = one.Run(Prompt(700));
    }
    const Paired paired = Pair(simulation, node, Prompt(700));
    EXPECT_EQ(paired.prefill.finish_reason, "prefill");
    EXPECT_EQ(paired.prefill.computed_tokens, 640u);
    EXPECT_EQ(paired.answer.fetched_tokens, 640u);
    EXPECT_EQ(paired.answer.computed_tokens, 60u);
    EXPECT_EQ(AnswerOf(paired.answer), AnswerOf(alone));
    EXPECT_LT(Seconds(paired.took), 1.2 * alone.total_seconds);
  });
}

TEST(WorkerAndNodeTest, APrefillThatEndsInMidPromptLeavesTheRestToTheOtherWorker) {
  Play(1, [](Simulation& simulation) {
    Node node(simulation);
    node.Start();
    const Paired paired = Pair(simulation, node, Prompt(700), milliseconds(40));
    EXPECT_EQ(paired.prefill.finish_reason, "deadline");
    EXPECT_GT(paired.answer.fetched_tokens, 0u);
    EXPECT_LT(paired.answer.fetched_tokens, 640u);
    EXPECT_EQ(AnswerOf(paired.answer), AnswerWithoutCache(simulation, Prompt(700)));
  });
}

TEST(WorkerAndNodeTest, ANodeThatAnswersLateCostsTheMatchDeadline) {
  Play(1, [](Simulation& simulation) {
    Node node(simulation);
    node.Start();
    Worker worker(simulation, NewClient(node));
    const GenerateSummary cold = worker.Run(Prompt(300));
    worker.Idle();
    node.link().latency = seconds(10);
    const GenerateSummary late = worker.Run(Prompt(300));
    EXPECT_EQ(late.fetched_tokens, 0u);
    EXPECT_EQ(late.miss_reason, MissReason::kDeadline);
    EXPECT_NEAR(late.match_seconds, 0.050, kTick);
    EXPECT_NEAR(late.total_seconds - late.match_seconds, cold.total_seconds - cold.match_seconds,
                kTick);
    EXPECT_EQ(AnswerOf(late), AnswerOf(cold));
  });
}

TEST(WorkerAndNodeTest, AFetchThatFallsSilentCostsTheStallDeadline) {
  Play(1, [](Simulation& simulation) {
    Node node(simulation);
    node.Start();
    Worker worker(simulation, NewClient(node));
    const GenerateSummary cold = worker.Run(Prompt(300));
    worker.Idle();
    node.link().silent_after_slices = 3;
    const GenerateSummary got = worker.Run(Prompt(300));
    EXPECT_EQ(got.fetched_tokens, 0u);
    EXPECT_EQ(got.miss_reason, MissReason::kDeadline);
    EXPECT_NEAR(got.total_seconds, cold.total_seconds + 0.250, 0.001);
    EXPECT_EQ(AnswerOf(got), AnswerOf(cold));
  });
}

TEST(WorkerAndNodeTest, ANodeThatDiesInTheMiddleOfAFetchIsReplacedByComputing) {
  Play(1, [](Simulation& simulation) {
    Node node(simulation);
    node.Start();
    Worker worker(simulation, NewClient(node));
    const GenerateSummary cold = worker.Run(Prompt(300));
    worker.Idle();
    node.Flush();
    node.link().dies_after_slices = 5;
    const GenerateSummary got = worker.Run(Prompt(300));
    EXPECT_FALSE(node.alive());
    EXPECT_EQ(got.miss_reason, MissReason::kUnavailable);
    EXPECT_LT(got.total_seconds, cold.total_seconds + 0.050);
    EXPECT_EQ(AnswerOf(got), AnswerOf(cold));

    // It comes back with what is on its disk.
    node.Start();
    const GenerateSummary again = worker.Run(Prompt(300));
    EXPECT_EQ(again.fetched_tokens, 256u);
    EXPECT_GT(again.fetched.disk, 0u);
    EXPECT_EQ(AnswerOf(again), AnswerOf(cold));
  });
}

TEST(WorkerAndNodeTest, TheFrontIsComputedWhileTheTailIsOnItsWay) {
  Play(1, [](Simulation& simulation) {
    Node node(simulation);
    node.Start();
    Worker worker(simulation, NewClient(node));
    // A block takes 6.4 ms to compute, and about as long to fetch.
    node.link().bytes_per_second = 1e7;
    const GenerateSummary cold = worker.Run(Prompt(900));
    worker.Idle();
    worker.Run(Prompt(900));  // Here it learns how fast the link is.
    const GenerateSummary got = worker.Run(Prompt(900));
    EXPECT_GT(got.chosen_tokens, 0u);
    EXPECT_GT(got.fetched_tokens, 0u);
    EXPECT_EQ(got.chosen_tokens + got.fetched_tokens, 896u);
    EXPECT_LT(got.ttft_seconds, 0.75 * cold.ttft_seconds);
    EXPECT_EQ(AnswerOf(got), AnswerOf(cold));
  });
}

// Two requests at a time, which share the forward pass.
class TwoAtATime final : public worker::Scheduler {
 public:
  size_t max_running() const override { return 2; }
  worker::StepPlan Next(std::span<const Candidate> running, TimePoint /*now*/) override {
    if (running.size() == 1) return {.order = {0}};
    return {.order = {0, 1}};
  }
};

TEST(WorkerAndNodeTest, RequestsThatRunTogetherGetTheAnswersThatTheyGetAlone) {
  Play(1, [](Simulation& simulation) {
    const std::vector<worker::GenerateRequest> requests = {Prompt(300, 1, 16), Prompt(200, 2, 16)};
    Node node(simulation);
    node.Start();
    WorkerOptions options;
    options.scheduler = std::make_unique<TwoAtATime>();
    Worker worker(simulation, NewClient(node), std::move(options));
    for (const uint32_t fetched : {0u, 1u}) {
      std::vector<GenerateSummary> got(2);
      SimulatedPool callers(simulation);
      for (size_t i = 0; i < 2; ++i) {
        ASSERT_OK(callers.Post([&, i] { got[i] = worker.Run(requests[i]); }));
      }
      callers.Stop();
      worker.Idle();
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_LT(got[i].queue_seconds, 0.001) << i;  // Until the other one had its match.
        EXPECT_EQ(got[i].fetched_tokens > 0, fetched > 0) << i;
        EXPECT_EQ(AnswerOf(got[i]), AnswerWithoutCache(simulation, requests[i])) << i;
      }
    }
  });
}

// Prompts whose blocks lie on disk alone.
void PutOnDisk(Simulation& simulation, Node& node,
               std::span<const worker::GenerateRequest> prompts) {
  Worker worker(simulation, NewClient(node));
  for (const auto& prompt : prompts) worker.Run(prompt);
  worker.Idle();
  node.Flush();
  node.Die();
  node.Start();
}

TEST(WorkerAndNodeTest, WhatLiesOnDiskIsInMemoryWhenItsRequestHasWaited) {
  Play(1, [](Simulation& simulation) {
    std::vector<worker::GenerateRequest> requests;
    for (uint32_t seed = 1; seed <= 8; ++seed) requests.push_back(Prompt(300, seed));
    Node node(simulation);
    node.Start();
    PutOnDisk(simulation, node, requests);
    WorkerOptions options;
    options.scheduler = std::make_unique<worker::FifoScheduler>();
    Worker worker(simulation, NewClient(node), std::move(options));
    SimulatedPool callers(simulation);
    // It takes more than 90 ms, and so long the others wait.
    ASSERT_OK(callers.Post([&] { worker.Run(Prompt(900, 99)); }));
    simulation.Sleep(milliseconds(5));
    std::vector<GenerateSummary> got(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_OK(callers.Post([&, i] { got[i] = worker.Run(requests[i]); }));
    }
    callers.Stop();
    EXPECT_EQ(worker.engine().GetStats().lookahead_blocks, 8u * 4);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_GT(got[i].queue_seconds, 0.050) << i;
      EXPECT_EQ(got[i].fetched_tokens, 256u) << i;
      EXPECT_EQ(got[i].fetched.disk, 0u) << i;
      EXPECT_EQ(AnswerOf(got[i]), AnswerWithoutCache(simulation, requests[i])) << i;
    }
  });
}

TEST(WorkerAndNodeTest, ARequestThatDoesNotWaitIsNotAnnounced) {
  Play(1, [](Simulation& simulation) {
    const std::vector<worker::GenerateRequest> requests = {Prompt(300)};
    Node node(simulation);
    node.Start();
    PutOnDisk(simulation, node, requests);
    Worker worker(simulation, NewClient(node));
    const GenerateSummary got = worker.Run(requests[0]);
    EXPECT_EQ(got.fetched_tokens, 256u);
    EXPECT_GT(got.fetched.disk, 0u);
    EXPECT_EQ(worker.engine().GetStats().lookahead_blocks, 0u);
  });
}

// Requests at random times, most of which wait. Memory has room for all of their blocks.
TEST(WorkerAndNodeTest, LookAheadBringsNearlyAllBlocksWhoseRequestWaitedLongEnough) {
  uint64_t host = 0, disk = 0;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    Play(seed, [&](Simulation& simulation) {
      std::vector<worker::GenerateRequest> requests;
      for (uint32_t i = 1; i <= 40; ++i) {
        requests.push_back(Prompt(200 + 100 * simulation.Random(6), i));
      }
      Node node(simulation);
      node.Start();
      PutOnDisk(simulation, node, requests);
      WorkerOptions options;
      options.engine.queue_capacity = 64;
      options.engine.queue_max_wait = Duration(0);
      options.scheduler = std::make_unique<worker::FifoScheduler>();
      Worker worker(simulation, NewClient(node), std::move(options));
      SimulatedPool callers(simulation);
      std::vector<GenerateSummary> got(requests.size());
      for (size_t i = 0; i < requests.size(); ++i) {
        // A little slower than they are served: what is read ahead goes behind all demand.
        simulation.Sleep(milliseconds(simulation.Random(32)));
        ASSERT_OK(callers.Post([&, i] { got[i] = worker.Run(requests[i]); }));
      }
      callers.Stop();
      for (const GenerateSummary& one : got) {
        // A fetch from disk takes 2 ms for each four blocks, and 0.2 ms on the way.
        const double fetch = 0.001 + 0.002 * (one.fetched_tokens / 64 + 3) / 4;
        if (one.queue_seconds <= fetch) continue;
        host += one.fetched.host;
        disk += one.fetched.disk;
      }
    });
  }
  const double share = static_cast<double>(host) / static_cast<double>(host + disk);
  ::testing::Test::RecordProperty("share_in_memory", fmt::format("{:.4f}", share));
  EXPECT_GE(share, 0.98);
}

// A worker and a node to which everything happens that the seed says.
std::vector<std::string> PlayTroubles(uint64_t seed) {
  return Play(seed, [](Simulation& simulation) {
    Node node(simulation);
    node.Start();
    std::map<uint32_t, std::string> answers;
    for (uint32_t prompt = 0; prompt < 3; ++prompt) {
      answers[prompt] = AnswerWithoutCache(simulation, Prompt(200 + 100 * prompt, 1 + prompt % 2));
    }
    Worker worker(simulation, NewClient(node));
    for (int round = 0; round < 12; ++round) {
      if (!node.alive()) node.Start();
      Link& link = node.link();
      link = {};
      constexpr microseconds kLatencies[] = {microseconds(50), milliseconds(3), milliseconds(80)};
      link.latency = kLatencies[simulation.Random(3)];
      constexpr double kSpeeds[] = {1e9, 1e7, 1e6};
      link.bytes_per_second = kSpeeds[simulation.Random(3)];
      if (simulation.Random(4) == 0) link.dies_after_slices = simulation.Random(10);
      if (simulation.Random(4) == 0) link.silent_after_slices = simulation.Random(10);
      if (simulation.Random(2) == 0) worker.Idle();
      const auto prompt = static_cast<uint32_t>(simulation.Random(3));
      const GenerateSummary got = worker.Run(Prompt(200 + 100 * prompt, 1 + prompt % 2));
      EXPECT_EQ(AnswerOf(got), answers[prompt]) << "round " << round;
      simulation.Sleep(milliseconds(simulation.Random(2000)));
    }
  });
}

TEST(WorkerAndNodeTest, NoTroubleChangesAnAnswerAndASeedAlwaysPlaysTheSame) {
  const size_t threads = Threads();
  std::map<std::vector<std::string>, uint64_t> traces;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    const std::vector<std::string> trace = PlayTroubles(seed);
    EXPECT_EQ(PlayTroubles(seed), trace);
    EXPECT_TRUE(traces.emplace(trace, seed).second) << "played as seed " << traces[trace];
  }
  EXPECT_EQ(Threads(), threads);
}

}  // namespace
}  // namespace cairn::testing
