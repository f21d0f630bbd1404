// The blocks that a real node keeps, forgets and finds again.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <future>

#include "common/status/matchers.h"
#include "tests/integration/node_client.h"
#include "tests/support/process.h"

namespace cairn::testing {
namespace {

class NodeDataTest : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> extra = {}) {
    std::vector<std::string> args = {"--disk.path", directory.path(),  "--disk.capacity",
                                     "256MiB",      "--disk.min_free", "1MiB"};
    args.insert(args.end(), extra.begin(), extra.end());
    auto started = CacheNode::Start(args);
    ASSERT_OK(started);
    node = std::move(*started);
  }
  // All blocks 0 .. count - 1 match and come with the right bytes.
  void ExpectBlocks(NodeClient& client, const std::string& fingerprint, int count) {
    const v1::MatchResponse match = client.Match(fingerprint, count);
    ASSERT_EQ(match.matched_blocks(), static_cast<uint32_t>(count));
    const auto blocks = client.Fetch(match.lease_id());
    ASSERT_EQ(blocks.size(), static_cast<size_t>(count));
    for (int i = 0; i < count; ++i)
      EXPECT_EQ(blocks.at(static_cast<uint32_t>(i)), NodeClient::Payload(i)) << i;
  }
  void StoreBlocks(NodeClient& client, const std::string& fingerprint, int count) {
    for (int i = 0; i < count; ++i) {
      const grpc::Status status = client.Store(fingerprint, i);
      ASSERT_TRUE(status.ok()) << status.error_message();
    }
  }

  TemporaryDirectory directory;
  std::unique_ptr<CacheNode> node;
};

TEST_F(NodeDataTest, StoredBlocksComeBackByteForByte) {
  Start();
  NodeClient client(node->address());
  const std::string fingerprint = client.Open(NodeClient::Spec());
  StoreBlocks(client, fingerprint, 5);
  ExpectBlocks(client, fingerprint, 5);
  EXPECT_EQ(client.Store(fingerprint, 0).error_code(), grpc::StatusCode::ALREADY_EXISTS);
  // Larger than a frame of Fetch and of Push.
  const std::string other = client.Open(NodeClient::Spec("large"));
  ASSERT_TRUE(client.Store(other, 0, 5'000'000).ok());
  const auto blocks = client.Fetch(client.Match(other, 1).lease_id());
  EXPECT_EQ(blocks.at(0), NodeClient::Payload(0, 5'000'000));
}

TEST_F(NodeDataTest, FlushedBlocksSurviveSigkill) {
  Start();
  std::string fingerprint, node_id;
  uint64_t epoch = 0;
  {
    NodeClient client(node->address());
    node_id = client.hello().node_id();
    epoch = client.hello().node_epoch();
    fingerprint = client.Open(NodeClient::Spec());
    StoreBlocks(client, fingerprint, 20);
    ASSERT_TRUE(client.Flush().ok());
    EXPECT_EQ(client.Stat().unflushed_bytes(), 0u);
    node->process().Kill();
  }
  Start();
  NodeClient client(node->address());
  EXPECT_EQ(client.hello().node_id(), node_id);
  EXPECT_GT(client.hello().node_epoch(), epoch);
  EXPECT_EQ(client.Open(NodeClient::Spec()), fingerprint);
  ExpectBlocks(client, fingerprint, 20);
  EXPECT_GT(client.Stat().fetched_disk_bytes(), 0u);
}

TEST_F(NodeDataTest, CommittedBlocksReachTheDiskByThemselves) {
  Start({"--disk.flush_after", "200ms"});
  NodeClient client(node->address());
  const std::string fingerprint = client.Open(NodeClient::Spec());
  StoreBlocks(client, fingerprint, 3);
  EXPECT_TRUE(client.WaitStat([](const v1::StatResponse& stat) {
    uint64_t on_disk = 0;
    for (const auto& tier : stat.tiers())
      on_disk += tier.tier() == v1::TIER_KIND_DISK ? tier.blocks() : 0;
    return stat.unflushed_bytes() == 0 && on_disk == 3;
  }));
}

TEST_F(NodeDataTest, SigtermFlushesAndExitsZero) {
  Start({"--disk.flush_after", "10m"});
  std::string fingerprint;
  {
    NodeClient client(node->address());
    fingerprint = client.Open(NodeClient::Spec());
    StoreBlocks(client, fingerprint, 10);
    node->process().Signal(SIGTERM);
    v1::SessionEvent event;
    bool told = false;
    while (client.events()->Read(&event)) told = told || event.draining();
    EXPECT_TRUE(told) << "clients are told before the stream ends";
  }
  const auto exit = node->process().WaitExit(std::chrono::seconds(120));
  ASSERT_OK(exit);
  EXPECT_TRUE(exit->exited);
  EXPECT_EQ(exit->code, 0) << node->process().err();
  Start();
  NodeClient client(node->address());
  ExpectBlocks(client, fingerprint, 10);
}

TEST_F(NodeDataTest, LeasesAndReservationsEndWithTheConnection) {
  Start();
  NodeClient watcher(node->address());
  auto client = std::make_unique<NodeClient>(node->address());
  const std::string fingerprint = client->Open(NodeClient::Spec());
  StoreBlocks(*client, fingerprint, 2);
  ASSERT_NE(client->Match(fingerprint, 2).lease_id(), 0u);
  ASSERT_NE(client->Reserve(fingerprint, 7, 600'000), 0u);
  EXPECT_EQ(watcher.Stat().leases(), 1u);
  EXPECT_EQ(watcher.Stat().reservations(), 1u);
  EXPECT_EQ(watcher.Stat().sessions(), 2u);
  client->Close();
  EXPECT_TRUE(watcher.WaitStat([](const v1::StatResponse& stat) {
    return stat.leases() == 0 && stat.reservations() == 0 && stat.reserved_bytes() == 0 &&
           stat.sessions() == 1;
  }));
}

TEST_F(NodeDataTest, AKilledClientLeavesNothingBehind) {
  Start();
  NodeClient watcher(node->address());
  const std::string fingerprint = watcher.Open(NodeClient::Spec());
  StoreBlocks(watcher, fingerprint, 1);
  // This test again, as another process that takes a lease and a reservation and waits to be
  // killed.
  auto child = Process::Start({.argv = {"/proc/self/exe", "--gtest_also_run_disabled_tests",
                                        "--gtest_filter=NodeVictim.DISABLED_HoldsALeaseForever"},
                               .environment = {"CAIRN_TEST_NODE=" + node->address()}});
  ASSERT_OK(child);
  ASSERT_OK((*child)->WaitForLine("holding", std::chrono::seconds(120)));
  EXPECT_EQ(watcher.Stat().leases(), 1u);
  EXPECT_EQ(watcher.Stat().reservations(), 1u);
  (*child)->Signal(SIGKILL);
  EXPECT_TRUE(watcher.WaitStat([](const v1::StatResponse& stat) {
    return stat.leases() == 0 && stat.reservations() == 0 && stat.sessions() == 1;
  }));
}

TEST(NodeVictim, DISABLED_HoldsALeaseForever) {
  const char* address = std::getenv("CAIRN_TEST_NODE");
  ASSERT_NE(address, nullptr);
  NodeClient client(address);
  const std::string fingerprint = client.Open(NodeClient::Spec());
  ASSERT_NE(client.Match(fingerprint, 1, 600'000).lease_id(), 0u);
  ASSERT_NE(client.Reserve(fingerprint, 9, 600'000), 0u);
  std::printf("holding\n");
  std::fflush(stdout);
  v1::SessionEvent event;
  while (client.events()->Read(&event)) {
  }
}

TEST_F(NodeDataTest, LeasesAndReservationsExpire) {
  Start();
  NodeClient client(node->address());
  const std::string fingerprint = client.Open(NodeClient::Spec());
  StoreBlocks(client, fingerprint, 1);
  ASSERT_NE(client.Match(fingerprint, 1, 200).lease_id(), 0u);
  ASSERT_NE(client.Reserve(fingerprint, 5, 200), 0u);
  EXPECT_TRUE(client.WaitStat(
      [](const v1::StatResponse& stat) { return stat.leases() == 0 && stat.reservations() == 0; }));
}

TEST_F(NodeDataTest, WhatWasDroppedIsHiddenAtOnceAndAfterARestart) {
  Start();
  std::string dropped, bumped, of_tenant, kept;
  {
    NodeClient client(node->address());
    dropped = client.Open(NodeClient::Spec("a", "one"));
    bumped = client.Open(NodeClient::Spec("a", "two"));
    of_tenant = client.Open(NodeClient::Spec("b"));
    kept = client.Open(NodeClient::Spec("c"));
    for (const std::string& fingerprint : {dropped, bumped, of_tenant, kept})
      StoreBlocks(client, fingerprint, 3);
    ASSERT_TRUE(client.Flush().ok());
    v1::DropResponse response;
    {
      grpc::ClientContext context;
      v1::DropNamespaceRequest request;
      request.set_fingerprint(dropped);
      ASSERT_TRUE(client.admin().DropNamespace(&context, request, &response).ok());
      EXPECT_EQ(response.hidden_blocks(), 3u);
    }
    {
      grpc::ClientContext context;
      v1::BumpEpochRequest request;
      request.set_fingerprint(bumped);
      ASSERT_TRUE(client.admin().BumpEpoch(&context, request, &response).ok());
      EXPECT_EQ(response.hidden_blocks(), 3u);
    }
    {
      grpc::ClientContext context;
      v1::DropTenantRequest request;
      request.set_tenant("b");
      ASSERT_TRUE(client.admin().DropTenant(&context, request, &response).ok());
      EXPECT_EQ(response.namespaces(), 1u);
    }
    EXPECT_EQ(client.Match(dropped, 3).matched_blocks(), 0u);
    EXPECT_EQ(client.Match(bumped, 3).matched_blocks(), 0u);
    EXPECT_EQ(client.Match(of_tenant, 3).matched_blocks(), 0u);
    ExpectBlocks(client, kept, 3);
    // After an epoch the namespace takes blocks again.
    ASSERT_TRUE(client.Store(bumped, 0).ok());
    ExpectBlocks(client, bumped, 1);
    ASSERT_TRUE(client.Flush().ok());
    node->process().Kill();
  }
  Start();
  NodeClient client(node->address());
  client.Open(NodeClient::Spec("a", "one"));
  client.Open(NodeClient::Spec("a", "two"));
  client.Open(NodeClient::Spec("b"));
  EXPECT_EQ(client.Match(dropped, 3).matched_blocks(), 0u);
  EXPECT_EQ(client.Match(bumped, 3).matched_blocks(), 1u);
  EXPECT_EQ(client.Match(of_tenant, 3).matched_blocks(), 0u);
  ExpectBlocks(client, kept, 3);
}

TEST_F(NodeDataTest, ASimilarNamespaceNamesTheFieldThatDiffers) {
  Start();
  NodeClient client(node->address());
  const std::string fingerprint = client.Open(NodeClient::Spec("t"));
  StoreBlocks(client, fingerprint, 2);
  NamespaceSpec spec = NodeClient::Spec("t");
  spec.revision = "another";
  const v1::OpenNamespaceResponse opened = client.OpenSimilar(spec);
  EXPECT_TRUE(opened.created());
  ASSERT_EQ(opened.differs_size(), 1);
  EXPECT_EQ(opened.differs(0).field(), "revision");
  EXPECT_EQ(opened.differs(0).stored(), "revision");
  EXPECT_EQ(opened.differs(0).requested(), "another");
  EXPECT_EQ(opened.differs(0).stored_blocks(), 2u);
  EXPECT_EQ(client.Match(opened.fingerprint(), 2).miss_reason(), v1::MISS_REASON_FINGERPRINT);
}

TEST_F(NodeDataTest, AStoppedNodeGoesOnWhereItWas) {
  Start();
  NodeClient client(node->address());
  const std::string fingerprint = client.Open(NodeClient::Spec());
  StoreBlocks(client, fingerprint, 2);
  const v1::MatchResponse match = client.Match(fingerprint, 2, 600'000);
  node->process().Signal(SIGSTOP);
  // Nobody is served meanwhile: this call would be answered in a millisecond.
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  v1::StatResponse stat;
  EXPECT_EQ(client.cache().Stat(&context, v1::StatRequest(), &stat).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  // A call that was sent to the stopped node is served by the node that goes on.
  auto sent =
      std::async(std::launch::async, [&] { return client.Match(fingerprint, 2).matched_blocks(); });
  EXPECT_EQ(sent.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  node->process().Signal(SIGCONT);
  EXPECT_EQ(sent.get(), 2u);
  // The session, its lease and the blocks are as they were.
  const auto blocks = client.Fetch(match.lease_id());
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_EQ(blocks.at(1), NodeClient::Payload(1));
  ExpectBlocks(client, fingerprint, 2);
  EXPECT_EQ(client.Stat().sessions(), 1u);
}

}  // namespace
}  // namespace cairn::testing
