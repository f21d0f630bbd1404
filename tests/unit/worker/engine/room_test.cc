// Who gets the pages of a pool that is too small for all.

#include <algorithm>
#include <vector>

#include "services/worker/engine/engine_core.h"
#include "services/worker/scheduling/prompt_queue.h"
#include "tests/unit/worker/engine/engine_fixture.h"

namespace cairn::worker {
namespace {

using Progress = EngineCore::Progress;

// All requests step in each step. It says that it has measured a speed, since no time passes on the
// fake clock while tokens are computed.
class EverybodySteps final : public Scheduler {
 public:
  explicit EverybodySteps(size_t max_running) : max_running_(max_running) {}
  size_t max_running() const override { return max_running_; }
  StepPlan Next(std::span<const Candidate> running, TimePoint /*now*/) override {
    StepPlan plan;
    for (size_t i = 0; i < running.size(); ++i) plan.order.push_back(i);
    return plan;
  }
  MeasuredRates rates() const override { return {.prefill_tokens_per_second = 1000}; }

 private:
  const size_t max_running_;
};

class RoomTest : public EngineFixture {
 protected:
  // A worker that runs `running` requests in a pool of `pages` blocks.
  std::unique_ptr<EngineCore> Core(uint64_t pages, uint32_t running = 4,
                                   uint64_t parking_bytes = 1ull << 30) {
    WorkerEngine::Options options = Options();
    options.kv_pool_bytes = pages * kLayers * kLayerBytes;
    options.parking_bytes = parking_bytes;
    options.queue_capacity = 64;
    auto parts =
        LoadEngineParts(options, nullptr, std::make_unique<EverybodySteps>(running), clock_);
    EXPECT_OK(parts);
    return std::make_unique<EngineCore>(*std::move(parts), &executor_);
  }
  static std::shared_ptr<Job> Submit(EngineCore& core, const GenerateRequest& request) {
    auto job = core.Submit(request);
    EXPECT_OK(job);
    return *std::move(job);
  }
  // Goes before those of the usual tenant, which was served more.
  static GenerateRequest First(GenerateRequest request) {
    request.tenant = "first";
    return request;
  }
  static Progress Drive(EngineCore& core) {
    while (true) {
      const Progress progress = core.Step();
      if (progress != Progress::kWorked) return progress;
    }
  }

  FakeClock clock_;
  ManualExecutor executor_;
};

TEST_F(RoomTest, ASmallRequestDoesNotWaitBehindOneThatDoesNotFitYet) {
  auto core = Core(12);
  const auto runs = Submit(*core, Request(400, 1, 100));  // 8 blocks.
  while (runs->generated() == 0) ASSERT_EQ(core->Step(), Progress::kWorked);
  const auto large = Submit(*core, First(Request(600, 2, 8)));  // 10 blocks.
  const auto small = Submit(*core, Request(100, 3, 8));         // 2 blocks.
  while (small->generated() < 8) ASSERT_EQ(core->Step(), Progress::kWorked);
  EXPECT_LT(runs->generated(), 60u);
  EXPECT_EQ(large->generated(), 0u);
  EXPECT_EQ(Drive(*core), Progress::kIdle);
  for (const auto& job : {runs, large, small}) EXPECT_OK(job->Consume({}));
}

TEST_F(RoomTest, SmallRequestsDoNotKeepALargeOneOut) {
  auto core = Core(12);
  std::vector<std::shared_ptr<Job>> small;
  for (int32_t i = 0; i < 2; ++i) small.push_back(Submit(*core, Request(100, i, 8)));
  while (small[0]->generated() == 0) ASSERT_EQ(core->Step(), Progress::kWorked);
  const auto large = Submit(*core, First(Request(700, 100, 8)));  // 12 blocks: all there are.
  for (int32_t i = 2; i < 50; ++i) small.push_back(Submit(*core, Request(100, i, 8)));
  while (large->generated() == 0) ASSERT_EQ(core->Step(), Progress::kWorked);
  const auto done =
      std::ranges::count_if(small, [](const auto& job) { return job->generated() == 8; });
  EXPECT_EQ(done, 2 + std::ptrdiff_t{PromptQueue::kMostPasses});
  EXPECT_EQ(Drive(*core), Progress::kIdle);
}

// `GetParam`: memory for the KV of a request that is parked.
class RoomForAnswersTest : public RoomTest, public ::testing::WithParamInterface<uint64_t> {};

TEST_P(RoomForAnswersTest, LongAnswersBeginTogetherAndGetTheirPagesAsTheyGrow) {
  auto core = Core(16, 4, GetParam());
  std::vector<GenerateRequest> requests;
  std::vector<std::shared_ptr<Job>> jobs;
  // Each needs up to 14 blocks, and 6 to begin.
  for (int32_t i = 0; i < 2; ++i) requests.push_back(Request(100, i + 1, 750));
  for (const GenerateRequest& request : requests) jobs.push_back(Submit(*core, request));
  while (jobs[1]->generated() < 100) ASSERT_EQ(core->Step(), Progress::kWorked);
  EXPECT_LT(jobs[0]->generated(), 200u);
  EXPECT_EQ(core->GetStats().requests_parked, 0u);
  EXPECT_EQ(Drive(*core), Progress::kIdle);
  EXPECT_EQ(core->GetStats().requests_parked, 1u);  // It has all pages when it comes back.
  auto alone = WorkerWithoutCache();
  for (size_t i = 0; i < jobs.size(); ++i) {
    const auto got = jobs[i]->Consume({});
    ASSERT_OK(got);
    ExpectSameAnswer(*got, Run(*alone, requests[i]));
  }
  EXPECT_EQ(core->GetStats().kv_pages_free, core->GetStats().kv_pages_total);
}

INSTANTIATE_TEST_SUITE_P(Memory, RoomForAnswersTest, ::testing::Values(0, 1ull << 30));

TEST_F(RoomTest, WhoeverHoldsPagesForLongGoesLater) {
  auto core = Core(16, 2);
  const auto submit = [&](const std::string& tenant, GenerateRequest request) {
    request.tenant = tenant;
    return Submit(*core, request);
  };
  const auto step = [&] {
    ASSERT_EQ(core->Step(), Progress::kWorked);
    clock_.Advance(std::chrono::milliseconds(100));
  };
  const auto holds = submit("holds", Request(600, 1, 200));  // 13 of 16 blocks.
  while (holds->generated() < 5) step();
  // The other tenant gets more tokens, but in few blocks.
  std::shared_ptr<Job> last;
  for (int32_t i = 0; i < 10; ++i) {
    last = submit("computes", Request(100, 10 + i, 8));
    while (last->generated() < (i < 9 ? 8u : 1u)) step();
  }
  const auto second = submit("holds", Request(100, 30, 8));
  const auto third = submit("computes", Request(100, 31, 8));
  while (second->generated() + third->generated() == 0) step();
  EXPECT_EQ(second->generated(), 0u);
  EXPECT_EQ(Drive(*core), Progress::kIdle);
}

}  // namespace
}  // namespace cairn::worker
