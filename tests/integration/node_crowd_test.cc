// Many clients at once, some of which stop reading: bounded memory, and the others go on.

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include "tests/integration/node_client.h"
#include "tests/support/process.h"

namespace cairn::testing {
namespace {

constexpr size_t kMiB = 1 << 20;

TEST(NodeCrowdTest, AThousandIdleSessionsTakeLittleMemory) {
  auto node = CacheNode::Start({"--limits.sessions", "2000"});
  ASSERT_TRUE(node.ok());
  NodeClient first((*node)->address());
  const std::string fingerprint = first.Open(NodeClient::Spec());
  ASSERT_TRUE(first.Store(fingerprint, 0).ok());
  std::vector<std::unique_ptr<NodeClient>> crowd;
  // The memory that the first ones bring with them is the process's, not theirs.
  for (int i = 0; i < 100; ++i) crowd.push_back(std::make_unique<NodeClient>((*node)->address()));
  const uint64_t before = (*node)->process().ResidentBytes();
  for (int i = 0; i < 900; ++i) crowd.push_back(std::make_unique<NodeClient>((*node)->address()));
  for (const auto& client : crowd) ASSERT_EQ(client->session().size(), 16u);
  const uint64_t after = (*node)->process().ResidentBytes();
  EXPECT_LE(after - std::min(before, after), 900 * (128u << 10)) << "bytes of 900 idle sessions";
  const auto match = first.Match(fingerprint, 1);
  ASSERT_EQ(match.matched_blocks(), 1u);
  EXPECT_EQ(first.Fetch(match.lease_id()).at(0), NodeClient::Payload(0));
  EXPECT_EQ(first.Stat().sessions(), 1001u);
  crowd.clear();
  EXPECT_TRUE(first.WaitStat([](const v1::StatResponse& s) { return s.sessions() == 1; }));
}

TEST(NodeCrowdTest, StoppedReadersHoldLittleAndHarmNobody) {
  // Pages that the node touches ahead of their use would count as the readers'.
  auto node = CacheNode::Start({"--host.capacity", "128MiB", "--host.prefault", "false",
                                "--rpc.memory", "32MiB", "--rpc.max_connection_age", "0"});
  ASSERT_TRUE(node.ok());
  NodeClient writer((*node)->address());
  const std::string fingerprint = writer.Open(NodeClient::Spec());
  // Each fits into one frame of a node of little memory.
  constexpr size_t kBytes = kMiB / 4;
  constexpr int kBlocks = 128;
  for (int i = 0; i < kBlocks; ++i) ASSERT_TRUE(writer.Store(fingerprint, i, kBytes).ok());
  const auto match = writer.Match(fingerprint, kBlocks, 600'000);
  ASSERT_EQ(match.matched_blocks(), static_cast<uint32_t>(kBlocks));

  // 64 fetches of 32 MiB, each over a connection of its own, whose readers take one frame.
  struct Stopped {
    std::unique_ptr<v1::Cache::Stub> stub;
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::FetchFrame>> reader;
  };
  std::vector<std::unique_ptr<Stopped>> stopped;
  v1::FetchRequest request;
  request.set_session_id(writer.session());
  request.set_lease_id(match.lease_id());
  const uint64_t before = (*node)->process().ResidentBytes();
  for (int i = 0; i < 64; ++i) {
    auto one = std::make_unique<Stopped>();
    grpc::ChannelArguments own;
    own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    one->stub = v1::Cache::NewStub(
        grpc::CreateCustomChannel((*node)->address(), grpc::InsecureChannelCredentials(), own));
    one->reader = one->stub->Fetch(&one->context, request);
    v1::FetchFrame frame;
    ASSERT_TRUE(one->reader->Read(&frame)) << i;
    stopped.push_back(std::move(one));
  }
  // Others go on meanwhile, more than once.
  for (int i = 0; i < 3; ++i) {
    const auto blocks = writer.Fetch(match.lease_id());
    ASSERT_EQ(blocks.size(), static_cast<size_t>(kBlocks));
    EXPECT_EQ(blocks.at(kBlocks - 1), NodeClient::Payload(kBlocks - 1, kBytes));
  }
  // Frames are the arena's own bytes: 64 x 1 MiB would show if they were copied.
  const uint64_t after = (*node)->process().ResidentBytes();
  EXPECT_LE(after - std::min(before, after), 48 * kMiB);
  for (const auto& one : stopped) one->context.TryCancel();
  for (const auto& one : stopped) one->reader->Finish();
}

}  // namespace
}  // namespace cairn::testing
