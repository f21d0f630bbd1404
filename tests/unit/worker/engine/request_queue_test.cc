#include "services/worker/engine/request_queue.h"

#include <thread>

#include "common/status/matchers.h"

namespace cairn::worker {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<Job> MakeJob() {
  PreparedPrompt prompt;
  prompt.tokens = {1, 2, 3};
  return std::make_shared<Job>(GenerateRequest(), prompt, SteadyClock::Get());
}

TEST(RequestQueueTest, FirstInFirstOutUpToItsCapacity) {
  RequestQueue queue(2, SteadyClock::Get());
  const auto first = MakeJob(), second = MakeJob();
  EXPECT_OK(queue.Put(first));
  EXPECT_OK(queue.Put(second));
  EXPECT_THAT(queue.Put(MakeJob()),
              testing::StatusIs(StatusCode::kResourceExhausted, HasSubstr("2 requests wait")));
  EXPECT_EQ(queue.Take(), first);
  EXPECT_EQ(queue.Take(), second);
  EXPECT_EQ(queue.Take(), nullptr);
}

TEST(RequestQueueTest, CancelledRequestsGiveTheirPlacesBack) {
  RequestQueue queue(3, SteadyClock::Get());
  const auto gone = MakeJob(), stays = MakeJob();
  EXPECT_OK(queue.Put(gone));
  EXPECT_OK(queue.Put(stays));
  gone->Cancel();
  const auto cancelled = queue.TakeCancelled();
  ASSERT_EQ(cancelled.size(), 1u);
  EXPECT_EQ(cancelled[0], gone);
  EXPECT_EQ(queue.size(), 1u);
  EXPECT_EQ(queue.Take(), stays);
}

TEST(RequestQueueTest, CloseRefusesButLetsTheRestBeTaken) {
  RequestQueue queue(2, SteadyClock::Get());
  EXPECT_OK(queue.Put(MakeJob()));
  queue.Close();
  EXPECT_THAT(queue.Put(MakeJob()), testing::StatusIs(StatusCode::kUnavailable, ::testing::_));
  EXPECT_NE(queue.Take(), nullptr);
  EXPECT_EQ(queue.Take(), nullptr);
}

TEST(RequestQueueTest, ARequestAndTheEndWakeTheDriver) {
  RequestQueue queue(1, SteadyClock::Get());
  std::thread driver([&] {
    queue.WaitForJob();
    EXPECT_NE(queue.Take(), nullptr);
    queue.WaitForJob();
    EXPECT_TRUE(queue.closed());
  });
  EXPECT_OK(queue.Put(MakeJob()));
  queue.Close();
  driver.join();
}

TEST(JobTest, TokensComeInOrderBeforeTheOutcome) {
  const auto job = MakeJob();
  std::thread engine([&] {
    for (int i = 0; i < 100; ++i) job->PutToken(i, fmt::format("{} ", i));
    GenerateSummary summary;
    summary.finish_reason = "length";
    job->Finish(summary);
  });
  std::vector<TokenId> ids;
  GenerateCallbacks callbacks;
  callbacks.on_token = [&](TokenId id, std::string_view text) {
    EXPECT_EQ(text, fmt::format("{} ", id));
    ids.push_back(id);
    return true;
  };
  const auto outcome = job->Consume(callbacks);
  engine.join();
  ASSERT_OK(outcome);
  EXPECT_EQ(outcome->finish_reason, "length");
  ASSERT_EQ(ids.size(), 100u);
  EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
}

TEST(JobTest, CallerThatLeavesCancelsTheJob) {
  const auto job = MakeJob();
  std::thread engine([&] {
    while (!job->cancelled()) std::this_thread::yield();
    job->Finish(CancelledSummary(*job, SteadyClock::Get().Now()));
  });
  GenerateCallbacks callbacks;
  callbacks.cancelled = [] { return true; };
  const auto outcome = job->Consume(callbacks);
  engine.join();
  ASSERT_OK(outcome);
  EXPECT_EQ(outcome->finish_reason, "cancelled");
  EXPECT_EQ(outcome->prompt_tokens, 3u);
}

}  // namespace
}  // namespace cairn::worker
