// A real worker with a real cache node, and what may happen to the node.

#include <signal.h>

#include <thread>

#include "cairn/client/connect.h"
#include "common/status/matchers.h"
#include "tests/integration/worker_support.h"
#include "tools/cairn/process/tcp_relay.h"

namespace cairn::testing {
namespace {

constexpr uint32_t kPrompt = 970;  // Tokens: 15 full blocks and a rest.
constexpr uint32_t kFullBlocks = 15 * 64;
constexpr int kMissUnavailable = 8;
constexpr int kMissDeadline = 5;

class WorkerCacheTest : public ::testing::Test {
 protected:
  // The answer of a worker without a cache.
  static const Answer& Expected() {
    static const Answer answer = [] {
      auto worker = WorkerProcess::Start("");
      EXPECT_OK(worker);
      return (*worker)->Generate(kPrompt);
    }();
    return answer;
  }

  void StartNode(std::vector<std::string> args = {}) {
    args.insert(args.end(), {"--host.capacity", "128MiB"});
    auto node = CacheNode::Start(args);
    ASSERT_OK(node);
    node_ = *std::move(node);
  }

  static std::unique_ptr<WorkerProcess> Worker(const std::string& cache,
                                               const std::vector<std::string>& args = {}) {
    auto worker = WorkerProcess::Start(cache, args);
    EXPECT_OK(worker);
    if (!worker.ok()) return nullptr;
    return *std::move(worker);
  }

  static void ExpectSame(const Answer& got) {
    ASSERT_OK(got.status);
    EXPECT_EQ(got.tokens, Expected().tokens);
    EXPECT_EQ(got.text, Expected().text);
    EXPECT_EQ(got.logits_digest, Expected().logits_digest);
  }

  // Cold, pushed, and warm once: the node has the prompt's blocks.
  static void Warm(WorkerProcess& worker) {
    const Answer cold = worker.Generate(kPrompt);
    ExpectSame(cold);
    EXPECT_EQ(cold.fetched_tokens, 0u);
    ASSERT_TRUE(worker.WaitIdle());
    const Answer warm = worker.Generate(kPrompt);
    ExpectSame(warm);
    EXPECT_EQ(warm.fetched_tokens, kFullBlocks);
  }

  std::unique_ptr<CacheNode> node_;
};

TEST_F(WorkerCacheTest, PrefixIsServedToTheSameAndToAnotherWorker) {
  StartNode();
  auto worker = Worker(node_->address());
  Warm(*worker);
  auto other = Worker(node_->address());
  const Answer answer = other->Generate(kPrompt);
  ExpectSame(answer);
  EXPECT_EQ(answer.fetched_tokens, kFullBlocks);
  EXPECT_GT(answer.host_bytes, 0u);
  EXPECT_EQ(answer.miss_reason, 0);
}

TEST_F(WorkerCacheTest, OnTheSameMachineBlocksAreReadInTheNodesMemory) {
  StartNode();
  // Once the tenant has a same-node session, what comes over gRPC goes to memory that the tenant's
  // processes map, and that none of them can write to.
  auto connected = client::Connect({.address = node_->address(), .tenant = "default"});
  ASSERT_OK(connected);
  client::CacheClient& client = **connected;
  NamespaceSpec spec;
  spec.model = spec.revision = spec.numerics = "test";
  spec.layout.form = OpaqueLayout{.description = "test", .max_part_bytes = 1024, .parts = 1};
  ASSERT_OK(client.OpenNamespace(spec, {.deadline = std::chrono::seconds(10)}));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  const BlockKey key = Fingerprint(spec);
  while (client.GetStats().path != client::Path::kLocal &&
         std::chrono::steady_clock::now() < deadline) {
    (void)client.Exists(Fingerprint(spec), {&key, 1}, {.deadline = std::chrono::seconds(1)});
  }
  ASSERT_EQ(client.GetStats().path, client::Path::kLocal) << client.GetStats().path_reason;
  auto worker = Worker(node_->address());
  auto writer = Worker(node_->address(), {"--cache.path", "grpc"});
  Warm(*writer);
  const Answer answer = worker->Generate(kPrompt);
  ExpectSame(answer);
  EXPECT_EQ(answer.fetched_tokens, kFullBlocks);
  EXPECT_GT(worker->Metric("cairn_worker_lent_bytes_total"), 0);
  // Killed while nothing is read: what follows is computed, or fetched from its successor.
  node_->process().Kill();
  ExpectSame(worker->Generate(kPrompt));
}

TEST_F(WorkerCacheTest, NodeThatIsAwayAtTheStartIsUsedOnceItIsThere) {
  const auto relay = cli::TcpRelay::Start("127.0.0.1:1");
  ASSERT_OK(relay);
  cli::TcpRelay& proxy = **relay;  // Nobody listens there.
  auto worker = Worker(proxy.address());
  const Answer alone = worker->Generate(kPrompt);
  ExpectSame(alone);
  EXPECT_EQ(alone.miss_reason, kMissUnavailable);
  StartNode();
  proxy.SetTarget(node_->address());
  ASSERT_TRUE(worker->WaitConnected(true));
  // The breaker may still be open when the connection is there.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  Answer answer;
  do {
    answer = worker->Generate(kPrompt);
    ExpectSame(answer);
    ASSERT_TRUE(worker->WaitIdle());
  } while (answer.fetched_tokens == 0 && std::chrono::steady_clock::now() < deadline);
  EXPECT_EQ(answer.fetched_tokens, kFullBlocks);
}

TEST_F(WorkerCacheTest, NodeKilledInTheMiddleOfAFetchChangesNoAnswer) {
  StartNode();
  const auto relay = cli::TcpRelay::Start(node_->address());
  ASSERT_OK(relay);
  cli::TcpRelay& proxy = **relay;
  auto worker = Worker(proxy.address(), {"--cache.path", "grpc"});
  Warm(*worker);
  const uint64_t before = proxy.bytes_from_node();
  ExpectSame(worker->Generate(kPrompt));
  const uint64_t fetch_bytes = proxy.bytes_from_node() - before;
  proxy.After(fetch_bytes / 2, [&] {
    node_->process().Kill();
    proxy.BreakAll();
  });
  const Answer broken = worker->Generate(kPrompt);
  ASSERT_TRUE(proxy.Triggered());
  ExpectSame(broken);
  EXPECT_LT(broken.fetched_tokens, kFullBlocks);
  EXPECT_NE(broken.miss_reason, 0);
  ExpectSame(worker->Generate(kPrompt));
}

TEST_F(WorkerCacheTest, NodeStoppedInTheMiddleOfAFetchCostsTheStallDeadlineAtMost) {
  StartNode();
  const auto relay = cli::TcpRelay::Start(node_->address());
  ASSERT_OK(relay);
  cli::TcpRelay& proxy = **relay;
  // Which the fetches before can keep on a busy machine.
  auto worker = Worker(proxy.address(), {"--cache.stall_deadline", "2s", "--cache.path", "grpc"});
  Warm(*worker);
  const uint64_t before = proxy.bytes_from_node();
  ExpectSame(worker->Generate(kPrompt));
  const uint64_t fetch_bytes = proxy.bytes_from_node() - before;
  proxy.After(fetch_bytes / 2, [&] {
    node_->process().Signal(SIGSTOP);
    proxy.Hold();
  });
  const Answer stalled = worker->Generate(kPrompt);
  ASSERT_TRUE(proxy.Triggered());
  ExpectSame(stalled);
  // It did not wait until the node went on, which is after this.
  EXPECT_EQ(stalled.miss_reason, kMissDeadline);
  proxy.Release();
  node_->process().Signal(SIGCONT);
}

TEST_F(WorkerCacheTest, StoppedNodeDelaysEachRequestByTheMatchDeadlineUntilTheBreakerOpens) {
  StartNode();
  Warm(*Worker(node_->address()));
  auto worker = Worker(node_->address(), {"--cache.match_deadline", "50ms"});
  node_->process().Signal(SIGSTOP);
  // With the breaker open nothing is asked at all. Its pauses grow until one is longer than a
  // request takes here.
  const auto nothing_is_asked = [&] {
    return worker->Metric("cairn_worker_cache_breaker_open") == 1 &&
           worker->Metric("cairn_worker_missed_blocks_total{reason=\"unavailable\"}") > 0;
  };
  for (int i = 0; i < 6 || (i < 30 && !nothing_is_asked()); ++i) {
    const Answer answer = worker->Generate(kPrompt);
    ExpectSame(answer);
    EXPECT_EQ(answer.fetched_tokens, 0u);
    EXPECT_TRUE(answer.miss_reason == kMissDeadline || answer.miss_reason == kMissUnavailable)
        << answer.miss_reason;
  }
  EXPECT_EQ(worker->Metric("cairn_worker_cache_breaker_open"), 1);
  EXPECT_GT(worker->Metric("cairn_worker_missed_blocks_total{reason=\"deadline\"}"), 0);
  EXPECT_GT(worker->Metric("cairn_worker_missed_blocks_total{reason=\"unavailable\"}"), 0);
  node_->process().Signal(SIGCONT);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  Answer answer;
  do {
    answer = worker->Generate(kPrompt);
    ExpectSame(answer);
  } while (answer.fetched_tokens == 0 && std::chrono::steady_clock::now() < deadline);
  EXPECT_EQ(answer.fetched_tokens, kFullBlocks);
}

TEST_F(WorkerCacheTest, PrefixIsServedFromDiskAfterTheNodeWasKilled) {
  TemporaryDirectory disk;
  StartNode({"--disk.path", disk.path()});
  const auto relay = cli::TcpRelay::Start(node_->address());
  ASSERT_OK(relay);
  cli::TcpRelay& proxy = **relay;
  {
    auto worker = Worker(proxy.address());
    Warm(*worker);
    auto client = client::Connect(
        {.address = node_->address(), .client_name = "test", .tls = {}, .breaker = {}});
    ASSERT_OK(client);
    ASSERT_OK((*client)->Flush({.deadline = std::chrono::seconds(60), .trace = {}}));
    client->reset();
    node_->process().Kill();
    StartNode({"--disk.path", disk.path()});
    proxy.SetTarget(node_->address());
  }
  auto other = Worker(proxy.address());
  const Answer answer = other->Generate(kPrompt);
  ExpectSame(answer);
  EXPECT_EQ(answer.fetched_tokens, kFullBlocks);
  EXPECT_GT(answer.disk_bytes, 0u);
}

TEST_F(WorkerCacheTest, ALadderServesItsLowerRungAfterTheNodeWasKilled) {
  const std::vector<std::string> ladder = {"--cache.recipe", "host=int8>disk=turbo:bits=4"};
  TemporaryDirectory disk;
  StartNode({"--disk.path", disk.path()});
  uint64_t pushed_bytes = 0;
  {
    auto worker = Worker(node_->address(), ladder);
    ASSERT_OK(worker->Generate(kPrompt).status);
    ASSERT_TRUE(worker->WaitIdle());
    const Answer warm = worker->Generate(kPrompt);
    ASSERT_OK(warm.status);
    EXPECT_EQ(warm.fetched_tokens, kFullBlocks);
    pushed_bytes = warm.host_bytes;
    auto client = client::Connect(
        {.address = node_->address(), .client_name = "test", .tls = {}, .breaker = {}});
    ASSERT_OK(client);
    ASSERT_OK((*client)->Flush({.deadline = std::chrono::seconds(60), .trace = {}}));
  }
  node_->process().Kill();
  StartNode({"--disk.path", disk.path()});
  // Slices cross the network for one worker, and are read where they lie by the other.
  std::vector<Answer> answers;
  for (const char* path : {"grpc", "auto"}) {
    std::vector<std::string> args = ladder;
    args.insert(args.end(), {"--cache.path", path});
    auto worker = Worker(node_->address(), args);
    answers.push_back(worker->Generate(kPrompt));
  }
  for (const Answer& answer : answers) {
    ASSERT_OK(answer.status);
    EXPECT_EQ(answer.fetched_tokens, kFullBlocks);
    EXPECT_EQ(answer.logits_digest, answers[0].logits_digest);
    const uint64_t bytes = answer.host_bytes + answer.disk_bytes;
    EXPECT_GT(bytes, pushed_bytes * 2 / 5);
    EXPECT_LT(bytes, pushed_bytes * 3 / 5);
  }
  EXPECT_GT(answers[0].disk_bytes, 0u);
  EXPECT_GT(answers[1].host_bytes, 0u);  // Promoted, in the form that it had on disk.
}

TEST_F(WorkerCacheTest, DrainLetsTheRequestFinishAndThePushGoOut) {
  StartNode();
  // A machine that has no time for this test cuts no answer.
  auto worker = Worker(node_->address(), {"--drain", "2m"});
  worker->Generate(70);
  Answer answer;
  {
    std::thread request([&] { answer = worker->Generate(kPrompt, 2, 20); });
    while (worker->Metric("cairn_worker_matches_total") < 2) {
    }
    worker->process().Signal(SIGTERM);
    request.join();
  }
  EXPECT_OK(answer.status);
  EXPECT_EQ(answer.finish_reason, "length");
  const auto exit = worker->process().WaitExit(std::chrono::seconds(120));
  ASSERT_OK(exit);
  EXPECT_TRUE(exit->exited);
  EXPECT_EQ(exit->code, 0);
  auto other = Worker(node_->address());
  EXPECT_EQ(other->Generate(kPrompt, 2).fetched_tokens, kFullBlocks);
}

}  // namespace
}  // namespace cairn::testing
