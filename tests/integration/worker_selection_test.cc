// Real workers whose recipe selects tokens, and a real cache node.

#include <map>

#include "cairn/client/connect.h"
#include "common/status/matchers.h"
#include "tests/integration/worker_support.h"

namespace cairn::testing {
namespace {

constexpr uint32_t kPrompt = 970;
constexpr uint32_t kShared = 14 * 64;  // Tokens of the prompt that others share.
constexpr int kAbsent = 1;

class WorkerSelectionTest : public ::testing::Test {
 protected:
  void StartNode(std::vector<std::string> args = {}) {
    args.insert(args.end(), {"--host.capacity", "256MiB"});
    auto node = CacheNode::Start(args);
    ASSERT_OK(node);
    node_ = *std::move(node);
  }
  std::unique_ptr<WorkerProcess> Worker(const std::string& recipe) {
    auto worker = WorkerProcess::Start(node_->address(), {"--cache.recipe", recipe});
    EXPECT_OK(worker);
    return *std::move(worker);
  }
  static Answer Ask(WorkerProcess& worker, uint32_t tokens = kPrompt,
                    uint32_t prefix_end = kShared) {
    const Answer answer = worker.Generate(tokens, 1, 8, prefix_end);
    EXPECT_OK(answer.status);
    EXPECT_TRUE(worker.WaitIdle());
    return answer;
  }
  static void ExpectSame(const Answer& got, const Answer& want) {
    EXPECT_EQ(got.tokens, want.tokens);
    EXPECT_EQ(got.logits_digest, want.logits_digest);
  }
  std::unique_ptr<client::CacheClient> Client() {
    auto client = client::Connect(
        {.address = node_->address(), .client_name = "test", .tls = {}, .breaker = {}});
    EXPECT_OK(client);
    return *std::move(client);
  }
  uint64_t HostBytes() {
    const auto stats = Client()->Stat({.deadline = std::chrono::seconds(30), .trace = {}});
    EXPECT_OK(stats);
    for (const client::TierStat& tier : stats->tiers) {
      if (tier.tier == client::TierKind::kHost) return tier.used_bytes;
    }
    return 0;
  }

  std::unique_ptr<CacheNode> node_;
};

TEST_F(WorkerSelectionTest, ASegmentIsServedToAnotherWorkerAndFromDiskAfterARestart) {
  TemporaryDirectory disk;
  StartNode({"--disk.path", disk.path()});
  const std::string recipe = "random:keep=0.4+raw";
  Answer cold;
  {
    const auto worker = Worker(recipe);
    cold = Ask(*worker);
    EXPECT_EQ(cold.fetched_tokens, 0u);
    EXPECT_EQ(cold.selected_tokens, kShared);
    const Answer warm = Ask(*Worker(recipe));
    EXPECT_EQ(warm.fetched_tokens, kShared);
    EXPECT_GT(warm.host_bytes, 0u);
    ExpectSame(warm, cold);
    ASSERT_OK(Client()->Flush({.deadline = std::chrono::seconds(60), .trace = {}}));
  }
  node_->process().Kill();
  StartNode({"--disk.path", disk.path()});
  const Answer restored = Ask(*Worker(recipe));
  EXPECT_EQ(restored.fetched_tokens, kShared);
  EXPECT_GT(restored.disk_bytes, 0u);
  ExpectSame(restored, cold);
}

TEST_F(WorkerSelectionTest, OverTheNetworkToo) {
  StartNode();
  const std::vector<std::string> grpc = {"--cache.recipe", "random:keep=0.4+turbo:bits=4",
                                         "--cache.path", "grpc"};
  auto first = *WorkerProcess::Start(node_->address(), grpc);
  Ask(*first);
  const Answer warm = Ask(*first);
  EXPECT_EQ(warm.fetched_tokens, kShared);
  // The other way gives the same rows.
  ExpectSame(Ask(*Worker("random:keep=0.4+turbo:bits=4")), warm);
}

TEST_F(WorkerSelectionTest, HalfOfASegmentIsAMissAndAChildExtendsAWholeOne) {
  StartNode();
  const std::string recipe = "streaming:keep=0.5+raw";
  const auto worker = Worker(recipe);
  Ask(*worker, kPrompt, 8 * 64);
  const Answer half = Ask(*worker, 4 * 64 + 20, 4 * 64);
  EXPECT_EQ(half.fetched_tokens, 0u);
  EXPECT_EQ(half.miss_reason, kAbsent);
  const Answer child = Ask(*worker, kPrompt, kShared);
  EXPECT_EQ(child.fetched_tokens, 8u * 64) << "the deepest segment: not the half";
  const Answer again = Ask(*Worker(recipe), kPrompt, kShared);
  EXPECT_EQ(again.fetched_tokens, kShared);
  ExpectSame(again, child);
}

TEST_F(WorkerSelectionTest, BytesAtTheNodeFollowWhatIsKept) {
  std::map<std::string, uint64_t> bytes;
  for (const std::string keep : {"1", "0.5", "0.25"}) {
    StartNode();
    Ask(*Worker("streaming:keep=" + keep + "+raw"));
    bytes[keep] = HostBytes();
  }
  // Headers and masks are small; extents are whole units of 4 KiB.
  const auto all = static_cast<double>(bytes["1"]);
  EXPECT_NEAR(static_cast<double>(bytes["0.5"]) / all, 0.5, 0.05);
  EXPECT_NEAR(static_cast<double>(bytes["0.25"]) / all, 0.25, 0.05);
}

TEST_F(WorkerSelectionTest, KeepingAllIsTheRecipeRaw) {
  StartNode();
  const Answer all = Ask(*Worker("streaming:keep=1+raw"));
  const Answer raw = Ask(*Worker("raw"));
  EXPECT_EQ(raw.fetched_tokens, 0u) << "another namespace";
  EXPECT_EQ(all.logits_digest, raw.logits_digest);
}

}  // namespace
}  // namespace cairn::testing
