// Requests that two workers share: one computes the prompt, the other one answers.

#include <gtest/gtest.h>

#include "tests/unit/router/engine/engine_fixture.h"

namespace cairn::router {
namespace {

using std::chrono::seconds;

constexpr uint32_t kContext = 512;
constexpr uint32_t kPrompt = 300;  // Tokens: 4 full blocks and a rest.
constexpr uint32_t kHanded = 256;
constexpr double kSpeed = 1000;  // The speed of all workers: tokens per second.

struct Got final : GenerateObserver {
  void OnToken(model::TokenId, std::string_view) override { ++tokens; }
  void OnDone(const GenerateSummary& summary) override { done = summary; }
  void OnError(const GenerateError& got) override { error = got; }
  int tokens = 0;
  std::optional<GenerateSummary> done;
  std::optional<GenerateError> error;
};

// The workers "p:1" and "p:2" may compute prompts, "d:1" and "d:2" answer.
class PairingRunTest : public EngineFixture {
 protected:
  static constexpr const char* kAddresses[] = {"p:1", "p:2", "d:1", "d:2"};

  void SetUp() override {
    LoadModel();
    MakeDispatcher({std::begin(kAddresses), std::end(kAddresses)});
    Make({});
  }
  void TearDown() override {
    calls_.clear();
    EndAll();
    for (const auto& worker : dispatcher_->numbers().workers) {
      EXPECT_EQ(worker.followed, 0u) << worker.worker;
    }
  }
  void Make(RouterEngine::Options options) {
    options.context_tokens = kContext;
    options.exact_index = true;
    MakeEngine(options);
  }
  void Reach(const std::string& address, WorkerRole role, const std::string& node = "node",
             uint32_t decodes = 0, double queue_seconds = 0) {
    WorkerInfo info;
    info.block_tokens = 64;
    info.context_tokens = kContext;
    info.fingerprint = Sha256::Of("namespace");
    info.role = role;
    WorkerReport report;
    report.cache_node_id = node;
    report.load.prefill_tokens_per_second = kSpeed;
    report.load.prefill_seconds = queue_seconds;
    report.load.running_decodes = decodes;
    workers_.Reach(address, info, report);
  }
  // A prompt delays eight answers at d:1, and nothing at p:1.
  void ReachPair() {
    Reach("p:1", WorkerRole::kPrefill);
    Reach("d:1", WorkerRole::kDecode, "node", 8);
  }
  std::shared_ptr<Got> Send(std::optional<TimePoint> deadline = {}) {
    GenerateRequest request;
    request.prompt = std::vector<model::TokenId>(kPrompt, 30);
    request.deadline = deadline;
    auto got = std::make_shared<Got>();
    calls_.push_back(engine_->Generate(std::move(request), got));
    executor_.RunAll();
    return got;
  }
  // The last request that the worker got, if it is open.
  FakeRequest* At(const std::string& address) {
    auto& requests = workers_[address].requests;
    return requests.empty() || requests.back().observer == nullptr ? nullptr : &requests.back();
  }
  void Announce(FakeRequest* sent) {
    sent->observer->OnAnnounced();
    executor_.RunAll();
  }
  void FailAt(const std::string& address) {
    Fail(At(address), Errorf(StatusCode::kUnavailable, "killed"));
  }
  void FinishPrefill(const std::string& address, uint32_t fetched = 0) {
    Finish(At(address), {.fetched_tokens = fetched, .finish_reason = "prefill"});
  }
  void Answer(const std::string& address, uint32_t fetched) {
    Finish(At(address), {.prompt_tokens = kPrompt,
                         .fetched_tokens = fetched,
                         .completion_tokens = 1,
                         .finish_reason = "stop"});
  }
  Dispatcher::WorkerNumbers Numbers(const std::string& address) {
    for (const auto& worker : dispatcher_->numbers().workers) {
      if (worker.worker == address) return worker;
    }
    return {};
  }
};

TEST_F(PairingRunTest, TheAnsweringWorkerIsAskedWhenThePromptIsAnnounced) {
  ReachPair();
  const auto got = Send();
  FakeRequest* const prefill = At("p:1");
  ASSERT_NE(prefill, nullptr);
  EXPECT_TRUE(prefill->request.prefill_only);
  EXPECT_EQ(prefill->request.await_prefill, Duration(0));
  EXPECT_EQ(prefill->request.tokens->size(), kPrompt);
  EXPECT_EQ(At("d:1"), nullptr) << "nothing is announced yet";
  Announce(prefill);
  FakeRequest* const decode = At("d:1");
  ASSERT_NE(decode, nullptr);
  EXPECT_FALSE(decode->request.prefill_only);
  EXPECT_GE(decode->request.await_prefill, seconds(2));
  EXPECT_EQ(decode->request.tokens, prefill->request.tokens);
  FinishPrefill("p:1", /*fetched=*/64);
  decode->observer->OnToken(9, "a");
  EXPECT_FALSE(prefill->call->cancelled) << "it had ended";
  Answer("d:1", kHanded);
  ASSERT_TRUE(got->done);
  EXPECT_EQ(got->done->worker, "d:1");
  EXPECT_EQ(got->done->prefill_worker, "p:1");
  // p:1 computed all but 64 of the tokens that d:1 fetched for this request.
  EXPECT_EQ(got->done->cached_tokens, 64u);
  EXPECT_EQ(engine_->numbers().paired, 1u);
  EXPECT_EQ(engine_->numbers().prefills_failed, 0u);
  EXPECT_EQ(engine_->numbers().completed, 1u);
}

TEST_F(PairingRunTest, BothCountAtOnceEachForItsPart) {
  ReachPair();
  const double before = Numbers("d:1").queue_seconds;
  Send();
  EXPECT_NEAR(Numbers("p:1").queue_seconds, kHanded / kSpeed, 1e-9);
  EXPECT_NEAR(Numbers("d:1").queue_seconds - before, (kPrompt - kHanded) / kSpeed, 1e-9);
  EXPECT_EQ(Numbers("p:1").followed, 1u);
  EXPECT_EQ(Numbers("d:1").followed, 1u);
  Announce(At("p:1"));
  FinishPrefill("p:1");
  EXPECT_EQ(Numbers("p:1").followed, 0u);
  EXPECT_EQ(Numbers("d:1").followed, 1u);
  Answer("d:1", kHanded);
  EXPECT_EQ(Numbers("d:1").followed, 0u);
}

TEST_F(PairingRunTest, AWorkerThatFailsBeforeItAnnouncesLeavesThePromptToTheOther) {
  ReachPair();
  const auto got = Send();
  FailAt("p:1");
  FakeRequest* const decode = At("d:1");
  ASSERT_NE(decode, nullptr);
  EXPECT_EQ(decode->request.await_prefill, Duration(0));
  EXPECT_EQ(At("p:1"), nullptr) << "it has failed this request";
  EXPECT_GE(Numbers("d:1").queue_seconds, kPrompt / kSpeed) << "it computes all";
  Answer("d:1", 0);
  ASSERT_TRUE(got->done);
  EXPECT_EQ(got->done->prefill_worker, "");
  EXPECT_EQ(engine_->numbers().prefills_failed, 1u);
  EXPECT_EQ(engine_->numbers().tries_again, 0u) << "d:1 got it once";
}

TEST_F(PairingRunTest, AWorkerThatEndsWithoutAWordIsOneThatFails) {
  ReachPair();
  Send();
  Finish(At("p:1"), {.finish_reason = "cancelled"});
  ASSERT_NE(At("d:1"), nullptr);
  EXPECT_EQ(At("d:1")->request.await_prefill, Duration(0));
  EXPECT_EQ(engine_->numbers().prefills_failed, 1u);
}

TEST_F(PairingRunTest, AWorkerThatFailsAfterItAnnouncedChangesNothingForTheOther) {
  ReachPair();
  const auto got = Send();
  Announce(At("p:1"));
  FakeRequest* const decode = At("d:1");
  FailAt("p:1");
  EXPECT_EQ(At("d:1"), decode);
  EXPECT_FALSE(decode->call->cancelled);
  EXPECT_EQ(workers_["d:1"].requests.size(), 1u);
  Answer("d:1", 128);
  ASSERT_TRUE(got->done);
  EXPECT_EQ(got->done->cached_tokens, 0u) << "128 came from p:1, which computed them for this";
  EXPECT_EQ(engine_->numbers().prefills_failed, 1u);
}

TEST_F(PairingRunTest, TheFirstTokenEndsWhatIsLeftOfThePrompt) {
  ReachPair();
  const auto got = Send();
  FakeRequest* const prefill = At("p:1");
  Announce(prefill);
  At("d:1")->observer->OnToken(9, "a");
  EXPECT_TRUE(prefill->call->cancelled) << "d:1 did not wait for all of it";
  Answer("d:1", 0);
  ASSERT_TRUE(got->done);
  EXPECT_EQ(engine_->numbers().active, 1u) << "p:1 has not said that it has ended";
  Fail(prefill, Errorf(StatusCode::kCancelled, "cancelled"));
  EXPECT_EQ(engine_->numbers().active, 0u);
  EXPECT_EQ(engine_->numbers().prefills_failed, 0u);
}

TEST_F(PairingRunTest, CancelReachesTheWorkerThatComputesThePrompt) {
  ReachPair();
  const auto got = Send();
  FakeRequest* const prefill = At("p:1");
  calls_.back()->Cancel();
  EXPECT_TRUE(prefill->call->cancelled);
  EXPECT_FALSE(got->error);
  Fail(prefill, Errorf(StatusCode::kCancelled, "cancelled"));
  EXPECT_EQ(At("d:1"), nullptr);
  ASSERT_TRUE(got->error);
  EXPECT_EQ(got->error->status.code(), StatusCode::kCancelled);
  EXPECT_EQ(engine_->numbers().cancelled, 1u);
  EXPECT_EQ(engine_->numbers().prefills_failed, 0u);
}

TEST_F(PairingRunTest, CancelReachesBothWorkers) {
  ReachPair();
  const auto got = Send();
  FakeRequest* const prefill = At("p:1");
  Announce(prefill);
  FakeRequest* const decode = At("d:1");
  calls_.back()->Cancel();
  EXPECT_TRUE(prefill->call->cancelled);
  EXPECT_TRUE(decode->call->cancelled);
  Fail(decode, Errorf(StatusCode::kCancelled, "cancelled"));
  Fail(prefill, Errorf(StatusCode::kCancelled, "cancelled"));
  ASSERT_TRUE(got->error);
  EXPECT_EQ(got->error->status.code(), StatusCode::kCancelled);
}

TEST_F(PairingRunTest, CancelBetweenAnnouncementAndRequestCostsTheOtherWorkerNothing) {
  ReachPair();
  const auto got = Send();
  FakeRequest* const prefill = At("p:1");
  prefill->observer->OnAnnounced();
  calls_.back()->Cancel();
  executor_.RunAll();
  EXPECT_EQ(At("d:1"), nullptr);
  ASSERT_TRUE(got->error);
  EXPECT_EQ(got->error->status.code(), StatusCode::kCancelled);
  EXPECT_TRUE(prefill->call->cancelled);
}

TEST_F(PairingRunTest, AnotherAnsweringWorkerGetsThePromptComputedAgain) {
  ReachPair();
  Reach("d:2", WorkerRole::kBoth, "node", 8, /*queue_seconds=*/9);
  const auto got = Send();
  FakeRequest first = *At("p:1");
  Announce(At("p:1"));
  FailAt("d:1");
  EXPECT_TRUE(first.call->cancelled);
  ASSERT_EQ(workers_["p:1"].requests.size(), 2u) << "its node has what it pushed already";
  EXPECT_EQ(At("d:2"), nullptr);
  Fail(&workers_["p:1"].requests[0], Errorf(StatusCode::kCancelled, "cancelled"));
  Announce(At("p:1"));
  ASSERT_NE(At("d:2"), nullptr);
  EXPECT_GT(At("d:2")->request.await_prefill, Duration(0));
  FinishPrefill("p:1", 128);
  Answer("d:2", kHanded);
  ASSERT_TRUE(got->done);
  EXPECT_EQ(got->done->worker, "d:2");
  EXPECT_EQ(got->done->cached_tokens, 128u);
  EXPECT_EQ(engine_->numbers().tries_again, 1u);
  EXPECT_EQ(engine_->numbers().paired, 2u);
  EXPECT_EQ(engine_->numbers().prefills_failed, 0u);
}

TEST_F(PairingRunTest, TheDeadlineOfARequestEndsItAtAnyWorker) {
  ReachPair();
  const auto got = Send(clock_.Now() + seconds(1));
  EXPECT_EQ(At("p:1")->request.deadline, clock_.Now() + seconds(1));
  clock_.Advance(seconds(1));
  Finish(At("p:1"), {.finish_reason = "deadline"});
  EXPECT_EQ(At("d:1"), nullptr) << "it would refuse a time in the past";
  ASSERT_TRUE(got->done);
  EXPECT_EQ(got->done->finish_reason, "deadline");
  EXPECT_EQ(got->done->prompt_tokens, kPrompt);
  EXPECT_EQ(engine_->numbers().prefills_failed, 0u);
}

TEST_F(PairingRunTest, ADearPairIsNoPair) {
  Reach("p:1", WorkerRole::kPrefill);
  Reach("d:1", WorkerRole::kDecode);  // A prompt delays nobody there.
  Send();
  EXPECT_EQ(At("p:1"), nullptr);
  ASSERT_NE(At("d:1"), nullptr);
  EXPECT_EQ(At("d:1")->request.await_prefill, Duration(0));
  EXPECT_EQ(engine_->numbers().paired, 0u);
}

TEST_F(PairingRunTest, ABurstIsNotSentToOneWorkerForPrompts) {
  ReachPair();
  int pairs = 0;
  for (int i = 0; i < 40; ++i) {
    Send();
    if (engine_->numbers().paired == static_cast<uint64_t>(i)) break;
    ++pairs;
  }
  EXPECT_GT(pairs, 3);
  EXPECT_LT(pairs, 40) << "its queue costs more than eight answers that are late";
  EXPECT_NE(At("d:1"), nullptr);
}

TEST_F(PairingRunTest, TheLeastBusyWorkerForPromptsGetsIt) {
  ReachPair();
  Reach("p:1", WorkerRole::kPrefill, "node", 0, /*queue_seconds=*/1);
  Reach("p:2", WorkerRole::kPrefill);
  Send();
  EXPECT_EQ(At("p:1"), nullptr);
  EXPECT_NE(At("p:2"), nullptr);
}

TEST_F(PairingRunTest, WorkersOfAnotherNodeAreNoHelp) {
  Reach("p:1", WorkerRole::kPrefill, "other node");
  Reach("p:2", WorkerRole::kPrefill, "");
  Reach("d:1", WorkerRole::kDecode, "node", 8);
  Send();
  EXPECT_EQ(At("p:1"), nullptr);
  EXPECT_EQ(At("p:2"), nullptr);
  EXPECT_NE(At("d:1"), nullptr);
}

TEST_F(PairingRunTest, AWorkerOfBothRolesComputesNoPromptForOthers) {
  Reach("d:1", WorkerRole::kBoth, "node", 8);
  Reach("d:2", WorkerRole::kBoth, "node", 8);
  Send();
  EXPECT_EQ(engine_->numbers().paired, 0u);
  EXPECT_NE(At("d:1") == nullptr, At("d:2") == nullptr);
}

TEST_F(PairingRunTest, ADrainingWorkerGetsNoPrompt) {
  ReachPair();
  workers_["p:1"].watches.back().observer->OnReport({.draining = true, .cache_node_id = "node"});
  Send();
  EXPECT_EQ(At("p:1"), nullptr);
  EXPECT_NE(At("d:1"), nullptr);
}

TEST_F(PairingRunTest, ItCanBeTurnedOff) {
  Make({.pairing = false});
  ReachPair();
  Send();
  EXPECT_EQ(At("p:1"), nullptr);
  EXPECT_NE(At("d:1"), nullptr);
}

TEST_F(PairingRunTest, WorkersForPromptsAloneAnswerNothing) {
  Reach("p:1", WorkerRole::kPrefill);
  EXPECT_NE(engine_->Waiting().find("role prefill"), std::string::npos) << engine_->Waiting();
  EXPECT_EQ(engine_->Models()[0].workers, 0u);
  const auto got = Send();
  EXPECT_EQ(At("p:1"), nullptr);
  ASSERT_TRUE(got->error);
  EXPECT_EQ(got->error->status.code(), StatusCode::kUnavailable);
  EXPECT_NE(Message(got->error->status).find("role prefill"), std::string::npos);
  Reach("d:1", WorkerRole::kBoth);
  EXPECT_EQ(engine_->Waiting(), "");
}

TEST_F(PairingRunTest, APickNamesBothWorkersAndCountsBoth) {
  ReachPair();
  GenerateRequest request;
  request.prompt = std::vector<model::TokenId>(kPrompt, 30);
  std::optional<Result<Pick>> picked;
  engine_->PickWorker(std::move(request), [&picked](Result<Pick> got) { picked = std::move(got); });
  executor_.RunAll();
  ASSERT_TRUE(picked);
  const Result<Pick>& pick = *picked;
  ASSERT_OK(pick);
  EXPECT_EQ(pick->worker, "d:1");
  EXPECT_EQ(pick->prefill_worker, "p:1");
  EXPECT_FALSE(pick->candidates[0].usable);
  EXPECT_NE(pick->candidates[0].reason.find("role prefill"), std::string::npos);
  EXPECT_NEAR(Numbers("p:1").queue_seconds, kHanded / kSpeed, 1e-9);
  EXPECT_EQ(Numbers("p:1").followed, 0u);
}

}  // namespace
}  // namespace cairn::router
