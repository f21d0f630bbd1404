// A real router with real workers and a real cache node, and what may happen to each.

#include <gmock/gmock.h>
#include <signal.h>

#include <future>

#include "common/metrics/admin_server.h"
#include "common/status/matchers.h"
#include "tests/integration/router_support.h"
#include "tests/integration/worker_support.h"
#include "tools/cairn/process/ports.h"

namespace cairn::testing {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kPrompt = 330;  // Tokens: 5 full blocks and a rest.
constexpr uint32_t kFullBlocks = 5 * 64;
// Long enough that a signal after its first token comes before its last one.
constexpr uint32_t kLongAnswer = 400;

class RouterTest : public ::testing::Test {
 protected:
  void StartNode() {
    auto node = CacheNode::Start({});
    ASSERT_OK(node);
    node_ = *std::move(node);
  }
  void StartWorkers(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      auto worker = WorkerProcess::Start(node_ == nullptr ? "" : node_->address(),
                                         {"--model", kSmallModel, "--threads", "1"});
      ASSERT_OK(worker);
      workers_.push_back(*std::move(worker));
    }
  }
  void StartRouter(const std::vector<std::string>& args = {}) {
    std::vector<std::string> addresses;
    for (const auto& worker : workers_) addresses.push_back(worker->address());
    auto router = RouterProcess::Start(addresses, args);
    ASSERT_OK(router);
    router_ = *std::move(router);
    ASSERT_TRUE(router_->WaitReady(static_cast<int>(workers_.size())));
  }
  WorkerProcess& At(const std::string& address) {
    for (const auto& worker : workers_) {
      if (worker->address() == address) return *worker;
    }
    ADD_FAILURE() << "no worker is at '" << address << "'";
    return *workers_.front();
  }

  std::unique_ptr<CacheNode> node_;
  std::vector<std::unique_ptr<WorkerProcess>> workers_;
  std::unique_ptr<RouterProcess> router_;
};

TEST_F(RouterTest, AnswersAsAWorkerAloneDoes) {
  StartNode();
  StartWorkers(2);
  StartRouter({"--cache", node_->address()});
  const Answer alone = workers_[0]->Generate(kPrompt);
  ASSERT_OK(alone.status);
  ASSERT_TRUE(workers_[0]->WaitIdle());
  const RoutedAnswer answer = router_->Generate(RouterProcess::Request(kPrompt));
  ASSERT_OK(answer.status);
  EXPECT_EQ(answer.tokens, alone.tokens);
  EXPECT_EQ(answer.done.text(), alone.text);
  EXPECT_EQ(std::vector<int32_t>(answer.done.tokens().begin(), answer.done.tokens().end()),
            alone.tokens);
  EXPECT_EQ(answer.done.finish_reason(), "length");
  EXPECT_EQ(answer.done.prompt_tokens(), kPrompt);
  EXPECT_EQ(answer.done.fetched_tokens(), kFullBlocks);
  EXPECT_NE(answer.done.worker(), "");
}

TEST_F(RouterTest, SeesInTheNodesEventsWhatItHolds) {
  StartNode();
  StartWorkers(2);
  StartRouter({"--cache", node_->address()});
  const v1::GenerateRequest request = RouterProcess::Request(kPrompt);
  const auto before = router_->Pick(request);
  ASSERT_OK(before);
  for (const v1::PickCandidate& candidate : before->candidates()) {
    EXPECT_EQ(candidate.held_tokens(), 0u);
  }
  const RoutedAnswer answer = router_->Generate(request);
  ASSERT_OK(answer.status);
  ASSERT_TRUE(At(answer.done.worker()).WaitIdle());
  const auto held_by_all = [&](uint32_t tokens) {
    return router_->WaitUntil([&](const v1::RouterInfo&) {
      const auto pick = router_->Pick(request);
      if (!pick.ok() || pick->candidates_size() != 2) return false;
      return pick->candidates(0).held_tokens() == tokens &&
             pick->candidates(1).held_tokens() == tokens;
    });
  };
  EXPECT_TRUE(held_by_all(kFullBlocks));
  // The node is lost: what it held has gone, and the answer is the same.
  node_->process().Kill();
  const RoutedAnswer again = router_->Generate(request);
  ASSERT_OK(again.status);
  EXPECT_EQ(again.tokens, answer.tokens);
  EXPECT_TRUE(held_by_all(0));
}

TEST_F(RouterTest, ConversationStaysWithItsWorkerWithoutEvents) {
  StartNode();
  StartWorkers(2);
  StartRouter();
  std::string worker;
  for (uint32_t turn = 0; turn < 5; ++turn) {
    const RoutedAnswer answer = router_->Generate(RouterProcess::Request(kPrompt + turn * 5));
    ASSERT_OK(answer.status);
    if (turn > 0) {
      EXPECT_EQ(answer.done.worker(), worker);
    }
    worker = answer.done.worker();
    ASSERT_TRUE(At(worker).WaitIdle());
  }
}

TEST_F(RouterTest, RequestMovesWhenItsWorkerDiesBeforeTheFirstToken) {
  StartNode();
  StartWorkers(2);
  StartRouter();
  const v1::GenerateRequest request = RouterProcess::Request(kPrompt);
  const RoutedAnswer first = router_->Generate(request);
  ASSERT_OK(first.status);
  WorkerProcess& dying = At(first.done.worker());
  dying.process().Signal(SIGSTOP);
  auto moved = std::async(std::launch::async, [&] { return router_->Generate(request); });
  ASSERT_TRUE(router_->WaitUntil([&](const v1::RouterInfo& info) {
    for (const v1::RouterWorker& worker : info.workers()) {
      if (worker.address() == first.done.worker() && worker.requests() == 1) return true;
    }
    return false;
  }));
  dying.process().Kill();
  const RoutedAnswer answer = moved.get();
  ASSERT_OK(answer.status);
  EXPECT_NE(answer.done.worker(), first.done.worker());
  EXPECT_EQ(answer.tokens, first.tokens);
  // The dead one gets nothing more.
  const RoutedAnswer next = router_->Generate(request);
  ASSERT_OK(next.status);
  EXPECT_EQ(next.done.worker(), answer.done.worker());
}

TEST_F(RouterTest, DeathInMidStreamEndsThatStreamAloneWithAnError) {
  StartWorkers(2);
  StartRouter({"--policy", "round_robin"});
  std::string dying;
  const RoutedAnswer broken =
      router_->Generate(RouterProcess::Request(20, 1, kLongAnswer), [&](size_t tokens) {
        if (tokens != 1) return true;
        const auto info = router_->GetInfo();
        EXPECT_OK(info);
        for (const v1::RouterWorker& worker : info->workers()) {
          if (worker.requests() == 1) dying = worker.address();
        }
        At(dying).process().Signal(SIGSTOP);
        // The other worker's stream goes on.
        const RoutedAnswer whole =
            router_->Generate(RouterProcess::Request(20, 2, kLongAnswer), [&](size_t other) {
              if (other == 1) At(dying).process().Kill();
              return true;
            });
        EXPECT_OK(whole.status);
        EXPECT_NE(whole.done.worker(), dying);
        EXPECT_EQ(whole.tokens.size(), kLongAnswer);
        return true;
      });
  EXPECT_EQ(broken.status.code(), StatusCode::kUnavailable) << broken.status;
  EXPECT_THAT(Message(broken.status), HasSubstr(dying));
  EXPECT_LT(broken.tokens.size(), kLongAnswer);
}

TEST_F(RouterTest, StartsBeforeItsWorkersAndSaysWhatItWaitsFor) {
  const auto addresses = cli::FreeLoopbackAddresses(1);
  ASSERT_OK(addresses);
  const std::string& address = addresses->front();
  auto router = RouterProcess::Start({address});
  ASSERT_OK(router);
  router_ = *std::move(router);
  const auto waiting = metrics::HttpGet(router_->admin(), "/readyz", std::chrono::seconds(60));
  EXPECT_FALSE(waiting.ok());
  EXPECT_THAT(Message(waiting.status()), HasSubstr(address));
  const RoutedAnswer refused = router_->Generate(RouterProcess::Request(20));
  EXPECT_EQ(refused.status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(Message(refused.status), HasSubstr(address));
  auto worker =
      WorkerProcess::Start("", {"--model", kSmallModel, "--listen", address, "--threads", "1"});
  ASSERT_OK(worker);
  ASSERT_TRUE(router_->WaitReady(1));
  EXPECT_OK(router_->Generate(RouterProcess::Request(20)).status);
}

TEST_F(RouterTest, RefusesMoreThanItMayTake) {
  StartWorkers(1);
  StartRouter({"--max_requests", "1"});
  const RoutedAnswer first =
      router_->Generate(RouterProcess::Request(20, 1, kLongAnswer), [&](size_t tokens) {
        if (tokens != 1) return true;
        workers_[0]->process().Signal(SIGSTOP);
        const RoutedAnswer second = router_->Generate(RouterProcess::Request(20));
        EXPECT_EQ(second.status.code(), StatusCode::kResourceExhausted);
        EXPECT_THAT(Message(second.status), HasSubstr("try again"));
        workers_[0]->process().Signal(SIGCONT);
        return true;
      });
  EXPECT_OK(first.status);
}

TEST_F(RouterTest, CancelFreesTheRequestAtItsWorker) {
  StartWorkers(1);
  StartRouter();
  const RoutedAnswer answer =
      router_->Generate(RouterProcess::Request(20, 1, kLongAnswer), [&](size_t tokens) {
        if (tokens != 1) return true;
        // So that it cannot finish before the cancellation is there.
        workers_[0]->process().Signal(SIGSTOP);
        return false;
      });
  workers_[0]->process().Signal(SIGCONT);
  EXPECT_EQ(answer.status.code(), StatusCode::kCancelled);
  EXPECT_TRUE(router_->WaitUntil([&](const v1::RouterInfo& info) {
    return info.requests_active() == 0 && info.workers(0).load().running_decodes() == 0 &&
           workers_[0]->Metric("cairn_worker_requests_total{result=\"cancelled\"}") == 1;
  }));
}

TEST_F(RouterTest, NamesTheFieldAtFault) {
  StartWorkers(1);
  StartRouter();
  v1::GenerateRequest request = RouterProcess::Request(20);
  request.set_no_cache(true);
  EXPECT_THAT(Message(router_->Generate(request).status), HasSubstr("'no_cache'"));
  request = RouterProcess::Request(20);
  request.set_temperature(11);
  const Status status = router_->Generate(request).status;
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("'temperature'"));
}

TEST_F(RouterTest, AnswersOpenAisApi) {
  StartWorkers(1);
  StartRouter({"--model_id", "small"});
  EXPECT_THAT(router_->Http("GET /v1/models"), HasSubstr("\"small\""));
  const std::string body = R"({"model": "small", "messages": [{"role": "user", "content": "Hi"}],)"
                           R"( "max_tokens": 4, "temperature": 0)";
  const std::string whole = router_->Http("POST /v1/chat/completions", body + "}");
  EXPECT_THAT(whole, HasSubstr(" 200 "));
  EXPECT_THAT(whole, HasSubstr("\"usage\""));
  const std::string streamed =
      router_->Http("POST /v1/chat/completions", body + R"(, "stream": true})");
  EXPECT_THAT(streamed, HasSubstr("data: {"));
  EXPECT_THAT(streamed, HasSubstr("data: [DONE]"));
  const std::string wrong =
      router_->Http("POST /v1/completions", R"({"model": "other", "prompt": "Hi"})");
  EXPECT_THAT(wrong, HasSubstr(" 404 "));
}

TEST_F(RouterTest, DrainsWhatItAccepted) {
  StartWorkers(1);
  StartRouter({"--drain", "2m"});
  const RoutedAnswer answer =
      router_->Generate(RouterProcess::Request(20, 1, kLongAnswer), [&](size_t tokens) {
        if (tokens == 1) router_->process().Signal(SIGTERM);
        return true;
      });
  EXPECT_OK(answer.status);
  EXPECT_EQ(answer.tokens.size(), kLongAnswer);
  const auto exit = router_->process().WaitExit(std::chrono::seconds(120));
  ASSERT_OK(exit);
  EXPECT_EQ(exit->code, 0);
}

}  // namespace
}  // namespace cairn::testing
