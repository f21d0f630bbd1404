// Real nodes whose members are in etcd: what happens to them while etcd is away. How long it is
// away: CAIRN_ETCD_AWAY_SECONDS, or some leases.

#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>

#include "tests/integration/cluster_nodes.h"

namespace cairn::testing {
namespace {

// Three leases of two seconds, and a little more.
constexpr int kAwaySeconds = 7;

class ClusterEtcdTest : public ClusterNodesTest {
 protected:
  void SetUp() override {
    auto etcd = EtcdCluster::Start({});
    ASSERT_OK(etcd);
    etcd_ = *std::move(etcd);
    const auto leader = etcd_->Leader();
    ASSERT_OK(leader);
    leader_ = *leader;
    // A member of etcd waits for its leader, so nodes that begin with another one ask a leader that
    // hangs next. Until they come to the third one, their leases have ended.
    endpoints_ = etcd_->endpoints();
    std::rotate(endpoints_.begin(), endpoints_.begin() + (leader_ + 2) % 3, endpoints_.end());
    TakePorts(4);
    for (size_t i = 0; i < 3; ++i) ASSERT_NO_FATAL_FAILURE(StartNode(i, Etcd()));
    ASSERT_TRUE(Eventually([&] { return SeesAll({0, 1, 2}); }));
    Fill(1, "stored-before");
    ASSERT_TRUE(Eventually([&] { return Reads(0, "stored-before"); }));
  }
  std::vector<std::string> Etcd() const {
    return {"--cluster.discovery",      "etcd",
            "--cluster.etcd_endpoints", fmt::format("{}", fmt::join(endpoints_, ",")),
            "--cluster.etcd_ttl",       "2s"};
  }
  // Looks at all views, again and again, while etcd is away, and once after that; what changed, or
  // "". A member that does not answer is asked again: that is no change.
  std::string ChangeWhileAway(const std::vector<size_t>& nodes) {
    const char* const setting = std::getenv("CAIRN_ETCD_AWAY_SECONDS");
    const int seconds = setting == nullptr ? kAwaySeconds : std::atoi(setting);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    for (bool last = false; !last; Pause()) {
      last = std::chrono::steady_clock::now() >= end;
      for (const size_t i : nodes) {
        const auto sees = Sees(i);
        if (!sees.ok())
          return fmt::format("node {} does not answer: {}", i, ToString(sees.status()));
        if (sees->size() + 1 != nodes.size()) {
          return fmt::format("node {} sees [{}]", i, fmt::join(*sees, ", "));
        }
      }
    }
    return "";
  }

  std::unique_ptr<EtcdCluster> etcd_;
  int leader_ = 0;
  std::vector<std::string> endpoints_;  // The leader's is the second one.
};

TEST_F(ClusterEtcdTest, WithoutEtcdNoViewChangesAndHitsGoOn) {
  for (int i = 0; i < 3; ++i) etcd_->member(i).Signal(SIGSTOP);
  EXPECT_EQ(ChangeWhileAway({0, 1, 2}), "");
  Fill(2, "stored-meanwhile");
  EXPECT_TRUE(Eventually([&] { return Reads(0, "stored-meanwhile"); }));
  EXPECT_TRUE(Eventually([&] { return Reads(2, "stored-before"); }));
  for (int i = 0; i < 3; ++i) etcd_->member(i).Signal(SIGCONT);
  // All leases have ended, and all are members again for those that start now.
  ASSERT_OK(etcd_->WaitUntilReady());
  ASSERT_NO_FATAL_FAILURE(StartNode(3, Etcd()));
  EXPECT_TRUE(Eventually([&] { return SeesAll({0, 1, 2, 3}); }));
}

TEST_F(ClusterEtcdTest, AStoppedLeaderOfEtcdChangesNoView) {
  etcd_->member(leader_).Signal(SIGSTOP);
  EXPECT_EQ(ChangeWhileAway({0, 1, 2}), "");
  // Those that start now are found through the members that have a new leader.
  ASSERT_NO_FATAL_FAILURE(StartNode(3, Etcd()));
  EXPECT_TRUE(Eventually([&] { return SeesAll({0, 1, 2, 3}); }));
  etcd_->member(leader_).Signal(SIGCONT);
  // Nearly always all. EtcdTest.LostLeasesAreGrantedAgainAndNoViewShrinks takes them away.
  int lost = 0;
  for (size_t i = 0; i < 3; ++i) {
    lost += nodes_[i]->process().err().find("member_lease_lost") != std::string::npos ? 1 : 0;
  }
  RecordProperty("nodes_whose_lease_ended", lost);
}

}  // namespace
}  // namespace cairn::testing
