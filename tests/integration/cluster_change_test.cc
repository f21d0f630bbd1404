// Real nodes while their operators change something: the version of the nodes, or a node that was
// alone becomes a member.

#include <gmock/gmock.h>
#include <signal.h>

#include "tests/integration/cluster_nodes.h"

namespace cairn::testing {
namespace {

class ClusterChangeTest : public ClusterNodesTest {};

TEST_F(ClusterChangeTest, ANodeThatSpeaksTheVersionBeforeSharesBothWays) {
  TakePorts(3);
  for (size_t i = 0; i < 3; ++i) {
    std::vector<std::string> args = Static();
    if (i == 1) args.insert(args.end(), {"--cluster.speak", "1"});
    ASSERT_NO_FATAL_FAILURE(StartNode(i, args));
  }
  ASSERT_TRUE(Eventually([&] { return SeesAll({0, 1, 2}); }));
  Fill(1, "of-the-older");
  Fill(0, "of-the-newer");
  EXPECT_TRUE(Eventually([&] { return Reads(0, "of-the-older"); }));
  EXPECT_TRUE(Eventually([&] { return Reads(2, "of-the-older"); }));
  EXPECT_TRUE(Eventually([&] { return Reads(1, "of-the-newer"); }));
  for (const size_t i : {0, 1}) {
    const auto view = View(i);
    ASSERT_OK(view);
    EXPECT_GE(view->numbers.read_blocks, static_cast<uint64_t>(kBlocks)) << i;
  }
  // Bumps reach all from the older and from the newer, and all serve each other after that.
  for (const size_t i : {1, 0}) {
    const std::string tenant = fmt::format("bumped-at-{}", i);
    const std::string fingerprint = Fill(2, tenant);
    NodeClient operators(addresses_[i]);
    ASSERT_EQ(operators.Open(NodeClient::Spec(tenant)), fingerprint);
    grpc::ClientContext context;
    v1::BumpEpochRequest request;
    v1::DropResponse response;
    request.set_fingerprint(fingerprint);
    ASSERT_TRUE(operators.admin().BumpEpoch(&context, request, &response).ok());
    EXPECT_TRUE(Eventually([&] {
      NodeClient node(addresses_[2]);
      return node.Match(fingerprint, kBlocks).matched_blocks() == 0;
    })) << i;
    Fill(2, tenant);
    EXPECT_TRUE(Eventually([&] { return Reads(1, tenant) && Reads(0, tenant); })) << i;
  }
}

TEST_F(ClusterChangeTest, ADataDirectoryFromBeforeTheClusterOpensAndIsAnnounced) {
  TakePorts(2);
  TemporaryDirectory directory;
  const std::vector<std::string> disk = {"--disk.path", directory.path(),  "--disk.capacity",
                                         "256MiB",      "--disk.min_free", "1MiB"};
  {
    // A directory belongs to an id, whether it was given or made up.
    std::vector<std::string> args = disk;
    args.insert(args.end(), {"--node.id", Id(0)});
    const auto alone = CacheNode::Start(args);
    ASSERT_OK(alone);
    NodeClient node((*alone)->address());
    const std::string fingerprint = node.Open(NodeClient::Spec("before"));
    for (int block = 0; block < kBlocks; ++block) {
      ASSERT_TRUE(node.Store(fingerprint, block, 100).ok());
    }
    (*alone)->process().Signal(SIGTERM);
    node.Close();
    const auto exit = (*alone)->process().WaitExit(kPatience);
    ASSERT_OK(exit);
    ASSERT_EQ(exit->code, 0);
  }
  std::vector<std::string> args = Static();
  ASSERT_NO_FATAL_FAILURE(StartNode(1, args));
  args.insert(args.end(), disk.begin(), disk.end());
  ASSERT_NO_FATAL_FAILURE(StartNode(0, args));
  ASSERT_TRUE(Eventually([&] { return SeesAll({0, 1}); }));
  const auto view = View(0);
  ASSERT_OK(view);
  EXPECT_GT(view->numbers.waymarks, 0u);
  EXPECT_TRUE(Eventually([&] { return Reads(1, "before"); }));
  EXPECT_TRUE(Eventually([&] { return Reads(0, "before"); }));
}

}  // namespace
}  // namespace cairn::testing
