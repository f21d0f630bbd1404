// The engine without threads: what a driver sees, step by step.

#include "services/worker/engine/engine_core.h"

#include <algorithm>
#include <random>

#include "tests/support/methods.h"
#include "tests/unit/worker/engine/engine_fixture.h"

namespace cairn::worker {
namespace {

using Progress = EngineCore::Progress;
using std::chrono::seconds;

class EngineCoreTest : public EngineFixture {
 protected:
  std::unique_ptr<EngineCore> Core(std::unique_ptr<client::CacheClient> cache) {
    auto parts = LoadEngineParts(Options(), std::move(cache), nullptr, clock_);
    EXPECT_OK(parts);
    return std::make_unique<EngineCore>(*std::move(parts), &executor_);
  }
  // Steps until there is nothing to do. The driver's last word.
  static Progress Drive(EngineCore& core) {
    while (true) {
      const Progress progress = core.Step();
      if (progress != Progress::kWorked) return progress;
    }
  }
  std::shared_ptr<Job> Submit(EngineCore& core, const GenerateRequest& request) {
    auto job = core.Submit(request);
    EXPECT_OK(job);
    return *std::move(job);
  }

  // A worker that runs several requests.
  std::unique_ptr<EngineCore> Batch(WorkerEngine::Options options) {
    options.max_running = 4;
    auto parts = LoadEngineParts(options, nullptr, nullptr, clock_);
    EXPECT_OK(parts);
    return std::make_unique<EngineCore>(*std::move(parts), &executor_);
  }

  FakeClock clock_;
  ManualExecutor executor_;
};

TEST_F(EngineCoreTest, RequestsInABatchGetTheAnswersThatTheyGetAlone) {
  auto core = Batch(Options());
  std::vector<std::shared_ptr<Job>> jobs;
  std::vector<GenerateRequest> requests;
  for (int32_t i = 0; i < 6; ++i)
    requests.push_back(Request(100 + 90 * static_cast<size_t>(i), i + 1, 12));
  for (const GenerateRequest& request : requests) jobs.push_back(Submit(*core, request));
  EXPECT_EQ(Drive(*core), Progress::kIdle);
  auto alone = WorkerWithoutCache();
  for (size_t i = 0; i < jobs.size(); ++i) {
    const auto got = jobs[i]->Consume({});
    ASSERT_OK(got);
    ExpectSameAnswer(*got, Run(*alone, requests[i]));
  }
  EXPECT_EQ(core->GetStats().kv_pages_free, core->GetStats().kv_pages_total);
}

TEST_F(EngineCoreTest, RequestsThatDoNotFitInThePoolTogetherWaitForEachOther) {
  WorkerEngine::Options options = Options();
  options.kv_pool_bytes = 10 * kLayers * kLayerBytes;  // Ten blocks; each request needs six.
  auto core = Batch(options);
  std::vector<std::shared_ptr<Job>> jobs;
  for (int32_t i = 0; i < 3; ++i) jobs.push_back(Submit(*core, Request(340, i + 1)));
  EXPECT_EQ(Drive(*core), Progress::kIdle);
  for (const auto& job : jobs) EXPECT_OK(job->Consume({}));
}

// `parking`: memory for the KV of the one that gives way. 0: it is computed again.
class ParkingTest : public EngineCoreTest, public ::testing::WithParamInterface<uint64_t> {};

TEST_P(ParkingTest, AnUrgentRequestGetsThePagesOfOneThatIsNotWhichGoesOnLater) {
  WorkerEngine::Options options = Options();
  options.kv_pool_bytes = 10 * kLayers * kLayerBytes;
  options.parking_bytes = GetParam();
  auto core = Batch(options);
  GenerateRequest patient = Request(340, 1, 40);
  patient.priority = -1;
  const GenerateRequest urgent = Request(400, 2, 20);
  const auto first = Submit(*core, patient);
  while (first->generated() < 10) ASSERT_EQ(core->Step(), Progress::kWorked);
  const auto second = Submit(*core, urgent);
  while (core->GetStats().requests == 0) ASSERT_EQ(core->Step(), Progress::kWorked);
  EXPECT_EQ(second->generated(), 20u);
  EXPECT_LT(first->generated(), 15u);
  EXPECT_EQ(core->GetStats().requests_parked, 1u);
  EXPECT_EQ(Drive(*core), Progress::kIdle);
  auto alone = WorkerWithoutCache();
  for (const auto& [job, request] : {std::pair(first, patient), {second, urgent}}) {
    const auto got = job->Consume({});
    ASSERT_OK(got);
    ExpectSameAnswer(*got, Run(*alone, request));
  }
  EXPECT_EQ(core->GetStats().kv_pages_free, core->GetStats().kv_pages_total);
}

TEST_P(ParkingTest, AParkedRequestCanBeCancelled) {
  WorkerEngine::Options options = Options();
  options.kv_pool_bytes = 10 * kLayers * kLayerBytes;
  options.parking_bytes = GetParam();
  auto core = Batch(options);
  GenerateRequest patient = Request(340, 1, 40);
  patient.priority = -1;
  const auto first = Submit(*core, patient);
  while (first->generated() < 10) ASSERT_EQ(core->Step(), Progress::kWorked);
  const auto second = Submit(*core, Request(400, 2, 20));
  while (core->GetStats().requests_parked == 0) ASSERT_EQ(core->Step(), Progress::kWorked);
  EXPECT_EQ(core->GetLoad().parked, 0u);  // Since the next step.
  ASSERT_EQ(core->Step(), Progress::kWorked);
  EXPECT_EQ(core->GetLoad().parked, 1u);
  first->Cancel();
  ASSERT_EQ(core->Step(), Progress::kWorked);
  const auto got = first->Consume({});
  ASSERT_OK(got);
  EXPECT_EQ(got->finish_reason, "cancelled");
  EXPECT_GE(got->tokens.size(), 10u);
  EXPECT_EQ(Drive(*core), Progress::kIdle);
  EXPECT_OK(second->Consume({}));
}

TEST_F(EngineCoreTest, RandomSchedulesWithParkingGiveTheAnswersOfEachRequestAlone) {
  auto alone = WorkerWithoutCache();
  uint64_t parked = 0;
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto pick = [&](uint32_t below) { return static_cast<uint32_t>(random() % below); };
    WorkerEngine::Options options = Options();
    options.kv_pool_bytes = 14 * kLayers * kLayerBytes;
    const uint64_t memory[] = {0, 6 * kLayers * kLayerBytes, 1ull << 30};
    options.parking_bytes = memory[seed % 3];
    auto core = Batch(options);
    std::vector<GenerateRequest> requests;
    std::vector<std::shared_ptr<Job>> jobs;
    std::vector<bool> cancelled;
    while (jobs.size() < 12) {
      GenerateRequest request =
          Request(30 + pick(400), static_cast<int32_t>(pick(1000)), 1 + pick(40));
      request.priority = -static_cast<int32_t>(pick(4));
      jobs.push_back(Submit(*core, request));
      requests.push_back(std::move(request));
      cancelled.push_back(false);
      for (uint32_t steps = pick(25); steps > 0; --steps) core->Step();
      if (pick(6) == 0) {
        const uint32_t one = pick(static_cast<uint32_t>(jobs.size()));
        jobs[one]->Cancel();
        cancelled[one] = true;
      }
    }
    EXPECT_EQ(Drive(*core), Progress::kIdle);
    for (size_t i = 0; i < jobs.size(); ++i) {
      const auto got = jobs[i]->Consume({});
      ASSERT_OK(got);
      const GenerateSummary want = Run(*alone, requests[i]);
      if (!cancelled[i]) ExpectSameAnswer(*got, want);
      // Also what a cancelled request has is right.
      ASSERT_LE(got->tokens.size(), want.tokens.size());
      EXPECT_TRUE(std::equal(got->tokens.begin(), got->tokens.end(), want.tokens.begin()));
    }
    EXPECT_EQ(core->GetStats().kv_pages_free, core->GetStats().kv_pages_total);
    parked += core->GetStats().requests_parked;
  }
  EXPECT_GT(parked, 6u);
}

INSTANTIATE_TEST_SUITE_P(Memory, ParkingTest, ::testing::Values(0, 1ull << 30));

TEST_F(EngineCoreTest, ADeadlineEndsARequestThatWaitsAndOneThatRuns) {
  auto core = Core(nullptr);
  GenerateRequest request = Request(300, 1, 100);
  request.deadline = clock_.Now() + seconds(5);
  const auto runs = Submit(*core, request);
  const auto waits = Submit(*core, request);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(core->Step(), Progress::kWorked);
  EXPECT_LT(core->GetStats().kv_pages_free, core->GetStats().kv_pages_total);
  clock_.Advance(seconds(5));
  EXPECT_EQ(core->Step(), Progress::kWorked);
  EXPECT_EQ(core->GetStats().kv_pages_free, core->GetStats().kv_pages_total);
  EXPECT_EQ(Drive(*core), Progress::kIdle);
  const auto got = runs->Consume({});
  ASSERT_OK(got);
  EXPECT_EQ(got->finish_reason, "deadline");
  EXPECT_GT(got->tokens.size(), 0u);
  const auto late = waits->Consume({});
  ASSERT_OK(late);
  EXPECT_EQ(late->finish_reason, "deadline");
  EXPECT_TRUE(late->tokens.empty());
  EXPECT_EQ(core->GetStats().requests_expired, 2u);
  EXPECT_EQ(core->GetStats().requests_cancelled, 0u);
}

TEST_F(EngineCoreTest, ADeadlineInThePastIsAnError) {
  auto core = Core(nullptr);
  GenerateRequest request = Request(10);
  request.deadline = clock_.Now() - seconds(2);
  EXPECT_THAT(
      core->Submit(request).status(),
      testing::StatusIs(StatusCode::kInvalidArgument,
                        ::testing::HasSubstr("field 'deadline': got a time 2.000 s in the past")));
}

TEST_F(EngineCoreTest, ACallerThatLeavesGivesItsPagesBackInOneStep) {
  auto core = Batch(Options());
  const auto stays = Submit(*core, Request(200, 1, 200));
  const auto leaves = Submit(*core, Request(900, 2, 100));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(core->Step(), Progress::kWorked);
  const uint64_t before = core->GetStats().kv_pages_free;
  leaves->Cancel();
  EXPECT_EQ(core->Step(), Progress::kWorked);
  EXPECT_EQ(core->GetStats().kv_pages_free, before + 16);  // 1000 tokens.
  EXPECT_EQ(leaves->Consume({})->finish_reason, "cancelled");
  stays->Cancel();
  EXPECT_EQ(Drive(*core), Progress::kIdle);
}

TEST_F(EngineCoreTest, WhatIsCancelledInItsPromptSaysHowFarItGot) {
  auto core = Batch(Options());
  const auto job = Submit(*core, Request(900, 1, 20));
  // A chunk has at most 512 tokens.
  for (int i = 0; i < 3; ++i) ASSERT_EQ(core->Step(), Progress::kWorked);
  job->Cancel();
  Drive(*core);
  const auto got = job->Consume({});
  ASSERT_OK(got);
  EXPECT_EQ(got->finish_reason, "cancelled");
  EXPECT_GT(got->computed_tokens, 0u);
  EXPECT_LT(got->computed_tokens, 900u);
  EXPECT_EQ(got->computed_tokens % kBlockTokens, 0u);
  EXPECT_EQ(got->ttft_seconds, 0);
}

TEST_F(EngineCoreTest, AnAnswerEndsBeforeItsStopText) {
  auto core = Core(nullptr);
  GenerateRequest request = Request(50, 3, 40);
  const auto whole = Submit(*core, request);
  EXPECT_EQ(Drive(*core), Progress::kIdle);
  const auto all = whole->Consume({});
  ASSERT_OK(all);
  ASSERT_GT(all->text.size(), 8u);
  // From the middle of one token to the middle of another one, as likely as not.
  const auto character = [&](size_t byte) {
    while (byte < all->text.size() && (all->text[byte] & 0xc0) == 0x80) ++byte;
    return byte;
  };
  const size_t begin = character(all->text.size() / 2);
  request.stop = {all->text.substr(begin, character(begin + 3) - begin)};
  const size_t at = all->text.find(request.stop[0]);
  const auto stopped = Submit(*core, request);
  EXPECT_EQ(Drive(*core), Progress::kIdle);
  std::string streamed;
  GenerateCallbacks callbacks;
  callbacks.on_token = [&](model::TokenId, std::string_view text) {
    streamed += text;
    return true;
  };
  const auto got = stopped->Consume(callbacks);
  ASSERT_OK(got);
  EXPECT_EQ(got->text, all->text.substr(0, at));
  EXPECT_EQ(streamed, got->text);
  EXPECT_EQ(got->finish_reason, "stop");
  EXPECT_LT(got->tokens.size(), all->tokens.size());
}

TEST_F(EngineCoreTest, TheLoadSaysWhatWaitsAndWhatRuns) {
  auto core = Batch(Options());
  EXPECT_EQ(core->GetLoad().running_prompts, 0u);
  std::vector<std::shared_ptr<Job>> jobs;
  for (int32_t i = 0; i < 6; ++i) {
    GenerateRequest request = Request(300, i + 1, 100);
    request.priority = i == 5 ? -2 : 0;
    jobs.push_back(Submit(*core, request));
  }
  const WorkerEngine::Load waiting = core->GetLoad();
  ASSERT_EQ(waiting.queued.size(), 2u);
  EXPECT_EQ(waiting.queued[0].requests, 5u);
  EXPECT_EQ(waiting.queued[0].prefill_tokens, 1500u);
  EXPECT_EQ(waiting.queued[1].priority, -2);
  for (int i = 0; i < 30; ++i) EXPECT_EQ(core->Step(), Progress::kWorked);
  const WorkerEngine::Load running = core->GetLoad();
  EXPECT_EQ(running.running_decodes + running.running_prompts, 4u);
  EXPECT_GT(running.running_decodes, 0u);
  EXPECT_LT(running.kv_pages_free, running.kv_pages_total);
  for (const auto& job : jobs) job->Cancel();
  EXPECT_EQ(Drive(*core), Progress::kIdle);
}

TEST_F(EngineCoreTest, StepsTakeRequestsToTheirEndInTheThreadThatCallsThem) {
  auto core = Core(nullptr);
  EXPECT_EQ(core->Step(), Progress::kIdle);
  const auto first = Submit(*core, Request(300, 1));
  const auto second = Submit(*core, Request(200, 2));
  clock_.Advance(seconds(3));
  EXPECT_EQ(Drive(*core), Progress::kIdle);
  auto threaded = WorkerWithoutCache();
  for (const auto& [job, request] :
       {std::pair(first, Request(300, 1)), {second, Request(200, 2)}}) {
    const auto got = job->Consume({});
    ASSERT_OK(got);
    EXPECT_EQ(got->queue_seconds, 3);
    EXPECT_EQ(got->total_seconds, 0);  // No time passed while it was computed.
    ExpectSameAnswer(*got, Run(*threaded, request));
  }
}

TEST_F(EngineCoreTest, BlocksWaitUntilSomebodyPushes) {
  auto core = Core(std::make_unique<SharedClient>(node_));
  const auto job = Submit(*core, Request(300));
  EXPECT_EQ(Drive(*core), Progress::kIdle);
  EXPECT_OK(job->Consume({}));
  EXPECT_EQ(core->GetStats().push.queued_blocks, 4u);
  EXPECT_EQ(node_.complete_blocks(), 0u);
  EXPECT_TRUE(core->push_queue()->RunOnce());
  EXPECT_FALSE(core->push_queue()->RunOnce());
  EXPECT_EQ(node_.complete_blocks(), 4u);
}

// It is in no queue when the fetch could be asked whether somebody waits.
TEST_F(EngineCoreTest, ARequestThatComesBetweenMatchAndFetchDoesNotWaitForTheFetch) {
  {
    auto worker = Worker();
    Run(*worker, Request(500, 1));
    Idle(*worker);
  }
  WorkerEngine::Options options = Options();
  options.max_running = 4;
  auto parts = LoadEngineParts(options, std::make_unique<SharedClient>(node_), nullptr, clock_);
  ASSERT_OK(parts);
  auto core = std::make_unique<EngineCore>(*std::move(parts), &executor_);
  const auto slow = Submit(*core, Request(500, 1));
  while (executor_.Pending() == 0) ASSERT_EQ(core->Step(), Progress::kWorked);
  GenerateRequest other = Request(100, 2, 2);
  other.no_cache = true;
  const auto quick = Submit(*core, other);
  EXPECT_EQ(Drive(*core), Progress::kWaiting);
  EXPECT_EQ(quick->generated(), 2u);
  EXPECT_EQ(slow->generated(), 0u);
  executor_.RunAll();
  while (Drive(*core) != Progress::kIdle) executor_.RunAll();
  const auto got = slow->Consume({});
  ASSERT_OK(got);
  EXPECT_GT(got->fetched_tokens, 0u);
}

TEST_F(EngineCoreTest, AFinishedTurnIsAStepOfItsOwn) {
  auto core = Core(std::make_unique<SharedClient>(node_));
  GenerateRequest request = Request(120, 1, 16);
  request.keep_turn = true;
  const auto job = Submit(*core, request);
  while (core->GetStats().requests == 0) ASSERT_EQ(core->Step(), Progress::kWorked);
  EXPECT_EQ(core->GetStats().idle_prefilled_tokens, 0u);
  EXPECT_EQ(core->Step(), Progress::kWorked);
  EXPECT_GT(core->GetStats().idle_prefilled_tokens, 0u);
  EXPECT_EQ(core->Step(), Progress::kIdle);
}

TEST_F(EngineCoreTest, AFinishedTurnWithoutPagesWaitsForThePushesOfItsRequest) {
  if (!testing::kBuiltWithMethods) GTEST_SKIP() << testing::kNoMethods;
  WorkerEngine::Options options = Options();
  options.read_policy = "precision:rows=0.05";
  auto parts = LoadEngineParts(options, std::make_unique<SharedClient>(node_), nullptr, clock_);
  ASSERT_OK(parts);
  InlineExecutor executor;
  EngineCore core(*std::move(parts), &executor);
  GenerateRequest request = Request(250, 1, 20);
  request.keep_turn = true;
  const auto job = Submit(core, request);
  EXPECT_EQ(Drive(core), Progress::kWaiting);
  EXPECT_OK(job->Consume({}));
  EXPECT_EQ(core.GetStats().idle_prefilled_tokens, 0u);
  while (core.push_queue()->RunOnce()) {
  }
  EXPECT_EQ(core.Step(), Progress::kWorked);
  EXPECT_EQ(core.GetStats().idle_prefilled_tokens, 64u) << "the three blocks before are fetched";
  EXPECT_EQ(core.Step(), Progress::kIdle);
}

TEST_F(EngineCoreTest, ClosingCancelsWhatIsNotDoneByTheDeadline) {
  auto core = Core(nullptr);
  const auto running = Submit(*core, Request(900));
  ASSERT_EQ(core->Step(), Progress::kWorked);
  const auto waiting = Submit(*core, Request(300));
  core->Close(clock_.Now());
  EXPECT_THAT(core->Submit(Request(300)).status(),
              testing::StatusIs(StatusCode::kUnavailable, ::testing::_));
  EXPECT_EQ(Drive(*core), Progress::kFinished);
  core->Finish(clock_.Now());
  for (const auto& job : {running, waiting}) {
    const auto got = job->Consume({});
    ASSERT_OK(got);
    EXPECT_EQ(got->finish_reason, "cancelled");
  }
  EXPECT_EQ(core->GetStats().kv_pages_free, core->GetStats().kv_pages_total);
}

}  // namespace
}  // namespace cairn::worker
