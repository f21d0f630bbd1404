// A real worker whose prompts never fit into its memory, with a real node to which it spills them.

#include <signal.h>

#include <thread>

#include "common/status/matchers.h"
#include "tests/integration/worker_support.h"
#include "tests/support/methods.h"

namespace cairn::testing {
namespace {

using std::chrono::milliseconds;

constexpr uint32_t kPrompt = 970;  // Tokens.

// Seven blocks of KV: 448 tokens.
std::string SmallPool() { return HaveLargeModel() ? "10080KiB" : "448KiB"; }

class WorkerSpillTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto alone = WorkerProcess::Start("");
    ASSERT_OK(alone);
    expected_ = (*alone)->Generate(kPrompt);
    ASSERT_OK(expected_.status);
    auto node = CacheNode::Start({"--host.capacity", "256MiB"});
    ASSERT_OK(node);
    node_ = *std::move(node);
  }
  std::unique_ptr<WorkerProcess> Small(std::vector<std::string> args = {}) {
    args.insert(args.end(), {"--kv_pool", SmallPool()});
    auto worker = WorkerProcess::Start(node_->address(), args);
    EXPECT_OK(worker);
    return worker.ok() ? *std::move(worker) : nullptr;
  }
  void ExpectSame(const Answer& got) {
    ASSERT_OK(got.status);
    EXPECT_EQ(got.tokens, expected_.tokens);
    EXPECT_EQ(got.logits_digest, expected_.logits_digest);
  }

  Answer expected_;
  std::unique_ptr<CacheNode> node_;
};

TEST_F(WorkerSpillTest, TheAnswerIsThatOfAWorkerWithRoomOverBothPaths) {
  for (const std::string path : {"grpc", "auto"}) {
    auto worker = Small({"--cache.path", path});
    ExpectSame(worker->Generate(kPrompt));
    EXPECT_EQ(worker->Metric("cairn_worker_spilled_prompts_total"), 1);
    if (path == "grpc") {  // The first, which found nothing at the node.
      EXPECT_GT(worker->Metric("cairn_worker_spilled_tokens_total{result=\"spilled\"}"), 0);
    }
    EXPECT_EQ(worker->Metric("cairn_worker_spilled_tokens_total{result=\"lost\"}"), 0);
    EXPECT_EQ(worker->Metric("cairn_worker_spilled_repeats_total"), 0);
    ASSERT_TRUE(worker->WaitIdle());
    // Again, with what the node has of it.
    const Answer warm = worker->Generate(kPrompt);
    ExpectSame(warm);
    EXPECT_GE(warm.fetched_tokens, 768u);
  }
}

TEST_F(WorkerSpillTest, AReadPolicyDecodesOverRowsThatStayAtTheNode) {
  if (!kBuiltWithMethods) GTEST_SKIP() << kNoMethods;
  for (const std::string path : {"grpc", "auto"}) {
    // It waits for the rows that it has chosen: all of them.
    auto all = Small({"--cache.path", path, "--read_policy", "exact-topk:rows=1"});
    ExpectSame(all->Generate(kPrompt));
    EXPECT_GE(all->Metric("cairn_worker_far_tokens_total"), 512);
    EXPECT_EQ(all->Metric("cairn_worker_read_rows_total{result=\"late\"}"), 0);
    EXPECT_GT(all->Metric("cairn_worker_read_bytes_total"), 0);
    auto some = Small({"--cache.path", path, "--read_policy", "precision:query=attention"});
    const Answer got = some->Generate(kPrompt);
    ASSERT_OK(got.status);
    EXPECT_EQ(got.logits_digest, expected_.logits_digest) << "of the prompt, which is exact";
    EXPECT_EQ(some->Metric("cairn_worker_read_rows_total{result=\"lost\"}"), 0);
  }
}

TEST_F(WorkerSpillTest, ANodeThatIsStoppedAndGoesOnChangesNothing) {
  auto worker = Small();
  Answer got;
  std::thread request([&] { got = worker->Generate(kPrompt, 1, 8); });
  // As soon as something is spilt, and so is read back in each pass.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (node_->process().running() && std::chrono::steady_clock::now() < until &&
         worker->Metric("cairn_worker_pushed_blocks_total{result=\"stored\"}") < 1) {
  }
  node_->process().Signal(SIGSTOP);
  const auto stopped = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() < stopped + milliseconds(300)) {
    (void)worker->Metric("cairn_worker_spilled_repeats_total");
  }
  node_->process().Signal(SIGCONT);
  request.join();
  ExpectSame(got);
}

TEST_F(WorkerSpillTest, WithoutTheNodeItIsAClearError) {
  auto worker = Small();
  node_->process().Kill();
  const Answer got = worker->Generate(kPrompt);
  EXPECT_THAT(got.status, StatusIs(StatusCode::kUnavailable, ::testing::HasSubstr("cache node")));
  // The worker goes on with what fits.
  EXPECT_OK(worker->Generate(200).status);
}

}  // namespace
}  // namespace cairn::testing
