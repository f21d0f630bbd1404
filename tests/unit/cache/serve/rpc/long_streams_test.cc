// Streams that live as long as their client: sessions, watches, health.

#include <gmock/gmock.h>

#include <thread>

#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/unit/cache/serve/rpc/service_fixture.h"

namespace cairn::cache {
namespace {

using ::testing::HasSubstr;

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

TEST_F(ServiceTest, WatchDeliversEventsInOrder) {
  for (uint64_t i = 1; i <= 600; ++i) {
    CacheEvent event;
    event.node_epoch = 3;
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
    ASSERT_EQ(event.node_epoch(), 3u);
  }
  {
    MutexLock lock(engine.mu);
    engine.watch_end = Errorf(StatusCode::kResourceExhausted, "too slow");
  }
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

// Sessions and flushes go the same way.
TEST_F(ServiceTest, AConnectionHasAShareOfTheWatches) {
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::Event>>> watches;
  const auto in_flight = [&](const char* method, size_t count) {
    const std::string line =
        fmt::format("cairn_rpc_in_flight_requests{{method=\"{}\"}} {}\n", method, count);
    for (int i = 0; i < 2000 && registry.Scrape().find(line) == std::string::npos; ++i) {
      MutexLock lock(engine.mu);
      engine.changed.WaitUntil(engine.mu,
                               std::chrono::steady_clock::now() + std::chrono::milliseconds(10),
                               []() { return false; });
    }
    EXPECT_THAT(registry.Scrape(), HasSubstr(line));
  };
  for (int i = 0; i < 64; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    watches.push_back(stub->Watch(contexts.back().get(), v1::WatchRequest()));
  }
  in_flight("Watch", 33);
  grpc::ChannelArguments own;
  own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto other = v1::Cache::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), own));
  contexts.push_back(std::make_unique<grpc::ClientContext>());
  watches.push_back(other->Watch(contexts.back().get(), v1::WatchRequest()));
  in_flight("Watch", 34);
  for (const auto& context : contexts) context->TryCancel();
  for (const auto& watch : watches) watch->Finish();
}

class SessionMemoryTest : public ServiceTest {
 protected:
  void SetUp() override {
    MemoryAccount::Bounds bounds = MemoryAccount::Unbounded();
    bounds[static_cast<size_t>(MemoryItem::kSessions)] = 200 << 10;
    memory_ = std::make_unique<MemoryAccount>(bounds);
    rpc.memory = memory_.get();
    ServiceTest::SetUp();
  }
  std::unique_ptr<MemoryAccount> memory_;
};

TEST_F(SessionMemoryTest, SessionsAreChargedAndGivenBack) {
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::SessionEvent>>> readers;
  grpc::Status refused;
  while (refused.ok() && readers.size() < 100) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(stub->OpenSession(contexts.back().get(), v1::OpenSessionRequest()));
    v1::SessionEvent event;
    if (!readers.back()->Read(&event)) {
      refused = readers.back()->Finish();
      readers.pop_back();
    }
  }
  EXPECT_EQ(readers.size(), 4u);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("memory of sessions"));
  EXPECT_THAT(refused.error_message(), HasSubstr("limits.session_memory"));
  EXPECT_LE(memory_->used(MemoryItem::kSessions), memory_->bound(MemoryItem::kSessions));
  for (const auto& context : contexts) context->TryCancel();
  for (const auto& reader : readers) reader->Finish();
  EXPECT_TRUE(engine.Wait([&] { return engine.open.empty(); }));
  for (int i = 0; i < 2000 && memory_->used(MemoryItem::kSessions) > 0; ++i) {
    MutexLock lock(engine.mu);
    engine.changed.WaitUntil(engine.mu,
                             std::chrono::steady_clock::now() + std::chrono::milliseconds(10),
                             []() { return false; });
  }
  EXPECT_EQ(memory_->used(MemoryItem::kSessions), 0u);
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

}  // namespace
}  // namespace cairn::cache
