// Three real nodes: what an operator sees and does with `cairn stat --cluster` and `cairn cluster`,
// what Locate tells a router, and what one that follows all events hears.

#include <gmock/gmock.h>
#include <signal.h>

#include <fstream>
#include <map>
#include <set>

#include "cairn/client/cluster.h"
#include "cairn/client/cluster_events.h"
#include "common/status/matchers.h"
#include "tests/integration/cli_support.h"
#include "tests/integration/node_client.h"
#include "tests/support/etcd_cluster.h"

namespace cairn::testing {
namespace {

using client::MemberEvent;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kNodes = 3;
// They have 16 tokens each, so some four of them are waymarks.
constexpr int kBlocks = 128;
constexpr seconds kPatience(120);

// Tries again until the time is up.
template <typename Condition>
bool Eventually(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    Pause();
  }
  return true;
}

// An index of blocks by node, as a router keeps it.
class Index {
 public:
  explicit Index(client::ClusterEvents* events) : events_(*events) {}

  // Reads events until the condition holds.
  template <typename Condition>
  bool Until(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      const auto event = events_.Next(std::chrono::milliseconds(100));
      if (!event.ok()) return false;
      if (*event) Take(**event);
    }
    return true;
  }
  size_t blocks(const std::string& node) const {
    const auto it = blocks_.find(node);
    return it == blocks_.end() ? 0 : it->second.size();
  }
  bool complete(const std::string& node) const { return complete_.contains(node); }
  bool lost(const std::string& node) const { return lost_.contains(node); }

 private:
  void Take(const MemberEvent& event) {
    const std::string& node = event.node_id;
    switch (event.kind) {
      case MemberEvent::Kind::kSnapshotBegins:
        lost_.erase(node);
        complete_.erase(node);
        blocks_[node].clear();
        break;
      case MemberEvent::Kind::kSnapshotEnds:
        complete_.insert(node);
        break;
      case MemberEvent::Kind::kMemberLost:
        lost_.insert(node);
        complete_.erase(node);
        blocks_.erase(node);
        break;
      case MemberEvent::Kind::kEvent:
        if (event.event.kind == CacheEvent::Kind::kStored) blocks_[node].insert(event.event.key);
        if (event.event.kind == CacheEvent::Kind::kRemoved) blocks_[node].erase(event.event.key);
        if (event.event.kind == CacheEvent::Kind::kNamespaceDropped) blocks_[node].clear();
        break;
    }
  }

  client::ClusterEvents& events_;
  std::map<std::string, std::set<BlockKey>> blocks_;
  std::set<std::string> complete_, lost_;
};

class ClusterOperatorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const int first = FreePorts(kNodes);
    for (int i = 0; i < kNodes; ++i) {
      addresses_.push_back(fmt::format("127.0.0.1:{}", first + i));
    }
    nodes_.resize(kNodes);
    for (int i = 0; i < kNodes; ++i) StartNode(i);
    ASSERT_TRUE(Eventually([&] { return Stat().code == 0; })) << Stat().out << Stat().err;
  }
  void StartNode(int i) {
    auto node = CacheNode::Start({"--listen", addresses_[i], "--node.id", Id(i),
                                  "--cluster.discovery", "static", "--cluster.members",
                                  fmt::format("{}", fmt::join(addresses_, ","))});
    ASSERT_OK(node);
    nodes_[i] = *std::move(node);
  }
  static std::string Id(int i) { return fmt::format("n{}", i); }
  CommandResult Stat() { return Cairn({"stat", "--cluster", "--cache", addresses_[0]}); }
  CommandResult Cluster(std::vector<std::string> args) {
    args.insert(args.begin(), "cluster");
    return Cairn(std::move(args));
  }
  // At node i; the fingerprint.
  std::string Fill(int i, int blocks) {
    NodeClient node(addresses_[i]);
    const std::string fingerprint = node.Open(NodeClient::Spec());
    for (int block = 0; block < blocks; ++block) {
      EXPECT_TRUE(node.Store(fingerprint, block, 100).ok());
    }
    return fingerprint;
  }
  static std::string Hex(const std::string& bytes) {
    return Digest::FromBytes(bytes, "digest")->Hex();
  }

  std::vector<std::string> addresses_;
  std::vector<std::unique_ptr<CacheNode>> nodes_;
};

TEST_F(ClusterOperatorTest, StatShowsAllMembersAndWhoIsMissing) {
  const auto all = Cairn({"stat", "--cluster", "--json", "--cache", addresses_[1]}).Json();
  EXPECT_EQ(all["equal_views"], true);
  ASSERT_EQ(all["nodes"].size(), 3u);
  for (int i = 0; i < kNodes; ++i) {
    const auto& node = all["nodes"][i];
    EXPECT_EQ(node["node_id"], Id(i));
    EXPECT_EQ(node["address"], addresses_[i]);
    EXPECT_THAT(node["sees"], ElementsAre("n0", "n1", "n2"));
    EXPECT_FALSE(node["self"]["version"].get<std::string>().empty());
    EXPECT_EQ(node["members"][0]["version"], node["self"]["version"]);
    EXPECT_GT(node["tiers"]["host"]["capacity_bytes"], 0);
  }
  nodes_[2]->process().Kill();
  const CommandResult missing = Stat();
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.out, HasSubstr("n2 does not answer"));
  const CommandResult nobody = Cairn({"stat", "--cluster", "--cache", addresses_[2]});
  EXPECT_EQ(nobody.code, 2);
  EXPECT_THAT(nobody.err, HasSubstr(addresses_[2]));
}

TEST_F(ClusterOperatorTest, LocateTellsWhichNodeHoldsHowMuch) {
  const std::string fingerprint = Fill(1, kBlocks);
  Fill(0, 3);
  TemporaryDirectory directory;
  const std::string keys = directory.path() + "/keys";
  std::ofstream file(keys);
  for (int i = 0; i < kBlocks; ++i) file << Hex(NodeClient::Key(i)) << "\n";
  file.close();
  nlohmann::json found;
  // Announcements take a moment.
  EXPECT_TRUE(Eventually([&] {
    found = Cluster({"locate", "--cache", addresses_[0], "--namespace", Hex(fingerprint), "--keys",
                     keys, "--json"})
                .Json();
    return found["nodes"].size() == 2;
  })) << found;
  EXPECT_EQ(found["nodes"][0]["node_id"], "n1");
  EXPECT_EQ(found["nodes"][0]["blocks"], kBlocks);
  EXPECT_EQ(found["nodes"][0]["memory_blocks"], kBlocks);
  EXPECT_EQ(found["nodes"][1]["node_id"], "n0");
  EXPECT_EQ(found["nodes"][1]["blocks"], 3);
  // Nobody's hits or leases.
  NodeClient node(addresses_[1]);
  EXPECT_EQ(node.Stat().leases(), 0u);
  EXPECT_EQ(node.Stat().matched_tokens(), 0u);
  // A namespace that the node does not know.
  const CommandResult unknown = Cluster(
      {"locate", "--cache", addresses_[2], "--namespace", Hex(fingerprint), "--keys", keys});
  EXPECT_EQ(unknown.code, 1);
  EXPECT_THAT(unknown.err, HasSubstr(addresses_[2]));
}

TEST_F(ClusterOperatorTest, ABumpAtOneMemberIsKnownToAll) {
  const std::string fingerprint = Fill(1, 4);
  Fill(2, 4);
  const CommandResult bumped =
      Cluster({"bump", "--cache", addresses_[0], "--namespace", Hex(fingerprint), "--json"});
  EXPECT_EQ(bumped.code, 0) << bumped.out << bumped.err;
  EXPECT_EQ(bumped.Json()["done"], true);
  // Also where it was not called.
  for (const int i : {1, 2}) {
    NodeClient node(addresses_[i]);
    EXPECT_EQ(node.Match(fingerprint, 4).matched_blocks(), 0u) << i;
  }
  nodes_[2]->process().Signal(SIGSTOP);
  const CommandResult late = Cluster({"bump", "--cache", addresses_[0], "--namespace",
                                      Hex(fingerprint), "--wait", "1", "--timeout", "0.5"});
  EXPECT_EQ(late.code, 1);
  EXPECT_THAT(late.out, HasSubstr("n2: it does not answer"));
  nodes_[2]->process().Signal(SIGCONT);
}

TEST_F(ClusterOperatorTest, ATenantIsDroppedAtAllMembers) {
  Fill(1, 4);
  Fill(2, 4);
  const CommandResult dropped = Cluster({"drop-tenant", "--cache", addresses_[0], "--tenant", "t"});
  EXPECT_EQ(dropped.code, 0) << dropped.out << dropped.err;
  for (int i = 0; i < kNodes; ++i) {
    NodeClient node(addresses_[i]);
    EXPECT_EQ(node.Stat().namespaces(), 0u) << i;
  }
}

TEST_F(ClusterOperatorTest, ADrainedNodeLeavesAndEnds) {
  const CommandResult drained = Cluster({"drain", "--cache", addresses_[1]});
  EXPECT_EQ(drained.code, 0) << drained.err;
  const auto exit = nodes_[1]->process().WaitExit(kPatience);
  ASSERT_OK(exit);
  EXPECT_TRUE(exit->exited);
  EXPECT_EQ(exit->code, 0);
  // The others hear it from the node itself, and keep it in their list as absent. On a busy machine
  // that takes a moment.
  nlohmann::json view;
  ASSERT_TRUE(Eventually([&] {
    const CommandResult asked = Cluster({"members", "--cache", addresses_[0], "--json"});
    if (asked.code != 0) return false;
    view = asked.Json();
    return view["members"].size() == 1 && view["absent"].size() == 1;
  })) << view;
  EXPECT_EQ(view["members"][0]["node_id"], "n2");
  EXPECT_EQ(view["absent"][0]["address"], addresses_[1]);
}

TEST_F(ClusterOperatorTest, OneThatFollowsAllEventsKeepsAnIndex) {
  Fill(1, 5);
  const auto events =
      client::WatchCluster({.address = addresses_[0]},
                           {.refresh = std::chrono::milliseconds(200), .lost_after = seconds(1)});
  ASSERT_OK(events);
  Index index(events->get());
  // The blocks that were there, and those that come.
  EXPECT_TRUE(index.Until(
      [&] { return index.complete("n0") && index.complete("n1") && index.complete("n2"); }));
  EXPECT_EQ(index.blocks("n1"), 5u);
  Fill(2, 7);
  EXPECT_TRUE(index.Until([&] { return index.blocks("n2") == 7; }));
  // The list comes from others when the node that was asked first is gone.
  nodes_[0]->process().Kill();
  nodes_[2]->process().Kill();
  EXPECT_TRUE(index.Until([&] { return index.lost("n0") && index.lost("n2"); }));
  EXPECT_EQ(index.blocks("n2"), 0u);
  StartNode(2);
  EXPECT_TRUE(index.Until([&] { return index.complete("n2"); }));
  Fill(2, 2);
  EXPECT_TRUE(index.Until([&] { return index.blocks("n2") == 2; }));
  // On a busy machine it may be lost for a while, too.
  EXPECT_TRUE(index.Until([&] { return index.blocks("n1") == 5; }));
}

}  // namespace
}  // namespace cairn::testing
