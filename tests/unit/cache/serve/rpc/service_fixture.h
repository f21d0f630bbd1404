#pragma once
// The services over a real gRPC server in this process, with a fake engine behind them.

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "cairn/v1/admin.grpc.pb.h"
#include "cairn/v1/cache.grpc.pb.h"
#include "common/concurrency/ticker.h"
#include "common/rpc/call_metrics.h"
#include "common/rpc/call_server.h"
#include "common/rpc/health_service.h"
#include "services/cache/serve/rpc/admin_service.h"
#include "services/cache/serve/rpc/cache_service.h"
#include "services/cache/serve/rpc/cluster_service.h"
#include "tests/unit/cache/serve/rpc/fake_engine.h"

namespace cairn::cache {

inline NamespaceSpec Spec() {
  NamespaceSpec spec;
  spec.model = "m";
  spec.revision = "r";
  spec.numerics = "n";
  spec.layout.block_tokens = 16;
  spec.layout.form = NativeLayout{
      .groups = {{.count = 4, .planes = {{"k", 2, 8, DType::kF16}, {"v", 2, 8, DType::kF16}}}},
      .kv_heads = 2};
  return spec;
}

class ServiceTest : public ::testing::Test {
 protected:
  void SetUp() override { StartServer(1024); }

  void StartServer(uint32_t max_in_flight) {
    rpc.process = "node";
    rpc.limit = "rpc.max_in_flight";
    rpc.engine = &engine;
    rpc.clock = &SteadyClock::Get();
    rpc.executor = &pool;
    rpc.fetch_executor = &pool;
    rpc.flush_executor = &pool;
    rpc.metrics = &rpc_metrics;
    gate = std::make_unique<Gate>(max_in_flight);
    rpc.gate = gate.get();
    rpc.sessions = &sessions;
    rpc.node_id = "node";
    rpc.node_epoch = 9;
    rpc.options.heartbeat = std::chrono::milliseconds(1);
    rpc.options.admin.allow_loopback = true;
    rpc.options.fetch_frame_bytes = 64 << 10;
    service = CacheService::Create(&rpc, &registry);
    service->AddTo(&calls);
    AddAdminService(&calls, &rpc);
    AddClusterService(&calls, &rpc, /*cluster=*/nullptr);
    AddMore();
    health.AddTo(&calls);
    grpc::ServerBuilder builder;
    calls.Register(&builder);
    builder.SetMaxReceiveMessageSize(5 << 20);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    server = builder.BuildAndStart();
    calls.Start();
    address = fmt::format("127.0.0.1:{}", port);
    channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
    stub = v1::Cache::NewStub(channel);
    admin = v1::Admin::NewStub(channel);
    ticker = std::make_unique<Ticker>(std::chrono::milliseconds(5), [this] {
      service->Tick();
      health.Tick();
      TickMore();
    });
    engine.spec = Spec();
  }

  // Further services, before the server starts, and what the ticker does for them.
  virtual void AddMore() {}
  virtual void TickMore() {}

  void TearDown() override {
    ticker.reset();
    service->EndStreams();
    health.EndStreams();
    if (session_reader) {
      session_context.TryCancel();
      session_reader->Finish();
      session_reader.reset();
    }
    server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
    server->Wait();
    calls.Stop();
    pool.Stop();
  }

  // A session's id, open until TearDown.
  std::string Session() {
    v1::OpenSessionRequest request;
    request.set_client_name("test");
    session_reader = stub->OpenSession(&session_context, request);
    v1::SessionEvent event;
    EXPECT_TRUE(session_reader->Read(&event));
    return event.session_id();
  }

  // A fetch of lease 7, whole, in a session of its own.
  v1::FetchRequest FetchOfLease7() {
    v1::FetchRequest request;
    request.set_session_id(Session());
    request.set_lease_id(7);
    return request;
  }

  std::string FingerprintBytes() const { return std::string(cairn::Fingerprint(Spec()).View()); }

  FakeEngine engine;
  metrics::Registry registry;
  rpc::CallMetrics rpc_metrics{&registry};
  std::unique_ptr<Gate> gate;
  Sessions sessions;
  RpcContext rpc;
  ThreadPool pool{{.name = "pool", .threads = 2, .queue_capacity = 64}};
  std::unique_ptr<CacheService> service;
  rpc::HealthService health{&rpc, ServiceNames()};
  rpc::CallServer calls{/*pollers=*/1};  // So that events keep the order of the connection.
  std::unique_ptr<grpc::Server> server;
  std::string address;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Cache::Stub> stub;
  std::unique_ptr<v1::Admin::Stub> admin;
  std::unique_ptr<Ticker> ticker;
  grpc::ClientContext session_context;
  std::unique_ptr<grpc::ClientReader<v1::SessionEvent>> session_reader;
};

}  // namespace cairn::cache
