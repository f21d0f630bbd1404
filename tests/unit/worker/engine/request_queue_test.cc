#include "services/worker/engine/request_queue.h"

#include <thread>

#include "common/status/matchers.h"

namespace cairn::worker {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<Job> MakeJob(const std::string& tenant = {}) {
  GenerateRequest request;
  request.tenant = tenant;
  PreparedPrompt prompt;
  prompt.tokens = {1, 2, 3};
  return std::make_shared<Job>(request, prompt, SteadyClock::Get());
}

class RequestQueueTest : public ::testing::Test {
 protected:
  RequestQueue Queue(size_t capacity) {
    return RequestQueue({.capacity = capacity}, accounts_, "own", SteadyClock::Get(), wakeup_);
  }
  Status Put(RequestQueue& queue, const std::shared_ptr<Job>& job) {
    return queue.Put(job, &displaced_);
  }

  TenantAccounts accounts_;
  Wakeup wakeup_;
  std::shared_ptr<Job> displaced_;
};

TEST_F(RequestQueueTest, TheOldestFirstUpToItsCapacity) {
  RequestQueue queue = Queue(2);
  const auto first = MakeJob(), second = MakeJob();
  EXPECT_OK(Put(queue, first));
  EXPECT_OK(Put(queue, second));
  EXPECT_THAT(
      Put(queue, MakeJob()),
      testing::StatusIs(StatusCode::kResourceExhausted,
                        ::testing::AllOf(HasSubstr("2 requests wait"), HasSubstr("try again in"))));
  EXPECT_EQ(queue.Take(), first);
  EXPECT_EQ(queue.Take(), second);
  EXPECT_EQ(queue.Take(), nullptr);
}

TEST_F(RequestQueueTest, RequestsWithoutATenantAreTheWorkers) {
  RequestQueue queue = Queue(2);
  const auto job = MakeJob();
  EXPECT_OK(Put(queue, job));
  EXPECT_EQ(accounts_.Enter("own"), job->claim().tenant);
}

TEST_F(RequestQueueTest, WhoLosesItsPlaceIsHandedBack) {
  RequestQueue queue = Queue(2);
  const auto first = MakeJob("flood"), second = MakeJob("flood");
  EXPECT_OK(Put(queue, first));
  EXPECT_OK(Put(queue, second));
  EXPECT_OK(Put(queue, MakeJob("other")));
  EXPECT_EQ(displaced_, second);
  EXPECT_EQ(queue.size(), 2u);
}

TEST_F(RequestQueueTest, CancelledRequestsGiveTheirPlacesBack) {
  RequestQueue queue = Queue(3);
  const auto gone = MakeJob(), stays = MakeJob();
  EXPECT_OK(Put(queue, gone));
  EXPECT_OK(Put(queue, stays));
  gone->Cancel();
  const auto ended = queue.TakeEnded();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0], gone);
  EXPECT_EQ(queue.size(), 1u);
  EXPECT_EQ(queue.Take(), stays);
}

TEST_F(RequestQueueTest, CloseRefusesButLetsTheRestBeTaken) {
  RequestQueue queue = Queue(2);
  EXPECT_OK(Put(queue, MakeJob()));
  queue.Close();
  EXPECT_THAT(Put(queue, MakeJob()), testing::StatusIs(StatusCode::kUnavailable, ::testing::_));
  EXPECT_NE(queue.Take(), nullptr);
  EXPECT_EQ(queue.Take(), nullptr);
}

TEST_F(RequestQueueTest, ARequestAndTheEndWakeTheDriver) {
  RequestQueue queue = Queue(1);
  const uint64_t before = wakeup_.Now();
  EXPECT_OK(Put(queue, MakeJob()));
  const uint64_t put = wakeup_.Now();
  EXPECT_GT(put, before);
  queue.Close();
  EXPECT_GT(wakeup_.Now(), put);
}

TEST_F(RequestQueueTest, TheFirstDeadlineIsThatOfAnyWaitingRequest) {
  RequestQueue queue = Queue(2);
  EXPECT_OK(Put(queue, MakeJob()));
  EXPECT_EQ(queue.FirstDeadline(), TimePoint::max());
  GenerateRequest request;
  request.deadline = SteadyClock::Get().Now() + std::chrono::hours(1);
  EXPECT_OK(Put(queue, std::make_shared<Job>(request, PreparedPrompt(), SteadyClock::Get())));
  EXPECT_EQ(queue.FirstDeadline(), *request.deadline);
}

TEST(JobTest, ACallerThatLeavesOrTakesScoresWakesTheDriver) {
  Wakeup wakeup;
  Job job(GenerateRequest(), PreparedPrompt(), SteadyClock::Get(), &wakeup);
  job.PutScores(0, 1, {1.0f});
  job.Finish(GenerateSummary());
  EXPECT_EQ(wakeup.Now(), 0u);
  EXPECT_OK(job.Consume({}));
  EXPECT_EQ(wakeup.Now(), 1u);
  job.Cancel();
  EXPECT_EQ(wakeup.Now(), 2u);
}

TEST(JobTest, TokensComeInOrderBeforeTheOutcome) {
  const auto job = MakeJob();
  std::thread engine([&] {
    for (int i = 0; i < 100; ++i) job->PutToken(i, fmt::format("{} ", i));
    GenerateSummary summary;
    summary.finish_reason = "length";
    job->Finish(summary);
  });
  std::vector<model::TokenId> ids;
  GenerateCallbacks callbacks;
  callbacks.on_token = [&](model::TokenId id, std::string_view text) {
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
    job->Finish(EndedSummary(*job, SteadyClock::Get().Now()));
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
