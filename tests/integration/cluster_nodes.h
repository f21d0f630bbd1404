#pragma once
// Real nodes of one cluster on loopback, for tests that look at who is a member and at what the
// members give each other.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cairn/client/cluster.h"
#include "common/status/matchers.h"
#include "tests/integration/node_client.h"
#include "tests/support/etcd_cluster.h"
#include "tests/support/process.h"

namespace cairn::testing {

class ClusterNodesTest : public ::testing::Test {
 protected:
  // They have 16 tokens each, so that some four of them are waymarks.
  static constexpr int kBlocks = 128;
  static constexpr std::chrono::seconds kPatience{120};

  // Tries again until the time is up.
  template <typename Condition>
  static bool Eventually(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      Pause();
    }
    return true;
  }

  void TakePorts(size_t nodes) {
    const int first = FreePorts(static_cast<int>(nodes));
    for (size_t i = 0; i < nodes; ++i) {
      addresses_.push_back(fmt::format("127.0.0.1:{}", first + static_cast<int>(i)));
    }
    nodes_.resize(nodes);
  }
  static std::string Id(size_t i) { return fmt::format("n{}", i); }
  // With arguments that make it a member, such as those of Static().
  void StartNode(size_t i, std::vector<std::string> args) {
    args.insert(args.end(), {"--listen", addresses_[i], "--node.id", Id(i),
                             // The machine may be busy.
                             "--cluster.lookup_deadline", "2s", "--cluster.silence", "5s"});
    auto node = CacheNode::Start(args);
    ASSERT_OK(node);
    nodes_[i] = *std::move(node);
  }
  std::vector<std::string> Static() const {
    return {"--cluster.discovery", "static", "--cluster.members",
            fmt::format("{}", fmt::join(addresses_, ","))};
  }

  // The answer of a node. An error: it did not answer, which says nothing of what it sees.
  Result<client::ClusterMembers> AskOnce(size_t i,
                                         const client::ConnectOptions& options = {}) const {
    client::ConnectOptions to = options;
    to.address = addresses_[i];
    CAIRN_ASSIGN_OR_RETURN(const auto node, client::ConnectCluster(to));
    return node->Members({.deadline = std::chrono::seconds(5), .trace = ""});
  }
  // Asks until it answers.
  Result<client::ClusterMembers> View(size_t i, const client::ConnectOptions& options = {}) const {
    Result<client::ClusterMembers> view = Errorf(StatusCode::kUnavailable, "not asked");
    Eventually([&] { return (view = AskOnce(i, options)).ok(); });
    return view;
  }
  Result<std::vector<std::string>> Sees(size_t i,
                                        const client::ConnectOptions& options = {}) const {
    CAIRN_ASSIGN_OR_RETURN(const client::ClusterMembers view, View(i, options));
    std::vector<std::string> ids;
    for (const auto& member : view.members) ids.push_back(member.node_id);
    return ids;
  }
  // In this order. Not so while it does not answer.
  bool SeesJust(size_t i, const std::vector<std::string>& ids,
                const client::ConnectOptions& options = {}) const {
    const auto sees = Sees(i, options);
    return sees.ok() && *sees == ids;
  }
  bool SeesAll(const std::vector<size_t>& nodes) const {
    for (const size_t i : nodes) {
      std::vector<std::string> others;
      for (const size_t other : nodes) {
        if (other != i) others.push_back(Id(other));
      }
      const auto view = AskOnce(i);
      if (!view.ok() || view->members.size() != others.size()) return false;
      for (size_t k = 0; k < others.size(); ++k) {
        if (view->members[k].node_id != others[k] || !view->members[k].same_view) return false;
      }
    }
    return true;
  }

  // A namespace of its own, whose blocks node `i` stores. Returns its fingerprint.
  std::string Fill(size_t i, const std::string& tenant,
                   std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr) {
    NodeClient node(addresses_[i], std::move(credentials));
    const std::string fingerprint = node.Open(NodeClient::Spec(tenant));
    for (int block = 0; block < kBlocks; ++block) {
      const grpc::Status stored = node.Store(fingerprint, block, 100);
      EXPECT_TRUE(stored.ok()) << block << ": " << stored.error_message();
    }
    return fingerprint;
  }
  // The blocks come through node `i` with the right bytes; if they were not there, from another.
  bool Reads(size_t i, const std::string& tenant,
             std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr) {
    NodeClient node(addresses_[i], std::move(credentials));
    const std::string fingerprint = node.Open(NodeClient::Spec(tenant));
    const v1::MatchResponse match = node.Match(fingerprint, kBlocks);
    if (match.matched_blocks() != kBlocks) return false;
    const auto blocks = node.Fetch(match.lease_id());
    if (blocks.size() != kBlocks) return false;
    for (const auto& [block, bytes] : blocks) {
      if (bytes.empty()) return false;  // Late. The next try finds it.
      EXPECT_EQ(bytes, NodeClient::Payload(static_cast<int>(block), 100)) << block;
    }
    return true;
  }

  std::vector<std::string> addresses_;
  std::vector<std::unique_ptr<CacheNode>> nodes_;
};

}  // namespace cairn::testing
