// Matches, and fetches that begin with a lookup, that wait for a source.

#include <gmock/gmock.h>

#include <list>
#include <thread>

#include "common/status/matchers.h"
#include "tests/unit/cache/serve/rpc/service_fixture.h"

namespace cairn::cache {
namespace {

using ::testing::HasSubstr;

class WaitingMatchTest : public ServiceTest {
 protected:
  void SetUp() override {
    ServiceTest::SetUp();
    engine.asks_source = true;
    session_ = Session();
  }
  v1::MatchRequest Request() const {
    v1::MatchRequest request;
    request.set_session_id(session_);
    request.set_fingerprint(FingerprintBytes());
    request.set_keys(std::string(5 * 32, 'k'));
    return request;
  }
  // A match under way.
  struct Pending {
    grpc::ClientContext context;
    v1::MatchResponse response;
    grpc::Status status;
    bool done = false;
  };
  Pending& Send() {
    Pending& pending = calls_.emplace_back();
    request_ = Request();
    stub->async()->Match(&pending.context, &request_, &pending.response,
                         [this, &pending](const grpc::Status& status) {
                           MutexLock lock(engine.mu);
                           pending.status = status;
                           pending.done = true;
                           engine.changed.NotifyAll();
                         });
    return pending;
  }
  std::vector<FurtherMatch::Done> WaitForQuestions(size_t count) {
    EXPECT_TRUE(engine.Wait([&] { return engine.waiting.size() == count; }));
    MutexLock lock(engine.mu);
    return std::exchange(engine.waiting, {});
  }
  static MatchResult Located(uint32_t blocks) {
    MatchResult result;
    result.matched_blocks = blocks;
    result.lease = 7;
    result.tiers = {{TierKind::kHost, 1, 100, 0.25}, {std::nullopt, blocks - 1, 200, 0.5}};
    return result;
  }

  std::string session_;
  v1::MatchRequest request_;
  std::list<Pending> calls_;
};

TEST_F(WaitingMatchTest, MatchesWaitWithoutAThread) {
  constexpr size_t kCalls = 40;  // More than a server has pollers and threads.
  for (size_t i = 0; i < kCalls; ++i) Send();
  const auto questions = WaitForQuestions(kCalls);
  // All others go on.
  grpc::ClientContext context;
  v1::StatResponse stat;
  EXPECT_TRUE(stub->Stat(&context, v1::StatRequest(), &stat).ok());
  for (const Pending& call : calls_) {
    MutexLock lock(engine.mu);
    EXPECT_FALSE(call.done);
  }
  for (const auto& answer : questions) answer(Located(3));
  for (const Pending& call : calls_) {
    EXPECT_TRUE(engine.Wait([&] { return call.done; }));
    EXPECT_TRUE(call.status.ok()) << call.status.error_message();
    EXPECT_EQ(call.response.matched_blocks(), 3u);
    EXPECT_EQ(call.response.lease_id(), 7u);
    ASSERT_EQ(call.response.tiers_size(), 2);
    EXPECT_EQ(call.response.tiers(0).tier(), v1::TIER_KIND_HOST);
    EXPECT_EQ(call.response.tiers(1).tier(), v1::TIER_KIND_UNSPECIFIED);
    EXPECT_EQ(call.response.tiers(1).blocks(), 2u);
  }
  EXPECT_THAT(registry.Scrape(), HasSubstr("cairn_lookup_blocks_total{tier=\"source\"} 80"));
}

TEST_F(WaitingMatchTest, AnErrorIsAnswered) {
  const Pending& call = Send();
  WaitForQuestions(1)[0](Errorf(StatusCode::kNotFound, "namespace was dropped"));
  EXPECT_TRUE(engine.Wait([&] { return call.done; }));
  EXPECT_EQ(call.status.error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(WaitingMatchTest, AClientThatLeavesMeanwhileKeepsNoLease) {
  const auto released = [&] {
    MutexLock lock(engine.mu);
    return !engine.released.empty();
  };
  // Nothing tells when the node has heard it, too. If the answer came before that, another client
  // leaves, and is answered later.
  for (auto pause = std::chrono::milliseconds(1); !released(); pause *= 2) {
    ASSERT_LT(pause, std::chrono::seconds(60));
    Pending& call = Send();
    const auto questions = WaitForQuestions(1);
    call.context.TryCancel();
    EXPECT_TRUE(engine.Wait([&] { return call.done; }));
    std::this_thread::sleep_for(pause);
    questions[0](Located(3));
  }
  MutexLock lock(engine.mu);
  EXPECT_EQ(engine.released, std::vector<LeaseId>{7});
}

TEST_F(WaitingMatchTest, AFetchWithALookupGoesOnWhenTheSourceHasAnswered) {
  engine.items.push_back(MakeSlice(0, 1000));
  v1::FetchRequest request;
  request.set_session_id(session_);
  request.mutable_lookup()->set_fingerprint(FingerprintBytes());
  request.mutable_lookup()->set_keys(std::string(3 * 32, 'k'));
  grpc::ClientContext context;
  auto reader = stub->Fetch(&context, request);
  WaitForQuestions(1)[0](Located(2));
  v1::FetchFrame frame;
  ASSERT_TRUE(reader->Read(&frame));
  EXPECT_EQ(frame.matched().matched_blocks(), 2u);
  ASSERT_EQ(frame.slices_size(), 1);
  EXPECT_FALSE(reader->Read(&frame));
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(engine.Wait([&] { return engine.released == std::vector<LeaseId>{7}; }));
}

TEST_F(WaitingMatchTest, AFetchWhoseLookupFailsEndsWithItsStatus) {
  v1::FetchRequest request;
  request.set_session_id(session_);
  request.mutable_lookup()->set_fingerprint(FingerprintBytes());
  request.mutable_lookup()->set_keys(std::string(3 * 32, 'k'));
  grpc::ClientContext context;
  auto reader = stub->Fetch(&context, request);
  WaitForQuestions(1)[0](Errorf(StatusCode::kNotFound, "session 1"));
  v1::FetchFrame frame;
  EXPECT_FALSE(reader->Read(&frame));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
}

}  // namespace
}  // namespace cairn::cache
