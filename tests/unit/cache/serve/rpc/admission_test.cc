// Which calls are let in.

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <unistd.h>

#include <thread>

#include "common/rpc/operator_socket.h"
#include "tests/support/captured_log.h"
#include "tests/unit/cache/serve/rpc/service_fixture.h"

namespace cairn::cache {
namespace {

using ::testing::HasSubstr;

// A call with one request, whose answers are thrown away.
grpc::Status CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                     const grpc::ByteBuffer& request) {
  grpc::GenericStub generic(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto call = generic.PrepareUnaryCall(&context, method, request, &queue);
  grpc::ByteBuffer answer;
  grpc::Status status;
  call->StartCall();
  call->Finish(&answer, &status, &status);
  void* tag = nullptr;
  bool ok = false;
  EXPECT_TRUE(queue.Next(&tag, &ok));
  return status;
}

TEST_F(ServiceTest, AClosedGateAnswersUnavailable) {
  gate->Close();
  grpc::ClientContext context;
  v1::StatResponse response;
  EXPECT_EQ(stub->Stat(&context, v1::StatRequest(), &response).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(registry.Scrape(), HasSubstr("cairn_rpc_rejected_total{reason=\"draining\"} 1"));
}

TEST_F(ServiceTest, RequestsThatAreNoMessagesAreRefused) {
  std::string ends = "\x0a\x7f";  // A field of 127 bytes, of which there are none.
  const grpc::Slice slice(ends);
  const grpc::ByteBuffer garbage(&slice, 1);
  for (const std::string method :
       {"cairn.v1.Cache/Match", "cairn.v1.Cache/Fetch", "cairn.v1.Cache/OpenSession",
        "cairn.v1.Cache/Watch", "cairn.v1.Admin/DropTenant", "grpc.health.v1.Health/Check",
        "grpc.health.v1.Health/Watch"}) {
    const grpc::Status status = CallRaw(channel, "/" + method, garbage);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_THAT(status.error_message(), HasSubstr("expected a message of type")) << method;
  }
  const grpc::Status status = CallRaw(channel, "/cairn.v1.Cache/Nothing", garbage);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(status.error_message(), HasSubstr("/cairn.v1.Cache/Nothing"));
}

TEST_F(ServiceTest, TheLogSaysWhoMadeWhichAdminCall) {
  const auto drop = [this](const std::string& tenant) {
    testing::CapturedLog log;
    grpc::ClientContext context;
    context.AddMetadata("x-cairn-trace", "change-77");
    v1::DropTenantRequest request;
    request.set_tenant(tenant);
    v1::DropResponse response;
    (void)admin->DropTenant(&context, request, &response);
    return log.Take();
  };
  for (const char* said : {"admin_call", "method=DropTenant", "acme", "status=OK",
                           "identity=", "peer=", "trace=change-77"}) {
    EXPECT_THAT(drop("acme"), HasSubstr(said));
  }
  EXPECT_THAT(drop("a/b"), HasSubstr("INVALID_ARGUMENT")) << "one that failed";
  EXPECT_LT(drop(std::string(100'000, 'a')).size(), 2000u);
}

TEST_F(ServiceTest, TheLogSaysWhichProcessAskedOverTheOperatorsSocket) {
  char folder[] = "/tmp/cairn-audit-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/admin.sock";
  auto socket = rpc::OperatorSocket::Listen(path, server.get());
  ASSERT_TRUE(socket.ok());
  rpc.options.admin.allow_loopback = false;
  testing::CapturedLog log;
  {
    const auto over =
        v1::Admin::NewStub(grpc::CreateChannel("unix:" + path, grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    v1::DropTenantRequest request;
    request.set_tenant("acme");
    v1::DropResponse response;
    EXPECT_TRUE(over->DropTenant(&context, request, &response).ok());
  }
  EXPECT_THAT(log.Take(),
              HasSubstr(fmt::format("identity=\"uid {}, pid {}\"", getuid(), getpid())));
  socket->reset();
  rmdir(folder);
}

TEST_F(ServiceTest, TheLogSaysWhichNamespaceInTheDigitsOfEverywhereElse) {
  testing::CapturedLog log;
  const std::string bytes = FingerprintBytes();
  {
    grpc::ClientContext context;
    v1::BumpEpochRequest request;
    request.set_fingerprint(bytes);
    v1::DropResponse response;
    (void)admin->BumpEpoch(&context, request, &response);
  }
  {
    grpc::ClientContext context;
    v1::DropNamespaceRequest request;
    request.set_fingerprint(bytes);
    v1::DropResponse response;
    (void)admin->DropNamespace(&context, request, &response);
  }
  const std::string said = log.Take();
  const std::string request = "request=\"fingerprint: " + cairn::Fingerprint(Spec()).Hex() + "\"";
  EXPECT_THAT(said, HasSubstr("admin_call method=BumpEpoch " + request));
  EXPECT_THAT(said, HasSubstr("admin_call method=DropNamespace " + request));
}

TEST_F(ServiceTest, CallsThatOnlyLookHideNoChange) {
  const auto look = [this] {
    grpc::ClientContext context;
    v1::ListNamespacesResponse response;
    (void)admin->ListNamespaces(&context, v1::ListNamespacesRequest(), &response);
  };
  const auto drop = [this](const std::string& tenant) {
    grpc::ClientContext context;
    v1::DropTenantRequest request;
    request.set_tenant(tenant);
    v1::DropResponse response;
    (void)admin->DropTenant(&context, request, &response);
  };
  testing::CapturedLog log;
  for (int i = 0; i < 400; ++i) look();
  for (int i = 0; i < 150; ++i) drop(fmt::format("t-{}-", i));
  const std::string changes = log.Take();
  for (int i = 0; i < 150; ++i) {
    EXPECT_THAT(changes, HasSubstr(fmt::format("admin_call method=DropTenant request=\"tenant: "
                                               "\\\"t-{}-",
                                               i)));
  }
  // The same for callers that are refused.
  rpc.options.admin.allow_loopback = false;
  testing::CapturedLog refusals;
  for (int i = 0; i < 400; ++i) look();
  drop("last");
  EXPECT_THAT(refusals.Take(), HasSubstr("admin_refused method=DropTenant"));
}

class OneCallTest : public ServiceTest {
 protected:
  void SetUp() override { StartServer(1); }
};

TEST_F(OneCallTest, CallsBeyondTheLimitAreRefusedAndCounted) {
  engine.endless = true;
  engine.items.push_back(MakeSlice(1, 60'000));
  const v1::FetchRequest request = FetchOfLease7();
  grpc::ClientContext fetch_context;
  auto reader = stub->Fetch(&fetch_context, request);
  v1::FetchFrame frame;
  ASSERT_TRUE(reader->Read(&frame));
  grpc::ClientContext context;
  v1::StatResponse response;
  const grpc::Status refused = stub->Stat(&context, v1::StatRequest(), &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("rpc.max_in_flight"));
  EXPECT_THAT(
      registry.Scrape(),
      AllOf(HasSubstr("cairn_rpc_rejected_total{reason=\"overload\"} 1"),
            HasSubstr("cairn_rpc_requests_total{code=\"ResourceExhausted\",method=\"Stat\"} 1")));
  fetch_context.TryCancel();
  reader->Finish();
  EXPECT_TRUE(gate->WaitEmpty(std::chrono::steady_clock::now() + std::chrono::seconds(60)));
}

}  // namespace
}  // namespace cairn::cache
