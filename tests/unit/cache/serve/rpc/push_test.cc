// Reserve and Push.

#include <gmock/gmock.h>

#include "common/status/matchers.h"
#include "protocol/wire/convert.h"
#include "tests/unit/cache/serve/rpc/service_fixture.h"

namespace cairn::cache {
namespace {

using ::testing::HasSubstr;

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
  EXPECT_THAT(push({old, first}, &response).error_message(),
              HasSubstr("commit_ids: got 3 in a later frame"));
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

class PushPlacesTest : public ServiceTest {
 protected:
  void SetUp() override { StartServer(8); }
  void TearDown() override {
    idle_.clear();
    ServiceTest::TearDown();
  }

  struct Push {
    explicit Push(v1::Cache::Stub* stub) : writer(stub->Push(&context, &response)) {}
    ~Push() {
      context.TryCancel();
      if (!finished) writer->Finish();
    }
    grpc::Status Finish() {
      finished = true;
      return writer->Finish();
    }
    grpc::ClientContext context;
    v1::PushResponse response;
    std::unique_ptr<grpc::ClientWriter<v1::PushFrame>> writer;
    bool finished = false;
  };
  // Opens streams that say nothing, and waits until the node knows all of them.
  void OpenIdle(int count) {
    for (int i = 0; i < count; ++i) idle_.push_back(std::make_unique<Push>(stub.get()));
    const std::string line =
        fmt::format("cairn_rpc_in_flight_requests{{method=\"Push\"}} {}\n", count);
    for (int i = 0; i < 2000 && registry.Scrape().find(line) == std::string::npos; ++i) Turn();
    EXPECT_THAT(registry.Scrape(), HasSubstr(line));
  }
  // Gives other threads a turn.
  void Turn() {
    MutexLock lock(engine.mu);
    engine.changed.WaitUntil(engine.mu,
                             std::chrono::steady_clock::now() + std::chrono::milliseconds(10),
                             []() { return false; });
  }
  grpc::Status Stat() {
    grpc::ClientContext context;
    v1::StatResponse response;
    return stub->Stat(&context, v1::StatRequest(), &response);
  }

  std::vector<std::unique_ptr<Push>> idle_;
};

TEST_F(PushPlacesTest, AStreamThatSaysNothingTakesNoPlace) {
  OpenIdle(100);
  EXPECT_EQ(gate->inside(), 0u);
  for (int i = 0; i < 20; ++i) {
    const grpc::Status status = Stat();
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
}

TEST_F(PushPlacesTest, TheFirstFrameTakesAPlaceAndAConnectionHasAShareOfThem) {
  const std::string session = Session();
  OpenIdle(20);
  v1::PushFrame first;
  first.set_session_id(session);
  for (const auto& push : idle_) EXPECT_TRUE(push->writer->Write(first));
  for (int i = 0; i < 2000 && gate->inside() < 5; ++i) Turn();
  // 5 of 8: at the sixth, the connection would have more than are free.
  EXPECT_EQ(gate->inside(), 5u);
  const grpc::Status refused = Stat();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("this connection"));
  EXPECT_THAT(registry.Scrape(), HasSubstr("cairn_rpc_rejected_total{reason=\"share\"} 16"));
  // Another connection is served.
  grpc::ChannelArguments own;
  own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto other = v1::Cache::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), own));
  grpc::ClientContext context;
  v1::StatResponse response;
  EXPECT_TRUE(other->Stat(&context, v1::StatRequest(), &response).ok());
}

TEST_F(PushPlacesTest, AClientThatIsSilentForTooLongLosesItsCall) {
  rpc.options.push_stall = std::chrono::milliseconds(50);
  const std::string session = Session();
  Push silent(stub.get()), half(stub.get());
  v1::PushFrame first;
  first.set_session_id(session);
  auto* const piece = first.add_pieces();
  piece->set_reservation_id(5);
  piece->set_data("abc");
  first.add_commit_ids(5);
  EXPECT_TRUE(half.writer->Write(first));
  for (Push* const push : {&silent, &half}) {
    const grpc::Status end = push->Finish();
    EXPECT_EQ(end.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << end.error_message();
    EXPECT_THAT(end.error_message(), HasSubstr("rpc.push_stall"));
  }
  EXPECT_TRUE(gate->WaitEmpty(std::chrono::steady_clock::now() + std::chrono::seconds(60)));
  // A push that was cut off is not committed.
  MutexLock lock(engine.mu);
  EXPECT_TRUE(engine.committed.empty());
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

}  // namespace
}  // namespace cairn::cache
