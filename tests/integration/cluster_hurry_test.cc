// Real nodes, and clients that give them less time than any answer of another member takes.

#include <grpcpp/create_channel.h>

#include <atomic>
#include <thread>

#include "cairn/v1/cluster.grpc.pb.h"
#include "tests/integration/cluster_nodes.h"

namespace cairn::testing {
namespace {

class ClusterHurryTest : public ClusterNodesTest {
 protected:
  static void SetDeadline(grpc::ClientContext* context, std::chrono::microseconds time) {
    context->set_deadline(std::chrono::system_clock::now() + time);
  }
  // Without a session.
  void LocateInAHurry(const std::string& fingerprint) {
    const auto stub = v1::Cluster::NewStub(
        grpc::CreateChannel(addresses_[0], grpc::InsecureChannelCredentials()));
    v1::LocateRequest request;
    request.set_fingerprint(fingerprint);
    request.set_timeout_ms(1);
    for (int i = 0; i < kBlocks; ++i) request.mutable_keys()->append(NodeClient::Key(i));
    while (!stop_) {
      grpc::ClientContext context;
      SetDeadline(&context, kPatience);
      v1::LocateResponse response;
      EXPECT_TRUE(stub->Locate(&context, request, &response).ok());
      ++hurried_;
    }
  }
  void MatchInAHurry(const std::string& fingerprint, std::chrono::microseconds time) {
    NodeClient client(addresses_[0]);
    v1::MatchRequest request;
    request.set_session_id(client.session());
    request.set_fingerprint(fingerprint);
    request.set_no_lease(true);
    for (int i = 0; i < kBlocks; ++i) request.mutable_keys()->append(NodeClient::Key(i));
    while (!stop_) {
      grpc::ClientContext context;
      SetDeadline(&context, time);
      v1::MatchResponse response;
      (void)client.cache().Match(&context, request, &response);
      ++hurried_;
    }
  }

  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> hurried_{0};
};

TEST_F(ClusterHurryTest, ClientsInAHurryCostOthersNoHits) {
  TakePorts(2);
  for (const size_t i : {0, 1}) ASSERT_NO_FATAL_FAILURE(StartNode(i, Static()));
  ASSERT_TRUE(Eventually([&] { return SeesAll({0, 1}); }));
  Fill(1, "honest");
  NodeClient honest(addresses_[0]);
  const std::string fingerprint = honest.Open(NodeClient::Spec("honest"));
  // Nothing is fetched, so that each match asks the other node.
  const auto hits = [&] {
    const v1::MatchResponse match = honest.Match(fingerprint, kBlocks);
    grpc::ClientContext context;
    SetDeadline(&context, kPatience);
    v1::ReleaseRequest request;
    v1::ReleaseResponse response;
    request.set_session_id(honest.session());
    if (match.lease_id() != 0) request.add_lease_ids(match.lease_id());
    EXPECT_TRUE(honest.cache().Release(&context, request, &response).ok());
    return match.matched_blocks();
  };
  ASSERT_TRUE(Eventually([&] { return hits() == kBlocks; }));
  std::vector<std::thread> others;
  for (int i = 0; i < 4; ++i) others.emplace_back([&] { LocateInAHurry(fingerprint); });
  for (const int time : {600, 1000, 1500, 5000}) {
    others.emplace_back([&, time] { MatchInAHurry(fingerprint, std::chrono::microseconds(time)); });
  }
  EXPECT_TRUE(Eventually([&] { return hurried_ > 100; }));
  uint32_t found = 0;
  constexpr uint32_t kMatches = 100;
  for (uint32_t i = 0; i < kMatches; ++i) found += hits();
  stop_ = true;
  for (std::thread& other : others) other.join();
  EXPECT_EQ(found, kMatches * kBlocks);
  const auto view = View(0);
  ASSERT_OK(view);
  ASSERT_EQ(view->members.size(), 1u);
  EXPECT_FALSE(view->members[0].skipped);
}

}  // namespace
}  // namespace cairn::testing
