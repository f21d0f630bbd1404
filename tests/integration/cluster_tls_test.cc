// Real nodes that show each other certificates: who is no member though it has one.

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>

#include "cairn/v1/peer.grpc.pb.h"
#include "tests/integration/cluster_certificates.h"
#include "tests/integration/cluster_nodes.h"

namespace cairn::testing {
namespace {

using ::testing::HasSubstr;

class ClusterTlsTest : public ClusterNodesTest, protected ClusterCertificates {
 protected:
  std::vector<std::string> Args(const std::string& certificate) const {
    return Args(Static(), certificate);
  }
  using ClusterCertificates::Args;
  // Why node `i` does not take node `other` for a member.
  std::string WhyAbsent(size_t i, size_t other) const {
    const auto view = View(i, Connect());
    if (!view.ok()) return ToString(view.status());
    for (const auto& absent : view->absent) {
      if (absent.address == addresses_[other]) return absent.reason;
    }
    return "";
  }
};

TEST_F(ClusterTlsTest, WhoseCertificateDoesNotFitItsIdIsNoMember) {
  ASSERT_NO_FATAL_FAILURE(MakeAuthority());
  for (const char* const id : {"n0", "n1"}) {
    Issue(id, std::string("URI:spiffe://example/cairn/") + id);
  }
  Issue("foreign", "URI:spiffe://example/cairn/n9");  // The certificate of another node.
  Issue("worker", "DNS:worker.example");              // The certificate of no node.
  TakePorts(4);
  ASSERT_NO_FATAL_FAILURE(StartNode(0, Args("n0")));
  ASSERT_NO_FATAL_FAILURE(StartNode(1, Args("n1")));
  ASSERT_NO_FATAL_FAILURE(StartNode(2, Args("foreign")));
  ASSERT_NO_FATAL_FAILURE(StartNode(3, Args("worker")));
  EXPECT_TRUE(
      Eventually([&] { return SeesJust(0, {"n1"}, Connect()) && SeesJust(1, {"n0"}, Connect()); }));
  EXPECT_TRUE(Eventually([&] {
    return WhyAbsent(0, 2).find("peer_identities") != std::string::npos &&
           WhyAbsent(0, 3).find("peer_identities") != std::string::npos;
  })) << WhyAbsent(0, 2);
  EXPECT_THAT(WhyAbsent(0, 2), HasSubstr("'n2'"));
  // Those that are refused hear why.
  EXPECT_TRUE(
      Eventually([&] { return WhyAbsent(2, 0).find("peer_identities") != std::string::npos; }));
  EXPECT_TRUE(SeesJust(2, {}, Connect()));
  // Members share, and what a stranger holds nobody is told of.
  Fill(0, "of-a-member", As("n0"));
  EXPECT_TRUE(Eventually([&] { return Reads(1, "of-a-member", As("n1")); }));
  EXPECT_FALSE(Reads(2, "of-a-member", As("foreign")));
  Fill(2, "of-a-stranger", As("foreign"));
  EXPECT_FALSE(Reads(0, "of-a-stranger", As("n0")));
  EXPECT_TRUE(SeesJust(0, {"n1"}, Connect()));
}

TEST_F(ClusterTlsTest, AMemberSpeaksForItsOwnIdOnly) {
  ASSERT_NO_FATAL_FAILURE(MakeAuthority());
  Issue("n0", "URI:spiffe://example/cairn/n0");
  Issue("n1", "URI:spiffe://example/cairn/n1");
  TakePorts(1);
  ASSERT_NO_FATAL_FAILURE(StartNode(0, Args("n0")));
  const auto stub = v1::Peer::NewStub(grpc::CreateChannel(addresses_[0], As("n1")));
  const auto find_as = [&](const std::string& id) {
    grpc::ClientContext context;
    v1::FindRequest request;
    v1::FindResponse response;
    request.mutable_caller()->set_cluster("cairn");
    request.mutable_caller()->set_node_id(id);
    request.add_waymarks(8);
    return stub->Find(&context, request, &response);
  };
  EXPECT_TRUE(find_as("n1").ok());
  const grpc::Status refused = find_as("n2");
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(refused.error_message(), HasSubstr("does not fit node 'n2'"));
}

}  // namespace
}  // namespace cairn::testing
