#include "services/worker/engine/request_queue.h"

#include <thread>

#include "common/status/matchers.h"

namespace cairn::worker {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<Job> MakeJob() {
  PreparedPrompt prompt;
  prompt.tokens = {1, 2, 3};
  return std::make_shared<Job>(GenerateRequest(), prompt, SteadyClock::Get().Now());
}

TEST(RequestQueueTest, FirstInFirstOutUpToItsCapacity) {
  RequestQueue queue(2);
  const auto first = MakeJob(), second = MakeJob();
  EXPECT_OK(queue.Put(first));
  EXPECT_OK(queue.Put(second));
  EXPECT_THAT(queue.Put(MakeJob()),
              testing::StatusIs(StatusCode::kResourceExhausted, HasSubstr("2 requests wait")));
  EXPECT_EQ(queue.Take(false), first);
  EXPECT_EQ(queue.Take(true), second);
  EXPECT_EQ(queue.Take(true), nullptr);
}

TEST(RequestQueueTest, CancelledRequestsGiveTheirPlacesBack) {
  RequestQueue queue(3);
  const auto gone = MakeJob(), stays = MakeJob();
  EXPECT_OK(queue.Put(gone));
  EXPECT_OK(queue.Put(stays));
  gone->Cancel();
  const auto cancelled = queue.TakeCancelled();
  ASSERT_EQ(cancelled.size(), 1u);
  EXPECT_EQ(cancelled[0], gone);
  EXPECT_EQ(queue.size(), 1u);
  EXPECT_EQ(queue.Take(true), stays);
}

TEST(RequestQueueTest, CloseRefusesButLetsTheRestBeTaken) {
  RequestQueue queue(2);
  EXPECT_OK(queue.Put(MakeJob()));
  queue.Close();
  EXPECT_THAT(queue.Put(MakeJob()), testing::StatusIs(StatusCode::kUnavailable, ::testing::_));
  EXPECT_NE(queue.Take(false), nullptr);
  EXPECT_EQ(queue.Take(false), nullptr);  // Does not wait.
}

TEST(RequestQueueTest, CloseWakesAWaitingTake) {
  RequestQueue queue(1);
  std::thread taker([&] { EXPECT_EQ(queue.Take(false), nullptr); });
  queue.Close();
  taker.join();
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
