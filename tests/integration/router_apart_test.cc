// A real router that pairs a worker for prompts with one that answers, through a real node.

#include <gmock/gmock.h>
#include <signal.h>

#include <atomic>
#include <thread>

#include "common/metrics/admin_server.h"
#include "common/status/matchers.h"
#include "tests/integration/router_support.h"
#include "tests/integration/worker_support.h"
#include "tools/cairn/process/cache_node.h"

namespace cairn::testing {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kPrompt = 1930;  // Tokens: 30 full blocks and a rest.
constexpr uint32_t kFullBlocks = 30 * 64;
constexpr char kCompleted[] = "cairn_worker_requests_total{result=\"completed\"}";
constexpr char kStored[] = "cairn_worker_pushed_blocks_total{result=\"stored\"}";

class RouterApartTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto node = CacheNode::Start({"--host.capacity", "512MiB"});
    ASSERT_OK(node);
    node_ = *std::move(node);
    prefill_ = StartWorker("prefill");
    decode_ = StartWorker("decode");
  }
  void TearDown() override { EndAnswers(); }
  std::unique_ptr<WorkerProcess> StartWorker(const std::string& role) {
    auto worker = WorkerProcess::Start(node_->address(), {"--role", role, "--threads", "1"});
    EXPECT_OK(worker);
    if (!worker.ok()) return nullptr;
    EXPECT_TRUE((*worker)->WaitConnected(true));
    return *std::move(worker);
  }
  void StartRouter(const std::vector<std::string>& workers, std::vector<std::string> args = {}) {
    args.insert(args.end(), {"--model", TestModel(), "--cache", node_->address()});
    auto router = RouterProcess::Start(workers, args);
    ASSERT_OK(router);
    router_ = *std::move(router);
    ASSERT_TRUE(router_->WaitReady(static_cast<int>(workers.size())));
  }
  static Answer Alone(uint32_t seed) {
    auto worker = WorkerProcess::Start("");
    EXPECT_OK(worker);
    return (*worker)->Generate(kPrompt, seed);
  }
  // Both workers have measured their speeds, and a prompt would delay answers at the decode worker,
  // so that a pair costs less.
  void KeepBusyWithAnswers() {
    ASSERT_OK(prefill_->GenerateApart(1000, {.prefill_only = true}, /*seed=*/50).status);
    ASSERT_OK(decode_->Generate(500, /*seed=*/51).status);
    for (uint32_t i = 0; i < 3; ++i) {
      answers_.emplace_back([this, i] {
        while (!over_) {
          router_->Generate(RouterProcess::Request(20, 60 + i, 400),
                            [this](size_t) { return !over_; });
        }
      });
    }
    ASSERT_TRUE(router_->WaitUntil([](const v1::RouterInfo& info) {
      return info.workers(0).load().prefill_tokens_per_second() > 0 &&
             info.workers(1).load().prefill_tokens_per_second() > 0 &&
             info.workers(1).load().running_decodes() >= 2;
    }));
  }
  // The router pairs the workers when that costs less. Speeds that a busy machine measured at
  // different moments may say that it does not, so they are measured again until it does.
  void WaitUntilItPairs() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    for (uint32_t seed = 1000;; ++seed) {
      const auto pick = router_->Pick(RouterProcess::Request(kPrompt, seed));
      ASSERT_OK(pick);
      if (pick->prefill_worker() == prefill_->address()) {
        EXPECT_EQ(pick->worker(), decode_->address());
        return;
      }
      ASSERT_LT(std::chrono::steady_clock::now(), end) << "the router makes no pair";
      ASSERT_OK(prefill_->GenerateApart(1000, {.prefill_only = true}, seed).status);
    }
  }
  // The first answer of a pair. Its prompt is that of `seed`, or of a later one when the router did
  // not pair the workers for it.
  RoutedAnswer GenerateByPair(uint32_t* seed) {
    for (int tries = 0;; ++tries, ++*seed) {
      WaitUntilItPairs();
      const RoutedAnswer answer = router_->Generate(RouterProcess::Request(kPrompt, *seed));
      EXPECT_OK(answer.status);
      if (HasFatalFailure() || tries == 20 || !answer.done.prefill_worker().empty()) return answer;
    }
  }
  void EndAnswers() {
    over_ = true;
    for (std::thread& answer : answers_) answer.join();
    answers_.clear();
  }
  uint64_t Paired() {
    const auto info = router_->GetInfo();
    return info.ok() ? info->requests_paired() : 0;
  }
  std::string RouterMetrics() {
    const auto text = metrics::HttpGet(router_->admin(), "/metrics", std::chrono::seconds(60));
    return text.ok() ? *text : ToString(text.status());
  }

  std::unique_ptr<CacheNode> node_;
  std::unique_ptr<WorkerProcess> prefill_, decode_;
  std::unique_ptr<RouterProcess> router_;
  std::atomic<bool> over_{false};
  std::vector<std::thread> answers_;
};

TEST_F(RouterApartTest, APairAnswersAsOneWorkerDoes) {
  StartRouter({prefill_->address(), decode_->address()});
  ASSERT_NO_FATAL_FAILURE(KeepBusyWithAnswers());
  const double computed = prefill_->Metric(kCompleted);
  uint32_t seed = 200;
  const RoutedAnswer answer = GenerateByPair(&seed);
  ASSERT_OK(answer.status);
  const Answer alone = Alone(seed);
  ASSERT_OK(alone.status);
  EXPECT_EQ(answer.tokens, alone.tokens);
  EXPECT_EQ(answer.done.text(), alone.text);
  EXPECT_EQ(answer.done.worker(), decode_->address());
  EXPECT_EQ(answer.done.prefill_worker(), prefill_->address());
  EXPECT_EQ(answer.done.fetched_tokens(), 0u) << "all of it was computed for this request";
  EXPECT_EQ(answer.done.computed_tokens(), kPrompt);
  EXPECT_EQ(Paired(), 1u);
  EXPECT_GT(prefill_->Metric(kCompleted), computed);
  // Now the node has it.
  const RoutedAnswer again = router_->Generate(RouterProcess::Request(kPrompt, seed));
  ASSERT_OK(again.status);
  EXPECT_EQ(again.tokens, alone.tokens);
  EXPECT_EQ(again.done.fetched_tokens(), kFullBlocks);
  EndAnswers();
  EXPECT_THAT(RouterMetrics(), HasSubstr("cairn_router_failed_prefills_total 0"));
}

TEST_F(RouterApartTest, APrefillWorkerKilledInMidPromptLeavesTheRestToTheOther) {
  StartRouter({prefill_->address(), decode_->address()});
  ASSERT_NO_FATAL_FAILURE(KeepBusyWithAnswers());
  uint32_t seed = 300;
  RoutedAnswer answer;
  for (bool paired = false; !paired; ++seed) {
    ASSERT_LT(seed, 320u) << "the router makes no pair";
    ASSERT_NO_FATAL_FAILURE(WaitUntilItPairs());
    const double before = prefill_->Metric(kStored);
    std::atomic<bool> answered{false};
    std::thread asks([&] {
      answer = router_->Generate(RouterProcess::Request(kPrompt, seed));
      answered = true;
    });
    // Some blocks have come, and, but for a tiny model, not all.
    while (!paired && !answered) paired = prefill_->Metric(kStored) >= before + 4;
    if (paired) prefill_->process().Signal(SIGKILL);
    asks.join();
    // A tiny model may be done before anybody looks.
    if (!paired && prefill_->Metric(kStored) >= before + 4) {
      paired = true;
      prefill_->process().Signal(SIGKILL);
    }
  }
  const Answer alone = Alone(--seed);
  ASSERT_OK(alone.status);
  ASSERT_OK(answer.status);
  EXPECT_EQ(answer.tokens, alone.tokens);
  EXPECT_EQ(answer.done.text(), alone.text);
  EXPECT_EQ(answer.done.worker(), decode_->address());
  EXPECT_EQ(Paired(), 1u);
  if (HaveLargeModel()) {
    EXPECT_THAT(RouterMetrics(), HasSubstr("cairn_router_failed_prefills_total 1"));
  }
  // The dead one gets nothing more.
  ASSERT_TRUE(router_->WaitUntil(
      [](const v1::RouterInfo& info) { return info.workers(0).condition() == "waiting"; }));
  const RoutedAnswer next = router_->Generate(RouterProcess::Request(kPrompt, /*seed=*/4));
  ASSERT_OK(next.status);
  EXPECT_EQ(next.done.prefill_worker(), "");
  EXPECT_EQ(Paired(), 1u);
}

TEST_F(RouterApartTest, WithoutPairingTheWorkerForPromptsGetsNothing) {
  StartRouter({prefill_->address(), decode_->address()}, {"--pairing", "false"});
  KeepBusyWithAnswers();
  const RoutedAnswer answer = router_->Generate(RouterProcess::Request(kPrompt, /*seed=*/5));
  ASSERT_OK(answer.status);
  EXPECT_EQ(answer.done.prefill_worker(), "");
  EXPECT_EQ(Paired(), 0u);
}

TEST_F(RouterApartTest, WorkersForPromptsAloneMakeItWait) {
  StartRouter({prefill_->address()});
  // It is asked for what it waits a few times in a second.
  EXPECT_TRUE(router_->WaitUntil([&](const v1::RouterInfo&) {
    const auto ready = metrics::HttpGet(router_->admin(), "/readyz", std::chrono::seconds(60));
    return !ready.ok() && Message(ready.status()).find("role prefill") != std::string::npos;
  }));
  const auto info = router_->GetInfo();
  ASSERT_OK(info);
  EXPECT_EQ(info->workers(0).role(), "prefill");
  EXPECT_EQ(info->workers(0).condition(), "ready");
  const RoutedAnswer answer = router_->Generate(RouterProcess::Request(20));
  EXPECT_EQ(answer.status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(Message(answer.status), HasSubstr("role prefill"));
  EXPECT_THAT(RouterMetrics(), HasSubstr("cairn_router_workers{condition=\"ready\"} 0"));
}

}  // namespace
}  // namespace cairn::testing
