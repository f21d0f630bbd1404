// The services over a real gRPC server in this process, with a fake engine behind them.

#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "cairn/v1/admin.grpc.pb.h"
#include "cairn/v1/cache.grpc.pb.h"
#include "clients/cpp/wire/convert.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "services/cache/rpc/admin_service.h"
#include "services/cache/rpc/cache_service.h"
#include "services/cache/rpc/health_service.h"
#include "services/cache/rpc/ticker.h"
#include "services/common/status/matchers.h"
#include "tests/unit/cache/rpc/fake_engine.h"

namespace cairn::cache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

NamespaceSpec Spec() {
  NamespaceSpec spec;
  spec.model = "m";
  spec.revision = "r";
  spec.numerics = "n";
  spec.layout.block_tokens = 16;
  spec.layout.form = NativeLayout{.groups = {{.count = 4, .planes = {{"k", 2, 8, DType::kF16}, {"v", 2, 8, DType::kF16}}}},
                                  .kv_heads = 2};
  return spec;
}

class ServiceTest : public ::testing::Test {
 protected:
  void SetUp() override { StartServer(1024); }

  void StartServer(uint32_t max_in_flight) {
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
    rpc.options.fetch_frame_bytes = 64 << 10;
    service = CacheService::Create(&rpc, &registry);
    service->AddTo(&calls);
    AddAdminService(&calls, &rpc);
    health.AddTo(&calls);
    grpc::ServerBuilder builder;
    calls.Register(&builder);
    builder.SetMaxReceiveMessageSize(5 << 20);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    server = builder.BuildAndStart();
    calls.Start();
    channel = grpc::CreateChannel(fmt::format("127.0.0.1:{}", port), grpc::InsecureChannelCredentials());
    stub = v1::Cache::NewStub(channel);
    admin = v1::Admin::NewStub(channel);
    ticker = std::make_unique<Ticker>(std::chrono::milliseconds(5), [this] {
      service->Tick();
      health.Tick();
    });
    engine.spec = Spec();
  }

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

  std::string FingerprintBytes() const { return std::string(cairn::Fingerprint(Spec()).View()); }

  // A call with one request, whose answers are thrown away.
  grpc::Status CallRaw(const std::string& method, const grpc::ByteBuffer& request) {
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

  FakeEngine engine;
  metrics::Registry registry;
  RpcMetrics rpc_metrics{&registry};
  std::unique_ptr<Gate> gate;
  Sessions sessions;
  RpcContext rpc;
  ThreadPool pool{{.name = "pool", .threads = 2, .queue_capacity = 64}};
  std::unique_ptr<CacheService> service;
  HealthService health{&rpc};
  CallServer calls;
  std::unique_ptr<grpc::Server> server;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Cache::Stub> stub;
  std::unique_ptr<v1::Admin::Stub> admin;
  std::unique_ptr<Ticker> ticker;
  grpc::ClientContext session_context;
  std::unique_ptr<grpc::ClientReader<v1::SessionEvent>> session_reader;
};

// Room for two frames of all fetches together, and little patience.
class SmallBudgetTest : public ServiceTest {
 protected:
  void SetUp() override {
    rpc.options.send_bytes = 128 << 10;
    rpc.options.patience = std::chrono::seconds(1);
    StartServer(1024);
  }
};

// Calls of each kind with one field made wrong.
template <typename Request>
struct Bad {
  const char* message;  // Must name field and expectation.
  std::function<void(Request*)> spoil;
  grpc::StatusCode code = grpc::StatusCode::INVALID_ARGUMENT;
};

template <typename Request, typename Call>
void ExpectRefused(const Request& good, const std::vector<Bad<Request>>& cases, Call call) {
  EXPECT_TRUE(call(good).ok()) << call(good).error_message();
  for (const Bad<Request>& bad : cases) {
    Request request = good;
    bad.spoil(&request);
    const grpc::Status status = call(request);
    EXPECT_EQ(status.error_code(), bad.code) << bad.message << ": " << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(bad.message));
  }
}

TEST_F(ServiceTest, MatchNamesEveryBadField) {
  v1::MatchRequest good;
  good.set_session_id(Session());
  good.set_fingerprint(FingerprintBytes());
  good.set_keys(std::string(64, 'k'));
  using R = v1::MatchRequest;
  ExpectRefused<R>(
      good,
      {{"session_id", [](R* r) { r->set_session_id("short"); }},
       {"session_id", [](R* r) { r->set_session_id(std::string(16, 'x')); }, grpc::StatusCode::NOT_FOUND},
       {"fingerprint", [](R* r) { r->set_fingerprint("f"); }},
       {"fingerprint", [](R* r) { r->set_fingerprint(std::string(32, 'f')); }, grpc::StatusCode::NOT_FOUND},
       {"keys", [](R* r) { r->set_keys(""); }},
       {"keys", [](R* r) { r->set_keys(std::string(33, 'k')); }},
       {"keys", [](R* r) { r->set_keys(std::string(32 * 65537, 'k')); }},
       {"lease_ttl_ms: got 600001, expected 0 to 600000", [](R* r) { r->set_lease_ttl_ms(600001); }},
       {"prefill_tokens_per_second", [](R* r) { r->set_prefill_tokens_per_second(-1); }},
       {"prefill_tokens_per_second", [](R* r) { r->set_prefill_tokens_per_second(std::numeric_limits<double>::quiet_NaN()); }},
       {"prefill_tokens_per_second", [](R* r) { r->set_prefill_tokens_per_second(std::numeric_limits<double>::infinity()); }}},
      [&](const R& request) {
        grpc::ClientContext context;
        v1::MatchResponse response;
        return stub->Match(&context, request, &response);
      });
}

TEST_F(ServiceTest, ReserveNamesEveryBadField) {
  v1::ReserveRequest good;
  good.set_session_id(Session());
  good.set_fingerprint(FingerprintBytes());
  for (int i = 0; i < 3; ++i) {
    v1::ReservePart* part = good.add_parts();
    part->set_key(std::string(32, static_cast<char>('a' + i)));
    part->mutable_part()->set_layer_end(4);
    part->mutable_part()->set_head_end(2);
    part->set_bytes(1000);
  }
  using R = v1::ReserveRequest;
  ExpectRefused<R>(
      good,
      {{"session_id", [](R* r) { r->clear_session_id(); }},
       {"fingerprint", [](R* r) { r->clear_fingerprint(); }},
       {"parts: got 0 of them, expected 1 to 4096", [](R* r) { r->clear_parts(); }},
       {"parts: got 4097", [](R* r) { for (int i = 0; i < 4094; ++i) *r->add_parts() = r->parts(0); }},
       {"ttl_ms", [](R* r) { r->set_ttl_ms(600001); }},
       {"parts[1].key", [](R* r) { r->mutable_parts(1)->set_key("k"); }},
       {"parts[2].parent", [](R* r) { r->mutable_parts(2)->set_parent("p"); }},
       {"parts[0].first_position", [](R* r) { r->mutable_parts(0)->set_first_position(1ull << 41); }},
       {"parts[0].part", [](R* r) { r->mutable_parts(0)->clear_part(); }},
       {"parts[1]: ", [](R* r) { r->mutable_parts(1)->mutable_part()->set_layer_begin(4); }},
       {"parts[1]: ", [](R* r) { r->mutable_parts(1)->mutable_part()->set_layer_end(5); }},
       {"parts[1]: ", [](R* r) { r->mutable_parts(1)->mutable_part()->set_head_end(3); }},
       {"parts[1]: ", [](R* r) { r->mutable_parts(1)->mutable_part()->set_head_begin(70000); }},
       {"parts[0].bytes: got 0, expected 1 to", [](R* r) { r->mutable_parts(0)->set_bytes(0); }},
       {"parts[0].bytes", [](R* r) { r->mutable_parts(0)->set_bytes((64ull << 20) + 1); }},
       {"parts[0].compute_seconds", [](R* r) { r->mutable_parts(0)->set_compute_seconds(-1); }},
       {"parts[0].compute_seconds", [](R* r) { r->mutable_parts(0)->set_compute_seconds(std::numeric_limits<double>::quiet_NaN()); }}},
      [&](const R& request) {
        grpc::ClientContext context;
        v1::ReserveResponse response;
        return stub->Reserve(&context, request, &response);
      });
}

TEST_F(ServiceTest, OtherCallsNameEveryBadField) {
  const std::string session = Session();
  const std::string fingerprint = FingerprintBytes();
  {
    using R = v1::ExistsRequest;
    R good;
    good.set_fingerprint(fingerprint);
    good.set_keys(std::string(32, 'k'));
    ExpectRefused<R>(good, {{"fingerprint", [](R* r) { r->clear_fingerprint(); }}, {"keys", [](R* r) { r->clear_keys(); }}},
                     [&](const R& request) {
                       grpc::ClientContext context;
                       v1::ExistsResponse response;
                       return stub->Exists(&context, request, &response);
                     });
  }
  {
    using R = v1::PrefetchRequest;
    R good;
    good.set_session_id(session);
    good.set_fingerprint(fingerprint);
    good.set_keys(std::string(96, 'k'));
    good.set_needed_in_ms(1500);
    ExpectRefused<R>(good, {{"session_id", [](R* r) { r->clear_session_id(); }},
                            {"fingerprint", [](R* r) { r->clear_fingerprint(); }},
                            {"keys", [](R* r) { r->set_keys("short"); }}},
                     [&](const R& request) {
                       grpc::ClientContext context;
                       v1::PrefetchResponse response;
                       const grpc::Status status = stub->Prefetch(&context, request, &response);
                       if (status.ok()) {
                         EXPECT_EQ(response.present_blocks(), 1u);
                         EXPECT_EQ(response.queued_blocks(), 2u);
                         EXPECT_EQ(response.estimated_seconds(), 0.5);
                         EXPECT_EQ(engine.prefetch_needed_in, std::chrono::milliseconds(1500));
                       }
                       return status;
                     });
  }
  {
    using R = v1::CommitRequest;
    R good;
    good.set_session_id(session);
    good.add_reservation_ids(1);
    ExpectRefused<R>(good,
                     {{"session_id", [](R* r) { r->clear_session_id(); }},
                      {"reservation_ids: got 0 ids, expected 1 to 4096", [](R* r) { r->clear_reservation_ids(); }},
                      {"reservation_ids[1]", [](R* r) { r->add_reservation_ids(0); }},
                      {"reservation_ids", [](R* r) { for (int i = 0; i < 4096; ++i) r->add_reservation_ids(1); }}},
                     [&](const R& request) {
                       grpc::ClientContext context;
                       v1::CommitResponse response;
                       return stub->Commit(&context, request, &response);
                     });
  }
  {
    using R = v1::AbortRequest;
    R good;
    good.set_session_id(session);
    ExpectRefused<R>(good, {{"session_id", [](R* r) { r->clear_session_id(); }},
                            {"reservation_ids[0]", [](R* r) { r->add_reservation_ids(0); }}},
                     [&](const R& request) {
                       grpc::ClientContext context;
                       v1::AbortResponse response;
                       return stub->Abort(&context, request, &response);
                     });
  }
  {
    using R = v1::ReleaseRequest;
    R good;
    good.set_session_id(session);
    good.add_lease_ids(1);
    ExpectRefused<R>(good, {{"session_id", [](R* r) { r->set_session_id(std::string(17, 's')); }},
                            {"lease_ids[1]", [](R* r) { r->add_lease_ids(0); }}},
                     [&](const R& request) {
                       grpc::ClientContext context;
                       v1::ReleaseResponse response;
                       return stub->Release(&context, request, &response);
                     });
  }
  {
    using R = v1::RenewLeaseRequest;
    R good;
    good.set_session_id(session);
    good.set_lease_id(1);
    ExpectRefused<R>(good, {{"session_id", [](R* r) { r->clear_session_id(); }},
                            {"lease_id", [](R* r) { r->set_lease_id(0); }},
                            {"ttl_ms", [](R* r) { r->set_ttl_ms(600001); }}},
                     [&](const R& request) {
                       grpc::ClientContext context;
                       v1::RenewLeaseResponse response;
                       return stub->RenewLease(&context, request, &response);
                     });
  }
  {
    using R = v1::OpenNamespaceRequest;
    R good;
    wire::ToProto(Spec(), good.mutable_spec());
    ExpectRefused<R>(good, {{"spec", [](R* r) { r->clear_spec(); }},
                            {"tenant", [](R* r) { r->mutable_spec()->set_tenant("a b"); }},
                            {"block_tokens", [](R* r) { r->mutable_spec()->mutable_layout()->set_block_tokens(17); }},
                            {"layout", [](R* r) { r->mutable_spec()->clear_layout(); }}},
                     [&](const R& request) {
                       grpc::ClientContext context;
                       v1::OpenNamespaceResponse response;
                       return stub->OpenNamespace(&context, request, &response);
                     });
  }
  {
    using R = v1::FetchRequest;
    R good;
    good.set_session_id(session);
    good.set_lease_id(7);
    ExpectRefused<R>(good,
                     {{"session_id", [](R* r) { r->clear_session_id(); }},
                      {"lease_id: got 0", [](R* r) { r->set_lease_id(0); }},
                      {"lease_id", [](R* r) { r->set_lease_id(8); }, grpc::StatusCode::NOT_FOUND},
                      {"block_begin: got 2, expected less than block_end = 2", [](R* r) { r->set_block_begin(2); r->set_block_end(2); }},
                      {"layer_begin", [](R* r) { r->set_layer_begin(3); r->set_layer_end(1); }},
                      {"lease_id: got 7, expected 0 beside a lookup", [](R* r) { r->mutable_lookup(); }},
                      {"block_end: got 2, expected 0 beside a lookup",
                       [](R* r) { r->mutable_lookup(); r->clear_lease_id(); r->set_block_end(2); }},
                      {"fingerprint", [](R* r) { r->mutable_lookup(); r->clear_lease_id(); }},
                      {"keys", [&](R* r) { r->mutable_lookup()->set_fingerprint(FingerprintBytes()); r->clear_lease_id(); }},
                      {"prefill_tokens_per_second",
                       [&](R* r) {
                         r->clear_lease_id();
                         r->mutable_lookup()->set_fingerprint(FingerprintBytes());
                         r->mutable_lookup()->set_keys(std::string(64, 'k'));
                         r->mutable_lookup()->set_prefill_tokens_per_second(-1);
                       }}},
                     [&](const R& request) {
                       grpc::ClientContext context;
                       auto reader = stub->Fetch(&context, request);
                       v1::FetchFrame frame;
                       while (reader->Read(&frame)) {
                       }
                       return reader->Finish();
                     });
  }
}

TEST_F(ServiceTest, StreamsNameEveryBadField) {
  const std::string session = Session();
  const auto push = [&](const std::vector<v1::PushFrame>& frames) {
    grpc::ClientContext context;
    v1::PushResponse response;
    auto writer = stub->Push(&context, &response);
    for (const auto& frame : frames) {
      if (!writer->Write(frame)) break;
    }
    writer->WritesDone();
    return writer->Finish();
  };
  v1::PushFrame good;
  good.set_session_id(session);
  auto* piece = good.add_pieces();
  piece->set_reservation_id(1);
  piece->set_data("abc");
  EXPECT_TRUE(push({good}).ok());
  v1::PushFrame bad = good;
  bad.set_session_id("x");
  EXPECT_THAT(push({bad}).error_message(), HasSubstr("session_id"));
  bad = good;
  bad.set_session_id(std::string(16, 'y'));
  EXPECT_EQ(push({good, bad}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  bad = good;
  bad.mutable_pieces(0)->set_reservation_id(0);
  EXPECT_THAT(push({bad}).error_message(), HasSubstr("pieces[0].reservation_id: got 0"));
  bad = good;
  bad.mutable_pieces(0)->clear_data();
  EXPECT_THAT(push({bad}).error_message(), HasSubstr("pieces[0].data"));
  bad = good;
  bad.mutable_pieces(0)->set_offset((64ull << 20) + 1);
  EXPECT_THAT(push({bad}).error_message(), HasSubstr("pieces[0].offset"));
  bad = good;
  bad.mutable_pieces(0)->set_data(std::string((4 << 20) + 1, 'd'));
  EXPECT_THAT(push({bad}).error_message(), HasSubstr("pieces[0].data"));

  grpc::ClientContext context;
  v1::OpenSessionRequest open;
  open.set_client_name(std::string(129, 'c'));
  auto sessions_reader = stub->OpenSession(&context, open);
  v1::SessionEvent event;
  EXPECT_FALSE(sessions_reader->Read(&event));
  EXPECT_THAT(sessions_reader->Finish().error_message(), HasSubstr("client_name: got 129"));

  for (const auto& [bytes, code] : {std::pair(size_t{5}, grpc::StatusCode::INVALID_ARGUMENT),
                                    std::pair(size_t{32}, grpc::StatusCode::NOT_FOUND)}) {
    grpc::ClientContext watch_context;
    v1::WatchRequest watch;
    watch.set_fingerprint(std::string(bytes, 'f'));
    auto reader = stub->Watch(&watch_context, watch);
    v1::Event got;
    EXPECT_FALSE(reader->Read(&got));
    const grpc::Status status = reader->Finish();
    EXPECT_EQ(status.error_code(), code);
    EXPECT_THAT(status.error_message(), HasSubstr("fingerprint"));
  }
}

TEST_F(ServiceTest, AdminCallsNameEveryBadField) {
  grpc::Status status;
  v1::DropResponse response;
  v1::DropTenantRequest tenant;
  for (const std::string& bad : {std::string(), std::string("a/b"), std::string(129, 'a')}) {
    grpc::ClientContext context;
    tenant.set_tenant(bad);
    EXPECT_THAT(admin->DropTenant(&context, tenant, &response).error_message(), HasSubstr("tenant: got"));
  }
  {
    grpc::ClientContext context;
    v1::DropNamespaceRequest request;
    request.set_fingerprint("x");
    EXPECT_THAT(admin->DropNamespace(&context, request, &response).error_message(), HasSubstr("fingerprint"));
  }
  {
    grpc::ClientContext context;
    v1::BumpEpochRequest request;
    EXPECT_THAT(admin->BumpEpoch(&context, request, &response).error_message(), HasSubstr("fingerprint"));
    request.set_fingerprint(std::string(32, 'f'));
    grpc::ClientContext again;
    EXPECT_TRUE(admin->BumpEpoch(&again, request, &response).ok());
    EXPECT_EQ(response.hidden_blocks(), 5u);
  }
  grpc::ClientContext context;
  v1::ListNamespacesRequest list;
  v1::ListNamespacesResponse listed;
  list.set_tenant("a b");
  EXPECT_THAT(admin->ListNamespaces(&context, list, &listed).error_message(), HasSubstr("tenant"));
}

TEST_F(ServiceTest, TraceIsCheckedAndReachesTheEngine) {
  v1::MatchRequest request;
  request.set_session_id(Session());
  request.set_fingerprint(FingerprintBytes());
  request.set_keys(std::string(64, 'k'));
  v1::MatchResponse response;
  grpc::ClientContext good;
  good.AddMetadata("x-cairn-trace", "abc-123");
  EXPECT_TRUE(stub->Match(&good, request, &response).ok());
  EXPECT_EQ(engine.trace, "abc-123");
  EXPECT_EQ(response.matched_blocks(), 1u);
  EXPECT_EQ(response.miss_reason(), v1::MISS_REASON_EVICTED);
  grpc::ClientContext bad;
  bad.AddMetadata("x-cairn-trace", "a b");
  EXPECT_THAT(stub->Match(&bad, request, &response).error_message(), HasSubstr("x-cairn-trace"));
}

TEST_F(ServiceTest, ASessionEndsWithItsStream) {
  const std::string id = Session();
  v1::SessionEvent event;
  EXPECT_TRUE(session_reader->Read(&event)) << "a heartbeat";
  EXPECT_EQ(event.session_id(), id);
  EXPECT_EQ(event.node_id(), "node");
  EXPECT_EQ(event.node_epoch(), 9u);
  EXPECT_EQ(event.max_frame_bytes(), 4u << 20);
  session_context.TryCancel();
  EXPECT_TRUE(engine.Wait([&] { return engine.open.empty(); }));
  v1::ReleaseRequest request;
  request.set_session_id(id);
  v1::ReleaseResponse response;
  grpc::ClientContext context;
  EXPECT_EQ(stub->Release(&context, request, &response).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ServiceTest, DrainIsAnnouncedAndEndsTheStreams) {
  Session();
  rpc.draining = true;
  v1::SessionEvent event;
  do {
    ASSERT_TRUE(session_reader->Read(&event));
  } while (!event.draining());
  grpc::ClientContext context;
  auto refused = stub->OpenSession(&context, v1::OpenSessionRequest());
  EXPECT_FALSE(refused->Read(&event));
  EXPECT_EQ(refused->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  service->EndStreams();
  while (session_reader->Read(&event)) {
  }
  EXPECT_EQ(session_reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  session_reader.reset();
  EXPECT_TRUE(engine.Wait([&] { return engine.open.empty(); }));
}

FetchedSlice MakeSlice(uint32_t block, size_t bytes) {
  auto hold = std::make_shared<std::string>(bytes, static_cast<char>('a' + block % 26));
  FetchedSlice slice;
  slice.block = block;
  slice.part = {.layer_begin = 0, .layer_end = 1, .head_begin = 0, .head_end = 1};
  slice.xxh3 = block;
  slice.data = std::as_bytes(std::span(*hold));
  slice.hold = hold;
  return slice;
}

TEST_F(ServiceTest, FetchDeliversEveryByteOnceAndReportsFailures) {
  for (uint32_t block = 0; block < 20; ++block) engine.items.push_back(MakeSlice(block, 10'000 * block));
  engine.items.push_back(FetchFailure{20, MissReason::kCorrupt});
  v1::FetchRequest request;
  request.set_session_id(Session());
  request.set_lease_id(7);
  grpc::ClientContext context;
  auto reader = stub->Fetch(&context, request);
  std::map<uint32_t, std::string> got;
  std::vector<uint32_t> failed;
  v1::FetchFrame frame;
  size_t frames = 0;
  while (reader->Read(&frame)) {
    ++frames;
    size_t bytes = 0;
    for (const v1::Slice& slice : frame.slices()) {
      EXPECT_EQ(slice.offset(), got[slice.block()].size());
      EXPECT_EQ(slice.slice_bytes(), 10'000u * slice.block());
      got[slice.block()] += slice.data();
      bytes += slice.data().size();
    }
    for (const auto& failure : frame.failed()) failed.push_back(failure.block());
    EXPECT_LE(bytes, 64u << 10);
  }
  EXPECT_TRUE(reader->Finish().ok());
  ASSERT_EQ(got.size(), 20u);
  for (const auto& [block, bytes] : got) EXPECT_EQ(bytes, std::string(10'000 * block, static_cast<char>('a' + block % 26)));
  EXPECT_THAT(failed, ::testing::ElementsAre(20));
  EXPECT_GE(frames, 1'900'000u / (64 << 10));
}

TEST_F(ServiceTest, AFetchWithALookupSaysWhatItFoundAndGivesItsLeaseBack) {
  engine.items.push_back(MakeSlice(0, 1000));
  v1::FetchRequest request;
  request.set_session_id(Session());
  request.mutable_lookup()->set_fingerprint(FingerprintBytes());
  request.mutable_lookup()->set_keys(std::string(3 * 32, 'k'));
  grpc::ClientContext context;
  auto reader = stub->Fetch(&context, request);
  v1::FetchFrame frame;
  ASSERT_TRUE(reader->Read(&frame));
  EXPECT_EQ(frame.matched().matched_blocks(), 2u);
  EXPECT_EQ(frame.matched().lease_id(), 0u);
  EXPECT_EQ(frame.matched().miss_reason(), v1::MISS_REASON_EVICTED);
  ASSERT_EQ(frame.slices_size(), 1);
  EXPECT_EQ(frame.slices(0).data().size(), 1000u);
  EXPECT_FALSE(reader->Read(&frame));
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(engine.Wait([&] { return engine.released == std::vector<LeaseId>{7}; }));
}

TEST_F(ServiceTest, FetchErrorsEndTheStreamAfterWhatWasRead) {
  engine.items.push_back(MakeSlice(1, 1000));
  engine.end = Errorf(StatusCode::kDeadlineExceeded, "disk");
  v1::FetchRequest request;
  request.set_session_id(Session());
  request.set_lease_id(7);
  grpc::ClientContext context;
  auto reader = stub->Fetch(&context, request);
  v1::FetchFrame frame;
  EXPECT_TRUE(reader->Read(&frame));
  EXPECT_EQ(frame.slices_size(), 1);
  EXPECT_FALSE(reader->Read(&frame));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(ServiceTest, ASlowReaderHoldsTheFetchBackAndItsCancelEndsIt) {
  engine.endless = true;
  engine.items.push_back(MakeSlice(1, 60'000));
  v1::FetchRequest request;
  request.set_session_id(Session());
  request.set_lease_id(7);
  grpc::ClientContext context;
  auto reader = stub->Fetch(&context, request);
  v1::FetchFrame frame;
  ASSERT_TRUE(reader->Read(&frame));
  // Nobody reads on: flow control lets a bounded number of frames through, then the engine is left in peace.
  size_t seen = 0;
  for (int quiet = 0; quiet < 20;) {
    MutexLock lock(engine.mu);
    const size_t before = engine.fetched;
    engine.changed.WaitUntil(engine.mu, std::chrono::steady_clock::now() + std::chrono::milliseconds(20),
                             [] { return false; });
    quiet = engine.fetched == before ? quiet + 1 : 0;
    seen = engine.fetched;
    ASSERT_LT(seen, 2000u) << "120 MB were read ahead";
  }
  context.TryCancel();
  EXPECT_TRUE(engine.Wait([&] { return engine.ended_fetches == 1; }));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

// Readers that read one frame and then nothing, until they are cancelled.
class StoppedReaders {
 public:
  StoppedReaders(v1::Cache::Stub* stub, const v1::FetchRequest& request, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      contexts_.push_back(std::make_unique<grpc::ClientContext>());
      readers_.push_back(stub->Fetch(contexts_.back().get(), request));
      v1::FetchFrame frame;
      EXPECT_TRUE(readers_.back()->Read(&frame));
    }
  }
  ~StoppedReaders() {
    for (size_t i = 0; i < readers_.size(); ++i) {
      contexts_[i]->TryCancel();
      if (readers_[i] != nullptr) readers_[i]->Finish();
    }
  }
  // Reads on; how it ended.
  grpc::Status End(size_t i) {
    v1::FetchFrame frame;
    while (readers_[i]->Read(&frame)) {
    }
    const grpc::Status status = readers_[i]->Finish();
    readers_[i].reset();
    return status;
  }

 private:
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts_;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::FetchFrame>>> readers_;
};

TEST_F(ServiceTest, AStoppedReaderLosesItsPinsWhenItsLeaseEnds) {
  engine.endless = true;
  engine.items.push_back(MakeSlice(1, 60'000));
  rpc.options.lease_grace = std::chrono::milliseconds(50);
  v1::FetchRequest request;
  request.set_session_id(Session());
  request.set_lease_id(7);
  StoppedReaders stopped(stub.get(), request, 1);
  {
    MutexLock lock(engine.mu);
    engine.lease_over = true;
  }
  EXPECT_TRUE(engine.Wait([&] { return engine.ended_fetches == 1; }));
  EXPECT_NE(stopped.End(0).error_code(), grpc::StatusCode::OK);
  // The bytes that were on their way are let go, too.
  const std::weak_ptr<const void> hold = std::get<FetchedSlice>(engine.items[0]).hold;
  engine.items.clear();
  for (int i = 0; i < 500 && !hold.expired(); ++i) {
    MutexLock lock(engine.mu);
    engine.changed.WaitUntil(engine.mu, std::chrono::steady_clock::now() + std::chrono::milliseconds(20), [] { return false; });
  }
  EXPECT_TRUE(hold.expired());
  EXPECT_THAT(registry.Scrape(), HasSubstr("cairn_rpc_rejected_total{reason=\"stalled\"} 1"));
}

TEST_F(SmallBudgetTest, StoppedReadersMakeRoomForOthers) {
  engine.endless = true;
  engine.items.push_back(MakeSlice(1, 60'000));
  v1::FetchRequest request;
  request.set_session_id(Session());
  request.set_lease_id(7);
  const StoppedReaders stopped(stub.get(), request, 4);
  // All four have as much on its way as flow control lets them, and the budget is used up by what is stuck.
  for (int i = 0; i < 3; ++i) {
    grpc::ClientContext context;
    const auto reader = stub->Fetch(&context, request);
    v1::FetchFrame frame;
    for (int frames = 0; frames < 20; ++frames) ASSERT_TRUE(reader->Read(&frame)) << i << ", frame " << frames;
    context.TryCancel();
    reader->Finish();
  }
}

TEST_F(SmallBudgetTest, ManyFetchesShareTheBudgetAndAllArrive) {
  // All of them read on, and a busy machine must not cut one off that is slow to do so.
  rpc.options.patience = std::chrono::seconds(60);
  for (uint32_t block = 0; block < 20; ++block) engine.items.push_back(MakeSlice(block, 50'000));
  v1::FetchRequest request;
  request.set_session_id(Session());
  request.set_lease_id(7);
  std::atomic<size_t> whole{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) {
        grpc::ClientContext context;
        const auto reader = stub->Fetch(&context, request);
        v1::FetchFrame frame;
        size_t bytes = 0;
        while (reader->Read(&frame)) {
          for (const v1::Slice& slice : frame.slices()) bytes += slice.data().size();
        }
        if (reader->Finish().ok() && bytes == 1'000'000) ++whole;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(whole, 40u);
}

TEST_F(ServiceTest, PushCommitsWhatItsFirstFrameNames) {
  const std::string session = Session();
  const auto push = [&](const std::vector<v1::PushFrame>& frames, v1::PushResponse* response) {
    grpc::ClientContext context;
    auto writer = stub->Push(&context, response);
    for (const auto& frame : frames) {
      if (!writer->Write(frame)) break;
    }
    writer->WritesDone();
    return writer->Finish();
  };
  v1::PushFrame first;
  first.set_session_id(session);
  for (const uint64_t id : {5, 13, 6}) {
    auto* piece = first.add_pieces();
    piece->set_reservation_id(id);
    piece->set_data("abc");
    first.add_commit_ids(id);
  }
  v1::PushResponse response;
  ASSERT_TRUE(push({first}, &response).ok());
  EXPECT_EQ(response.bytes(), 9u);
  ASSERT_EQ(response.committed_size(), 3);
  EXPECT_EQ(response.committed(0).code(), 0u);
  EXPECT_EQ(response.committed(1).code(), static_cast<uint32_t>(StatusCode::kDataLoss));
  EXPECT_EQ(response.committed(2).code(), 0u);
  EXPECT_THAT(engine.committed, ::testing::ElementsAre(5, 13, 6));

  // A client that does not know the field commits in a call of its own.
  v1::PushFrame old = first;
  old.clear_commit_ids();
  v1::PushResponse plain;
  ASSERT_TRUE(push({old}, &plain).ok());
  EXPECT_EQ(plain.committed_size(), 0);

  v1::PushFrame bad = first;
  bad.set_commit_ids(1, 0);
  EXPECT_THAT(push({bad}, &response).error_message(), HasSubstr("commit_ids[1]: got 0"));
  bad = first;
  for (int i = 0; i < 4096; ++i) bad.add_commit_ids(9);
  EXPECT_THAT(push({bad}, &response).error_message(), HasSubstr("commit_ids: got more than 4096"));
  EXPECT_THAT(push({old, first}, &response).error_message(), HasSubstr("commit_ids: got 3 in a later frame"));
  EXPECT_EQ(engine.committed.size(), 3u);
}

TEST_F(ServiceTest, PushFillsReservationsFromInterleavedFrames) {
  const std::string session = Session();
  std::string a(300'000, 0), b(5'000, 0);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<char>(i * 7);
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<char>(i * 13);
  grpc::ClientContext context;
  v1::PushResponse response;
  auto writer = stub->Push(&context, &response);
  for (size_t at = 0; at < a.size(); at += 100'000) {
    v1::PushFrame frame;
    if (at == 0) frame.set_session_id(session);
    auto* piece = frame.add_pieces();
    piece->set_reservation_id(1);
    piece->set_offset(at);
    piece->set_data(a.substr(at, 100'000));
    if (at == 100'000) {
      piece = frame.add_pieces();
      piece->set_reservation_id(2);
      piece->set_data(b);
    }
    ASSERT_TRUE(writer->Write(frame));
  }
  writer->WritesDone();
  EXPECT_TRUE(writer->Finish().ok());
  EXPECT_EQ(response.bytes(), a.size() + b.size());
  EXPECT_EQ(engine.written[1], a);
  EXPECT_EQ(engine.written[2], b);
}

TEST_F(ServiceTest, ReserveAnswersPartByPart) {
  v1::ReserveRequest request;
  request.set_session_id(Session());
  request.set_fingerprint(FingerprintBytes());
  for (int i = 0; i < 2; ++i) {
    v1::ReservePart* part = request.add_parts();
    part->set_key(std::string(32, 'a'));
    part->mutable_part()->set_layer_end(4);
    part->mutable_part()->set_head_end(2);
    part->set_bytes(1);
  }
  grpc::ClientContext context;
  v1::ReserveResponse response;
  ASSERT_TRUE(stub->Reserve(&context, request, &response).ok());
  ASSERT_EQ(response.results_size(), 2);
  EXPECT_EQ(response.results(0).code(), 0u);
  EXPECT_EQ(response.results(0).reservation_id(), 1u);
  EXPECT_EQ(response.results(1).code(), 6u);
}

TEST_F(ServiceTest, WatchDeliversEventsInOrder) {
  for (uint64_t i = 1; i <= 600; ++i) {
    CacheEvent event;
    event.sequence = i;
    event.parent = Digest();
    engine.events.push_back(event);
  }
  grpc::ClientContext context;
  auto reader = stub->Watch(&context, v1::WatchRequest());
  v1::Event event;
  for (uint64_t i = 1; i <= 600; ++i) {
    ASSERT_TRUE(reader->Read(&event));
    ASSERT_EQ(event.sequence(), i);
    ASSERT_EQ(event.node_epoch(), 9u);
  }
  {
    MutexLock lock(engine.mu);
    engine.watch_end = Errorf(StatusCode::kResourceExhausted, "too slow");
  }
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(ServiceTest, AClosedGateAnswersUnavailable) {
  gate->Close();
  grpc::ClientContext context;
  v1::StatResponse response;
  EXPECT_EQ(stub->Stat(&context, v1::StatRequest(), &response).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(registry.Scrape(), HasSubstr("cairn_rpc_rejected_total{reason=\"draining\"} 1"));
}

TEST_F(ServiceTest, HealthIsServingUntilTheNodeDrains) {
  using grpc::health::v1::HealthCheckRequest;
  using grpc::health::v1::HealthCheckResponse;
  const auto health_stub = grpc::health::v1::Health::NewStub(channel);
  const auto check = [&](const std::string& name, HealthCheckResponse* response) {
    HealthCheckRequest request;
    request.set_service(name);
    grpc::ClientContext context;
    return health_stub->Check(&context, request, response).error_code();
  };
  HealthCheckResponse response;
  for (const char* name : {"", "cairn.v1.Cache", "cairn.v1.Admin"}) {
    EXPECT_EQ(check(name, &response), grpc::StatusCode::OK) << name;
    EXPECT_EQ(response.status(), HealthCheckResponse::SERVING) << name;
  }
  EXPECT_EQ(check("cairn.v2.Cache", &response), grpc::StatusCode::NOT_FOUND);

  grpc::ClientContext context, unknown_context;
  HealthCheckRequest request;
  auto watch = health_stub->Watch(&context, request);
  request.set_service("cairn.v2.Cache");
  auto unknown = health_stub->Watch(&unknown_context, request);
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  ASSERT_TRUE(unknown->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVICE_UNKNOWN);
  rpc.draining = true;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(check("", &response), grpc::StatusCode::OK);
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  context.TryCancel();
  watch->Finish();
  unknown_context.TryCancel();
  unknown->Finish();
}

TEST_F(ServiceTest, RequestsThatAreNoMessagesAreRefused) {
  std::string ends = "\x0a\x7f";  // A field of 127 bytes, of which there are none.
  const grpc::Slice slice(ends);
  const grpc::ByteBuffer garbage(&slice, 1);
  for (const std::string method : {"cairn.v1.Cache/Match", "cairn.v1.Cache/Fetch", "cairn.v1.Cache/OpenSession",
                                   "cairn.v1.Cache/Watch", "cairn.v1.Admin/DropTenant", "grpc.health.v1.Health/Check",
                                   "grpc.health.v1.Health/Watch"}) {
    const grpc::Status status = CallRaw("/" + method, garbage);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_THAT(status.error_message(), HasSubstr("expected a message of type")) << method;
  }
  const grpc::Status status = CallRaw("/cairn.v1.Cache/Nothing", garbage);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(status.error_message(), HasSubstr("/cairn.v1.Cache/Nothing"));
}

class OneCallTest : public ServiceTest {
 protected:
  void SetUp() override { StartServer(1); }
};

TEST_F(OneCallTest, CallsBeyondTheLimitAreRefusedAndCounted) {
  engine.endless = true;
  engine.items.push_back(MakeSlice(1, 60'000));
  v1::FetchRequest request;
  request.set_session_id(Session());
  request.set_lease_id(7);
  grpc::ClientContext fetch_context;
  auto reader = stub->Fetch(&fetch_context, request);
  v1::FetchFrame frame;
  ASSERT_TRUE(reader->Read(&frame));
  grpc::ClientContext context;
  v1::StatResponse response;
  const grpc::Status refused = stub->Stat(&context, v1::StatRequest(), &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("rpc.max_in_flight"));
  EXPECT_THAT(registry.Scrape(), AllOf(HasSubstr("cairn_rpc_rejected_total{reason=\"overload\"} 1"),
                                       HasSubstr("cairn_rpc_requests_total{code=\"ResourceExhausted\",method=\"Stat\"} 1")));
  fetch_context.TryCancel();
  reader->Finish();
  EXPECT_TRUE(gate->WaitEmpty(std::chrono::steady_clock::now() + std::chrono::seconds(20)));
}

}  // namespace
}  // namespace cairn::cache
