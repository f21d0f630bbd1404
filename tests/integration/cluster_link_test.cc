// Two real nodes whose device tiers move blocks to each other, over the fake device and the fake
// NCCL. The parts between them are real: gRPC, shared memory, kill -9.

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <signal.h>

#include <cstdio>
#include <cstdlib>

#include "cairn/v1/link.grpc.pb.h"
#include "common/metrics/admin_server.h"
#include "tests/integration/cluster_certificates.h"
#include "tests/integration/cluster_nodes.h"
#include "tests/support/fake_device/fake_devices.h"
#include "tests/support/fake_nccl/fake_library.h"

namespace cairn::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ClusterLinkTest : public ClusterNodesTest, protected ClusterCertificates {
 protected:
  static constexpr std::chrono::seconds kLimit{60};

  // Node 0 holds, node 1 reads. `nccl`: what the node's fake NCCL does (fake_nccl/actions.h).
  void StartLinked(size_t i, const std::string& nccl = "", std::vector<std::string> extra = {}) {
    std::vector<std::string> args = Static();
    args.insert(args.end(), {"--device.library", device::fake::LibraryPath(), "--device.capacity",
                             "32MiB", "--device.chunk", "1MiB", "--link.enabled", "--link.library",
                             link::fake::LibraryPath(), "--link.buffer", "1MiB", "--link.timeout",
                             "20s", "--cluster.read_timeout", "60s"});
    args.insert(args.end(), extra.begin(), extra.end());
    // They inherit it.
    setenv("CAIRN_FAKE_DEVICE", fmt::format("seed={}", i + 1).c_str(), 1);
    setenv("CAIRN_FAKE_NCCL", nccl.c_str(), 1);
    StartNode(i, args);
    unsetenv("CAIRN_FAKE_DEVICE");
    unsetenv("CAIRN_FAKE_NCCL");
  }
  void StartBoth(const std::string& holder = "", const std::string& reader = "",
                 const std::vector<std::string>& extra = {}) {
    TakePorts(2);
    StartLinked(0, holder, extra);
    StartLinked(1, reader, extra);
    ASSERT_TRUE(Eventually([&] { return SeesAll({0, 1}); }));
  }
  void TearDown() override {
    if (!HasFailure()) return;
    for (const auto& node : nodes_) {
      if (node == nullptr) continue;
      std::fprintf(stderr, "---- a node said:\n%s\n", node->process().err().c_str());
      if (!node->process().running()) continue;
      const auto metrics = metrics::HttpGet(node->admin(), "/metrics", kLimit);
      if (metrics.ok()) std::fprintf(stderr, "---- and has:\n%s\n", metrics->c_str());
    }
  }
  static uint64_t OnDevice(const v1::StatResponse& stat) {
    for (const auto& tier : stat.tiers()) {
      if (tier.tier() == v1::TIER_KIND_DEVICE) return tier.blocks();
    }
    return 0;
  }
  // Blocks of a tenant of its own, in node 0's device tier.
  void FillDevice(const std::string& tenant) {
    Fill(0, tenant, credentials_);
    NodeClient node(addresses_[0], credentials_);
    const uint64_t before = OnDevice(node.Stat());
    ASSERT_TRUE(Reads(0, tenant, credentials_));
    ASSERT_TRUE(node.WaitStat(
        [&](const v1::StatResponse& stat) { return OnDevice(stat) >= before + kBlocks; }));
  }
  // Reads them through node 1, until nothing is late any more.
  bool ReadsAll(const std::string& tenant) {
    return Eventually([&] { return Reads(1, tenant, credentials_); });
  }
  std::string Scrape(size_t i, const std::string& path = "/metrics") {
    const auto answer = metrics::HttpGet(nodes_[i]->admin(), path, kLimit);
    EXPECT_OK(answer);
    return answer.ok() ? *answer : "";
  }
  // A metric, as it is written: name and labels. -1: it is not there.
  double Metric(size_t i, const std::string& name) {
    const std::string all = "\n" + Scrape(i);
    const size_t at = all.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::strtod(&all[at + name.size() + 2], nullptr);
  }
  double Received() { return Metric(1, "cairn_link_blocks_total{direction=\"received\"}"); }
  double Failures(const std::string& reason) {
    return Metric(1, fmt::format("cairn_link_failures_total{{reason=\"{}\"}}", reason));
  }
  // The first blocks come as streams while the link is made; then one tries it.
  void WarmUp() {
    FillDevice("t0");
    ASSERT_TRUE(ReadsAll("t0"));
    ASSERT_TRUE(Eventually([&] { return Metric(1, "cairn_links{state=\"open\"}") == 1; }));
    FillDevice("t1");
    ASSERT_TRUE(ReadsAll("t1"));
    ASSERT_GE(Received(), 1);
  }
  void ExpectCleanEnd(size_t i) {
    nodes_[i]->process().Signal(SIGTERM);
    const auto exit = nodes_[i]->process().WaitExit(std::chrono::seconds(120));
    ASSERT_OK(exit);
    EXPECT_EQ(exit->code, 0);
    EXPECT_THAT(nodes_[i]->process().err(), Not(HasSubstr("fake device:")));
    EXPECT_THAT(nodes_[i]->process().err(), Not(HasSubstr("fake NCCL:")));
  }
  // The answer of node 0 to somebody who wants to open a link under this name.
  grpc::Status OpenAs(const std::string& reader,
                      const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    const auto stub = v1::Link::NewStub(grpc::CreateChannel(addresses_[0], credentials));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kLimit);
    v1::LinkOpenRequest request;
    request.set_reader(reader);
    v1::LinkOpenResponse response;
    return stub->Open(&context, request, &response);
  }
  static size_t Count(const std::string& text, const std::string& word) {
    size_t count = 0;
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
      ++count;
    }
    return count;
  }

  // The credentials of the clients. nullptr: no TLS.
  std::shared_ptr<grpc::ChannelCredentials> credentials_;
};

TEST_F(ClusterLinkTest, BlocksMoveFromDeviceToDevice) {
  StartBoth();
  EXPECT_EQ(Metric(1, "cairn_link_up"), 1);
  EXPECT_EQ(Scrape(1, "/readyz"), "ready\n");
  WarmUp();
  const double before = Received();
  const double streamed = Metric(0, "cairn_cluster_bytes_total{direction=\"sent\"}");
  FillDevice("t");
  ASSERT_TRUE(ReadsAll("t"));
  EXPECT_EQ(Received() - before, kBlocks);
  EXPECT_EQ(Metric(0, "cairn_cluster_bytes_total{direction=\"sent\"}"), streamed);
  EXPECT_EQ(Metric(0, "cairn_link_blocks_total{direction=\"sent\"}"), Received());
  EXPECT_EQ(Metric(1, "cairn_link_fallbacks_total"), 0);
  EXPECT_EQ(Metric(1, "cairn_link_wrong_blocks_total"), 0);
  EXPECT_EQ(Metric(1, "cairn_links{state=\"open\"}"), 1);
  ExpectCleanEnd(1);
  ExpectCleanEnd(0);
}

TEST_F(ClusterLinkTest, AHolderThatIsKilledInMidMoveCostsMissesAndComesBack) {
  StartBoth("die=work:1");
  for (const char* const tenant : {"t0", "t1", "t2"}) FillDevice(tenant);
  // Its first move ends well, and in its second one it dies. Not all blocks come: none comes with
  // wrong bytes, and the fetches end.
  for (const char* const tenant : {"t0", "t1", "t2"}) {
    (void)Reads(1, tenant);
    ASSERT_TRUE(Eventually([&] {
      return !nodes_[0]->process().running() || Metric(1, "cairn_links{state=\"open\"}") == 1;
    }));
  }
  const auto exit = nodes_[0]->process().WaitExit(kLimit);
  ASSERT_OK(exit);
  EXPECT_EQ(exit->code, SIGKILL);
  EXPECT_EQ(Scrape(1, "/readyz"), "ready\n");
  StartLinked(0);
  ASSERT_TRUE(Eventually([&] { return SeesAll({0, 1}); }));
  FillDevice("t3");
  EXPECT_TRUE(ReadsAll("t3"));
}

TEST_F(ClusterLinkTest, AMoveThatHangsIsLateAndItsBlockComesOverGrpc) {
  StartBoth("", "hang=work:0", {"--link.timeout", "500ms"});
  for (const char* const tenant : {"t0", "t1"}) {
    FillDevice(tenant);
    ASSERT_TRUE(ReadsAll(tenant));
    // Once it has joined, a block tries it.
    ASSERT_TRUE(Eventually([&] {
      return Failures("deadline") >= 1 || Metric(1, "cairn_links{state=\"open\"}") == 1;
    }));
  }
  EXPECT_GE(Failures("deadline"), 1);
  EXPECT_EQ(Received(), 0);
  EXPECT_GE(Metric(1, "cairn_link_fallbacks_total"), 1);
  EXPECT_EQ(Metric(1, "cairn_cluster_failed_reads_total"), 0);
  EXPECT_THAT(nodes_[1]->process().err(), HasSubstr("link_move_failed"));
}

TEST_F(ClusterLinkTest, WithoutNcclOneLineSaysSoAndGrpcServes) {
  TakePorts(2);
  StartLinked(0);
  StartLinked(1, "", {"--link.library", "/nowhere/libnccl.so.2"});
  ASSERT_TRUE(Eventually([&] { return SeesAll({0, 1}); }));
  FillDevice("t");
  EXPECT_TRUE(ReadsAll("t"));
  EXPECT_EQ(Metric(1, "cairn_link_up"), 0);
  EXPECT_EQ(Received(), -1);
  EXPECT_EQ(Scrape(0, "/readyz"), "ready\n");
  EXPECT_THAT(Scrape(1, "/readyz"),
              HasSubstr("ready, degraded: no links: no NCCL: /nowhere/libnccl.so.2"));
  EXPECT_EQ(Count(nodes_[1]->process().err(), "no_nccl"), 1u);
  EXPECT_EQ(Metric(0, "cairn_links{state=\"open\"}"), 0);
}

TEST_F(ClusterLinkTest, WithoutAGpuTheNodeServesAndGivesBothReasons) {
  TakePorts(2);
  StartLinked(0, "", {"--device.library", "/nowhere/libcairn_cuda.so"});
  EXPECT_THAT(Scrape(0, "/readyz"),
              AllOf(HasSubstr("ready, degraded: no device tier: no library of devices: /nowhere"),
                    HasSubstr("; no links: there is no device tier\n")));
}

TEST_F(ClusterLinkTest, AnotherHostIsRefusedUnlessTheNetworkIsTrusted) {
  TakePorts(2);
  StartLinked(0, "", {"--link.host", "here"});
  StartLinked(1, "", {"--link.host", "there"});
  ASSERT_TRUE(Eventually([&] { return SeesAll({0, 1}); }));
  FillDevice("t");
  EXPECT_TRUE(ReadsAll("t"));
  EXPECT_TRUE(Eventually([&] { return Metric(1, "cairn_link_broken_total") >= 1; }));
  EXPECT_EQ(Received(), 0);
  EXPECT_TRUE(Eventually(
      [&] { return nodes_[1]->process().err().find("not named trusted") != std::string::npos; }));
  // They start again.
  for (const size_t i : {0, 1}) {
    nodes_[i].reset();
    StartLinked(i, "", {"--link.host", i == 0 ? "here" : "there", "--link.trusted_network"});
  }
  ASSERT_TRUE(Eventually([&] { return SeesAll({0, 1}); }));
  WarmUp();
  EXPECT_EQ(Metric(1, "cairn_link_broken_total"), 0);
}

TEST_F(ClusterLinkTest, AMemberWithoutLinksReadsFromOneThatHasThem) {
  TakePorts(2);
  StartLinked(0);
  StartNode(1, Static());
  ASSERT_TRUE(Eventually([&] { return SeesAll({0, 1}); }));
  FillDevice("t");
  EXPECT_TRUE(ReadsAll("t"));
  EXPECT_EQ(Metric(1, "cairn_link_up"), -1);
}

TEST_F(ClusterLinkTest, OnlyMembersOpenLinks) {
  StartBoth();
  const auto plain = grpc::InsecureChannelCredentials();
  const grpc::Status stranger = OpenAs("nobody", plain);
  EXPECT_EQ(stranger.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(stranger.error_message(), HasSubstr("the id of a member"));
  // A member is heard: this request of it is empty.
  EXPECT_EQ(OpenAs("n1", plain).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ClusterLinkTest, CertificatesOfLinksAreThoseOfMembers) {
  ASSERT_NO_FATAL_FAILURE(MakeAuthority());
  for (const char* const id : {"n0", "n1"}) IssueMember(id);
  Issue("worker", "DNS:worker.example");
  credentials_ = As("n0");
  TakePorts(2);
  for (const size_t i : {0, 1}) StartLinked(i, "", Args({}, Id(i)));
  ASSERT_TRUE(
      Eventually([&] { return SeesJust(0, {"n1"}, Connect()) && SeesJust(1, {"n0"}, Connect()); }));
  WarmUp();
  for (const char* const certificate : {"worker", "n0"}) {
    const grpc::Status refused = OpenAs("n1", As(certificate));
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::PERMISSION_DENIED) << certificate;
    EXPECT_THAT(refused.error_message(), HasSubstr("cluster.peer_identities"));
  }
  EXPECT_EQ(OpenAs("n1", As("n1")).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace cairn::testing
