// A node, a worker and a router, each with a policy: a tenant travels from one to the next because
// the certificate of the one before has the role for it.

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <fstream>

#include "cairn/v1/router.grpc.pb.h"
#include "cairn/v1/worker.grpc.pb.h"
#include "common/status/matchers.h"
#include "tests/integration/cluster_certificates.h"
#include "tests/integration/node_client.h"
#include "tests/integration/router_support.h"
#include "tests/support/process.h"

namespace cairn::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::seconds kPatience(120);

class RouterPolicyTest : public ::testing::Test, protected ClusterCertificates {
 protected:
  struct Server {
    std::unique_ptr<Process> process;
    std::string address;
  };

  void SetUp() override {
    MakeAuthority();
    Issue("server", "DNS:localhost");
    for (const char* who : {"worker", "router", "a", "other"}) {
      Issue(who, std::string("URI:spiffe://example/") + who);
    }
    node_ = Start("cairn-cache", {{"worker", "writer", "kv"}}, {"--host.capacity", "64MiB"});
    worker_ = Start("cairn-worker", {{"router", "writer", "\"*\""}},
                    {"--model",
                     kSmallModel,
                     "--threads",
                     "1",
                     "--kv_pool",
                     "64MiB",
                     "--tenant",
                     "kv",
                     "--cache.address",
                     node_.address,
                     "--cache.ca",
                     Path("ca.pem"),
                     "--cache.cert",
                     Path("worker.pem"),
                     "--cache.key",
                     Path("worker.key"),
                     "--cache.match_deadline",
                     "10s",
                     "--cache.stall_deadline",
                     "10s"});
    router_ = Start(
        "cairn-router", {{"a", "writer", "a"}},
        {"--model", kSmallModel, "--workers", worker_.address, "--workers_tls.ca", Path("ca.pem"),
         "--workers_tls.cert", Path("router.pem"), "--workers_tls.key", Path("router.key")});
  }

  struct Rule {
    std::string who, role, tenant;
  };
  Server Start(const std::string& program, const std::vector<Rule>& rules,
               const std::vector<std::string>& args) {
    const std::string policy = Path(program + ".yaml");
    std::ofstream file(policy);
    file << "rules:\n";
    for (const auto& [who, role, tenant] : rules) {
      file << "  - {identity: \"uri:spiffe://example/" << who << "\", role: " << role
           << ", tenants: [" << tenant << "]}\n";
    }
    file.close();
    std::vector<std::string> argv = {
        Binary(program), "--listen",         "127.0.0.1:0", "--admin.listen",   "127.0.0.1:0",
        "--tls.cert",    Path("server.pem"), "--tls.key",   Path("server.key"), "--tls.client_ca",
        Path("ca.pem"),  "--auth.policy",    policy};
    argv.insert(argv.end(), args.begin(), args.end());
    Server server;
    auto process = Process::Start({.argv = argv});
    EXPECT_OK(process);
    server.process = *std::move(process);
    const auto line = server.process->WaitForLine("ready ", kPatience);
    EXPECT_OK(line) << server.process->err();
    server.address = LineField(*line, "grpc");
    return server;
  }
  std::unique_ptr<v1::Router::Stub> RouterAs(const std::string& who) {
    return v1::Router::NewStub(grpc::CreateChannel(router_.address, As(who)));
  }
  // Until the router has its worker.
  grpc::Status Generate(v1::Router::Stub& stub, const std::string& tenant) {
    v1::GenerateRequest request = RouterProcess::Request(200);
    request.set_tenant(tenant);
    grpc::Status status;
    const auto end = std::chrono::steady_clock::now() + kPatience;
    do {
      grpc::ClientContext context;
      const auto reader = stub.Generate(&context, request);
      v1::GenerateResponse response;
      while (reader->Read(&response)) {
      }
      status = reader->Finish();
      if (status.error_code() != grpc::StatusCode::UNAVAILABLE) break;
      poll(nullptr, 0, 20);
    } while (std::chrono::steady_clock::now() < end);
    return status;
  }

  Server node_, worker_, router_;
};

TEST_F(RouterPolicyTest, ATenantTravelsByTheCertificatesOfThoseWhoNameIt) {
  const auto a = RouterAs("a"), other = RouterAs("other");
  const grpc::Status own = Generate(*a, "a");
  EXPECT_TRUE(own.ok()) << own.error_message();
  for (const auto& [stub, tenant] :
       {std::pair(a.get(), "b"), std::pair(a.get(), ""), std::pair(other.get(), "a")}) {
    const grpc::Status refused = Generate(*stub, tenant);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::PERMISSION_DENIED) << tenant;
    EXPECT_THAT(refused.error_message(), HasSubstr("policy"));
  }
  // Nobody passes the router by.
  const auto worker = v1::Worker::NewStub(grpc::CreateChannel(worker_.address, As("a")));
  grpc::ClientContext context;
  v1::WorkerInfo info;
  EXPECT_EQ(worker->GetInfo(&context, v1::WorkerInfoRequest(), &info).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  NodeClient node(node_.address, As("a"), "kv");
  EXPECT_EQ(node.error().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  // The worker's KV lies at the node, under the worker's tenant.
  NodeClient kv(node_.address, As("worker"), "kv");
  ASSERT_TRUE(kv.error().ok()) << kv.error().error_message();
  grpc::ClientContext watching;
  watching.set_deadline(std::chrono::system_clock::now() + kPatience);
  v1::WatchRequest request;
  request.set_session_id(kv.session());
  request.set_snapshot(true);
  const auto events = kv.cache().Watch(&watching, request);
  v1::Event event;
  while (events->Read(&event) && event.kind() != v1::Event::KIND_STORED) {
  }
  EXPECT_EQ(event.kind(), v1::Event::KIND_STORED);
  watching.TryCancel();
  EXPECT_EQ(events->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

}  // namespace
}  // namespace cairn::testing
