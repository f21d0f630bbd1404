// Several requests that run at the same time, in steps: every answer is the one that the request
// gets alone.

#include <algorithm>
#include <atomic>
#include <future>

#include "services/worker/scheduling/scheduler.h"
#include "tests/unit/worker/engine/engine_fixture.h"

namespace cairn::worker {
namespace {

// The observations of a test scheduler. Shared with the test's thread.
struct Seen {
  std::atomic<size_t> wait_for{1};    // Nobody steps before this many requests run.
  std::atomic<uint64_t> switches{0};  // Rounds that stepped another request than the round before.
  std::atomic<uint64_t> decode_rounds{0};  // Rounds in which two requests decode.
};

// Steps one request a round, each in its turn.
class Alternate : public Scheduler {
 public:
  explicit Alternate(Seen& seen) : seen_(seen) {}
  size_t max_running() const override { return 3; }
  StepPlan Next(std::span<const Candidate> running, TimePoint /*now*/) override {
    if (!Gathered(running)) return {};
    const size_t pick = round_++ % running.size();
    if (running[pick].id != last_) ++seen_.switches;
    last_ = running[pick].id;
    return {.order = {pick}};
  }

 protected:
  bool Gathered(std::span<const Candidate> running) {
    if (running.size() < seen_.wait_for) return false;
    seen_.wait_for = 1;
    return true;
  }
  Seen& seen_;

 private:
  size_t round_ = 0;
  uint64_t last_ = 0;
};

// Steps all requests in each round: their chunks share the forward pass.
class Together final : public Alternate {
 public:
  using Alternate::Alternate;
  StepPlan Next(std::span<const Candidate> running, TimePoint /*now*/) override {
    if (!Gathered(running)) return {};
    if (std::ranges::count(running, true, &Candidate::decoding) > 1) ++seen_.decode_rounds;
    std::vector<size_t> all;
    for (size_t i = 0; i < running.size(); ++i) all.push_back(i);
    return {.order = std::move(all)};
  }
};

class RunLoopTest : public EngineFixture {
 protected:
  template <typename Policy>
  std::unique_ptr<WorkerEngine> WorkerWith(const WorkerEngine::Options& options = Options()) {
    auto engine = WorkerEngine::Create(options, std::make_unique<SharedClient>(node_),
                                       std::make_unique<Policy>(seen_));
    EXPECT_OK(engine);
    return *std::move(engine);
  }
  static std::future<Result<GenerateSummary>> Begin(WorkerEngine& worker, GenerateRequest request,
                                                    GenerateCallbacks callbacks = {}) {
    return std::async(std::launch::async,
                      [&worker, request = std::move(request), callbacks = std::move(callbacks)] {
                        return worker.Generate(request, callbacks);
                      });
  }
  // All run at the same time, from the first step on.
  std::vector<GenerateSummary> RunAtOnce(WorkerEngine& worker,
                                         const std::vector<GenerateRequest>& requests) {
    seen_.wait_for = requests.size();
    std::vector<std::future<Result<GenerateSummary>>> running;
    for (const GenerateRequest& request : requests) running.push_back(Begin(worker, request));
    std::vector<GenerateSummary> summaries;
    for (auto& one : running) {
      Result<GenerateSummary> summary = one.get();
      EXPECT_OK(summary);
      summaries.push_back(summary.ok() ? *summary : GenerateSummary());
    }
    return summaries;
  }

  Seen seen_;
};

TEST_F(RunLoopTest, ChunksOfTwoPromptsTakeTurns) {
  const std::vector<GenerateRequest> requests = {Request(900, 1), Request(700, 2)};
  auto alone = WorkerWithoutCache();
  auto worker = WorkerWith<Alternate>();
  const auto got = RunAtOnce(*worker, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    ExpectSameAnswer(got[i], Run(*alone, requests[i]));
    EXPECT_EQ(got[i].fetched_tokens, 0u);
  }
  // Each has at least three chunks and eight tokens.
  EXPECT_GE(seen_.switches, 16u);
}

TEST_F(RunLoopTest, RequestsThatShareForwardPassesGetTheirOwnAnswers) {
  const std::vector<GenerateRequest> requests = {Request(300, 1, 24), Request(170, 2, 24),
                                                 Request(64, 3, 24)};
  auto alone = WorkerWithoutCache();
  auto worker = WorkerWith<Together>();
  const auto got = RunAtOnce(*worker, requests);
  for (size_t i = 0; i < requests.size(); ++i) ExpectSameAnswer(got[i], Run(*alone, requests[i]));
  EXPECT_GE(seen_.decode_rounds, 8u);
}

TEST_F(RunLoopTest, PromptsThatShareTheEngineFetchAndPush) {
  const std::vector<GenerateRequest> requests = {Request(900, 1), Request(700, 2)};
  auto alone = WorkerWithoutCache();
  auto worker = WorkerWith<Together>();
  RunAtOnce(*worker, requests);
  Idle(*worker);
  EXPECT_EQ(node_.complete_blocks(), 900u / kBlockTokens + 700u / kBlockTokens);

  const auto got = RunAtOnce(*worker, requests);
  EXPECT_EQ(got[0].fetched_tokens, 896u);
  EXPECT_EQ(got[1].fetched_tokens, 640u);
  for (size_t i = 0; i < requests.size(); ++i) ExpectSameAnswer(got[i], Run(*alone, requests[i]));
  EXPECT_EQ(node_.leases(), 0u);
}

TEST_F(RunLoopTest, AFetchThatHangsHoldsUpNobodyElse) {
  auto worker = WorkerWith<Alternate>();
  const GenerateRequest slow = Request(500, 1);
  GenerateRequest other = Request(100, 2, 2);  // Over before the fetch takes too long.
  other.no_cache = true;
  const GenerateSummary want_slow = Run(*worker, slow);
  const GenerateSummary want_other = Run(*worker, other);
  Idle(*worker);

  node_.SetFaults(Fault(&Faults::hang_fetch_after, std::optional<uint64_t>(1)));
  auto waiting = Begin(*worker, slow);
  node_.WaitForHang();
  ExpectSameAnswer(Run(*worker, other), want_other);
  EXPECT_EQ(waiting.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  node_.SetFaults({});  // The fetch ends with an error; what is missing is computed.
  const auto got = waiting.get();
  ASSERT_OK(got);
  ExpectSameAnswer(*got, want_slow);
}

TEST_F(RunLoopTest, ARequestThatWaitsForAFetchCanBeCancelled) {
  auto worker = WorkerWith<Alternate>();
  const GenerateRequest request = Request(500, 1);
  Run(*worker, request);
  Idle(*worker);

  node_.SetFaults(Fault(&Faults::hang_fetch_after, std::optional<uint64_t>(1)));
  std::atomic<bool> cancel{false};
  GenerateCallbacks callbacks;
  callbacks.cancelled = [&] { return cancel.load(); };
  auto waiting = Begin(*worker, request, callbacks);
  node_.WaitForHang();
  cancel = true;
  const auto got = waiting.get();
  ASSERT_OK(got);
  EXPECT_EQ(got->finish_reason, "cancelled");
  EXPECT_TRUE(got->tokens.empty());
  EXPECT_LT(got->total_seconds, 30) << "the fetch would be given up after 60";
  Idle(*worker);
  EXPECT_EQ(worker->GetStats().kv_pages_free, worker->GetStats().kv_pages_total);
}

TEST_F(RunLoopTest, ARequestThatWaitsForAFetchEndsAtItsDeadline) {
  auto worker = WorkerWith<Alternate>();
  GenerateRequest request = Request(500, 1);
  Run(*worker, request);
  Idle(*worker);

  node_.SetFaults(Fault(&Faults::hang_fetch_after, std::optional<uint64_t>(1)));
  request.deadline = SteadyClock::Get().Now() + std::chrono::seconds(1);
  const GenerateSummary got = Run(*worker, request);
  EXPECT_EQ(got.finish_reason, "deadline");
  EXPECT_LT(got.total_seconds, 30) << "the fetch would be given up after 60";
  Idle(*worker);
  EXPECT_EQ(worker->GetStats().kv_pages_free, worker->GetStats().kv_pages_total);
}

TEST_F(RunLoopTest, AFetchThatBringsNothingForTooLongIsComputed) {
  auto worker = WorkerWith<Alternate>(Impatient());
  const GenerateRequest request = Request(500, 1);
  const GenerateSummary want = Run(*worker, request);
  Idle(*worker);
  node_.SetFaults(Fault(&Faults::hang_fetch_after, std::optional<uint64_t>(1)));
  const GenerateSummary got = Run(*worker, request);
  ExpectSameAnswer(got, want);
  EXPECT_EQ(got.miss_reason, MissReason::kDeadline);
}

TEST_F(RunLoopTest, ScoresOfTwoRequestsAreThoseOfEachAlone) {
  const auto scoring = [](int32_t seed) {
    GenerateRequest request = Request(128, seed);
    request.score_tokens = std::get<TokenPrompt>(Request(200, seed + 10).prompt).ids;
    return request;
  };
  const auto scores = [](WorkerEngine& worker, const GenerateRequest& request) {
    std::vector<float> all;
    GenerateCallbacks callbacks;
    callbacks.on_scores = [&](size_t, size_t, std::span<const float> logits) {
      all.insert(all.end(), logits.begin(), logits.end());
      return true;
    };
    EXPECT_OK(worker.Generate(request, callbacks));
    return all;
  };
  auto alone = WorkerWithoutCache();
  auto worker = WorkerWith<Together>();
  seen_.wait_for = 2;
  auto first = std::async(std::launch::async, [&] { return scores(*worker, scoring(1)); });
  const std::vector<float> second = scores(*worker, scoring(2));
  EXPECT_EQ(first.get(), scores(*alone, scoring(1)));
  EXPECT_EQ(second, scores(*alone, scoring(2)));
}

}  // namespace
}  // namespace cairn::worker
