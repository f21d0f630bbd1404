// Prefill and decode on two real workers with a real node between them.

#include <signal.h>

#include <thread>

#include "common/status/matchers.h"
#include "tests/integration/worker_support.h"

namespace cairn::testing {
namespace {

constexpr uint32_t kPrompt = 1930;  // Tokens: 30 full blocks and a rest.
constexpr uint32_t kFullBlocks = 30 * 64;
constexpr uint32_t kAwaitMs = 60'000;

class WorkerApartTest : public ::testing::Test {
 protected:
  static const Answer& Expected() {
    static const Answer answer = [] {
      auto worker = WorkerProcess::Start("");
      EXPECT_OK(worker);
      return (*worker)->Generate(kPrompt);
    }();
    return answer;
  }
  static void ExpectSame(const Answer& got) {
    ASSERT_OK(got.status);
    EXPECT_EQ(got.tokens, Expected().tokens);
    EXPECT_EQ(got.text, Expected().text);
    EXPECT_EQ(got.logits_digest, Expected().logits_digest);
  }

  void StartPair(const std::vector<std::string>& args = {}) {
    auto node = CacheNode::Start({"--host.capacity", "256MiB"});
    ASSERT_OK(node);
    node_ = *std::move(node);
    prefill_ = StartWorker("prefill", args);
    decode_ = StartWorker("decode", args);
  }
  std::unique_ptr<WorkerProcess> StartWorker(const std::string& role,
                                             std::vector<std::string> args) {
    args.insert(args.end(), {"--role", role, "--threads", "1"});
    auto worker = WorkerProcess::Start(node_->address(), args);
    EXPECT_OK(worker);
    if (!worker.ok()) return nullptr;
    EXPECT_TRUE((*worker)->WaitConnected(true));
    return *std::move(worker);
  }

  // The decode worker's answer to a prompt that the other one computes. `begun`: called when the
  // prompt is announced and the decode worker has been asked.
  Answer Pair(const std::function<void()>& begun = nullptr, Answer* prefilled = nullptr) {
    Answer answer;
    std::thread decode;
    const Answer first = prefill_->GenerateApart(
        kPrompt, {.prefill_only = true, .announced = [&] {
                    decode = std::thread([&] {
                      answer = decode_->GenerateApart(kPrompt, {.await_prefill_ms = kAwaitMs});
                    });
                    if (begun) begun();
                  }});
    if (decode.joinable()) decode.join();
    if (prefilled != nullptr) *prefilled = first;
    return answer;
  }

  std::unique_ptr<CacheNode> node_;
  std::unique_ptr<WorkerProcess> prefill_, decode_;
};

TEST_F(WorkerApartTest, TheDecodeWorkerFetchesWhatTheOtherOneComputesMeanwhile) {
  StartPair();
  Answer prefilled;
  const Answer answer = Pair(nullptr, &prefilled);
  ASSERT_OK(prefilled.status);
  EXPECT_EQ(prefilled.finish_reason, "prefill");
  EXPECT_TRUE(prefilled.tokens.empty());
  ExpectSame(answer);
  EXPECT_EQ(answer.fetched_tokens, kFullBlocks);
}

TEST_F(WorkerApartTest, OverTheNetworkToo) {
  StartPair({"--cache.path", "grpc"});
  const Answer answer = Pair();
  ExpectSame(answer);
  EXPECT_EQ(answer.fetched_tokens, kFullBlocks);
}

TEST_F(WorkerApartTest, APrefillWorkerThatDiesInMidPromptLeavesTheRestToTheDecodeWorker) {
  StartPair();
  const Answer answer = Pair([&] {
    // Some blocks have come, and not all.
    while (prefill_->Metric("cairn_worker_pushed_blocks_total{result=\"stored\"}") < 4) {
    }
    prefill_->process().Signal(SIGKILL);
  });
  ExpectSame(answer);
  EXPECT_LT(answer.fetched_tokens, kFullBlocks);
}

TEST_F(WorkerApartTest, WhatNobodyHasAnnouncedIsNotWaitedFor) {
  StartPair();
  const Answer answer = decode_->GenerateApart(kPrompt, {.await_prefill_ms = kAwaitMs});
  ExpectSame(answer);
  EXPECT_EQ(answer.fetched_tokens, 0u);
}

TEST_F(WorkerApartTest, AShortPromptIsAnnouncedAndLeftToTheDecodeWorker) {
  StartPair();
  bool announced = false;
  const Answer prefilled =
      prefill_->GenerateApart(20, {.prefill_only = true, .announced = [&] { announced = true; }});
  ASSERT_OK(prefilled.status);
  EXPECT_TRUE(announced);
  EXPECT_EQ(prefilled.finish_reason, "prefill");
}

TEST_F(WorkerApartTest, AWorkerRefusesRequestsOfAnotherRole) {
  StartPair();
  EXPECT_EQ(prefill_->Generate(100).status.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(decode_->GenerateApart(100, {.prefill_only = true}).status.code(),
            StatusCode::kFailedPrecondition);
}

TEST_F(WorkerApartTest, AWorkerWithoutANodeCannotHandOver) {
  auto worker = WorkerProcess::Start("");
  ASSERT_OK(worker);
  EXPECT_EQ((*worker)->GenerateApart(100, {.prefill_only = true}).status.code(),
            StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace cairn::testing
