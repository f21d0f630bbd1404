// The engine without threads: what a driver sees, step by step.

#include "services/worker/engine/engine_core.h"

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

  FakeClock clock_;
  ManualExecutor executor_;
};

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
