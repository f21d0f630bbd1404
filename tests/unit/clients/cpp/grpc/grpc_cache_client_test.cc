// The gRPC client against a node that misbehaves in every way a test can script.

#include <thread>

#include "cairn/client/connect.h"
#include "common/status/matchers.h"
#include "tests/unit/clients/cpp/grpc/scripted_node.h"
#include "tests/unit/clients/cpp/parts.h"

namespace cairn::client::testing {
namespace {

using ::cairn::testing::StatusIs;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::_;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

// Generous, for machines with busy neighbours: tests that expect an answer, not a timeout.
const MatchOptions kPatient = {.deadline = seconds(60)};
const PushOptions kPatientPush = {.deadline = seconds(60)};
const FetchOptions kPatientFetch = {.progress = seconds(60), .deadline = seconds(120)};

class GrpcCacheClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(node_->running());
    Connect(node_->address());
  }
  void Connect(const std::string& address, Duration first_backoff = milliseconds(500)) {
    auto client =
        client::Connect({.address = address, .breaker = {.first_backoff = first_backoff}});
    ASSERT_OK(client);
    client_ = std::move(*client);
  }
  void Store() {
    ASSERT_OK(client_->OpenNamespace(spec_, {.deadline = seconds(60)}));
    auto pushed = client_->Push(fingerprint_, chain_.parts, kPatientPush);
    ASSERT_OK(pushed);
    for (const Status& status : *pushed) ASSERT_OK(status);
  }
  Result<MatchOutcome> Match(const MatchOptions& options = kPatient) {
    return client_->Match(fingerprint_, chain_.keys, options);
  }
  // Until a match works, or a minute has passed.
  bool Recovers() {
    const auto until = steady_clock::now() + seconds(60);
    while (steady_clock::now() < until) {
      if (Match({.deadline = seconds(1)}).ok()) return true;
      std::this_thread::yield();
    }
    return false;
  }

  const NamespaceSpec spec_ = SmallSpec();
  const Digest fingerprint_ = Fingerprint(spec_);
  const Chain chain_{spec_, 3};
  std::unique_ptr<ScriptedNode> node_ = std::make_unique<ScriptedNode>();
  std::unique_ptr<CacheClient> client_;
  CheckingSink sink_{spec_, chain_.keys};
};

TEST_F(GrpcCacheClientTest, NamesItsTenantWhenItOpensASession) {
  auto client = client::Connect({.address = node_->address(), .tenant = "mine"});
  ASSERT_OK(client);
  EXPECT_TRUE(node_->Eventually([&] { return node_->tenants.contains("mine"); }));
}

TEST_F(GrpcCacheClientTest, ServesWhatWasPushed) {
  Store();
  auto match = Match({.deadline = seconds(60), .trace = "trace-1"});
  ASSERT_OK(match);
  EXPECT_EQ(match->matched_blocks, 3u);
  EXPECT_TRUE(match->lease.held());
  ASSERT_OK(client_->Fetch(match->lease, {}, sink_, {.progress = seconds(60), .trace = "trace-2"}));
  EXPECT_EQ(sink_.slices, 12u);
  EXPECT_EQ(sink_.wrong, 0u);
  EXPECT_THAT(sink_.failed, IsEmpty());
  EXPECT_TRUE(node_->Eventually(
      [&] { return node_->traces.contains("trace-1") && node_->traces.contains("trace-2"); }));
  const ClientStats stats = client_->GetStats();
  EXPECT_EQ(stats.fetched_bytes[static_cast<size_t>(TierKind::kDisk)], sink_.bytes);
  EXPECT_EQ(stats.pushed_parts, 3u);
  EXPECT_TRUE(stats.connected);
}

TEST_F(GrpcCacheClientTest, PutsSlicesTogetherFromSmallPieces) {
  Store();
  node_->Set({.frame_bytes = 100});
  auto match = Match();
  ASSERT_OK(match);
  ASSERT_OK(client_->Fetch(match->lease, {}, sink_, kPatientFetch));
  EXPECT_EQ(sink_.slices, 12u);
  EXPECT_EQ(sink_.wrong, 0u);
}

TEST_F(GrpcCacheClientTest, PushesPartsLargerThanAFrame) {
  // 786 KiB a slice, 2.3 MiB a part; the node takes frames of 64 KiB.
  const NamespaceSpec spec = LargeSpec(2048);
  Chain chain(spec, 4);
  const auto keep = std::exchange(chain.parts[1].hold, nullptr);  // Copied by the client.
  ASSERT_OK(client_->OpenNamespace(spec, {.deadline = seconds(60)}));
  auto pushed = client_->Push(Fingerprint(spec), chain.parts, kPatientPush);
  ASSERT_OK(pushed);
  for (const Status& status : *pushed) EXPECT_OK(status);
  auto match = client_->Match(Fingerprint(spec), chain.keys, kPatient);
  ASSERT_OK(match);
  CheckingSink sink(spec, chain.keys);
  ASSERT_OK(client_->Fetch(match->lease, {}, sink, kPatientFetch));
  EXPECT_EQ(sink.slices, 16u);
  EXPECT_EQ(sink.wrong, 0u);
}

TEST_F(GrpcCacheClientTest, LeasesGoBackWithoutWaiting) {
  Store();
  std::vector<uint64_t> ids;
  for (int i = 0; i < 50; ++i) {
    auto match = Match();
    ASSERT_OK(match);
    ids.push_back(match->lease.info().id);
  }
  EXPECT_TRUE(node_->Eventually([&] {
    return std::all_of(ids.begin(), ids.end(),
                       [&](uint64_t id) { return node_->released.count(id) == 1; });
  }));
}

TEST_F(GrpcCacheClientTest, ALeaseMayOutliveItsClient) {
  Store();
  auto match = Match();
  ASSERT_OK(match);
  client_.reset();
  match->lease.Release();
}

TEST_F(GrpcCacheClientTest, WhatIsStoredAlreadyCountsAsPushed) {
  Store();
  auto again = client_->Push(fingerprint_, chain_.parts, kPatientPush);
  ASSERT_OK(again);
  for (const Status& status : *again) EXPECT_OK(status);
  Chain other(spec_, 1, {}, 500);
  node_->Set({.commit_code = static_cast<uint32_t>(StatusCode::kAlreadyExists)});
  again = client_->Push(fingerprint_, other.parts, kPatientPush);
  ASSERT_OK(again);
  EXPECT_OK(again->at(0));
}

TEST_F(GrpcCacheClientTest, APushThatFailsGivesItsRoomBack) {
  ASSERT_OK(client_->OpenNamespace(spec_, {.deadline = seconds(60)}));
  node_->Set({.push = grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full")});
  EXPECT_THAT(client_->Push(fingerprint_, chain_.parts, {}),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("full")));
  EXPECT_TRUE(node_->Eventually([&] { return node_->aborted.size() == 3; }));
}

TEST_F(GrpcCacheClientTest, PartsFailOneByOne) {
  ASSERT_OK(client_->OpenNamespace(spec_, {.deadline = seconds(60)}));
  std::vector<std::byte> damaged(chain_.parts[1].bytes.begin(), chain_.parts[1].bytes.end());
  damaged.back() ^= std::byte{1};
  std::vector<PartToPush> parts = chain_.parts;
  parts[1].bytes = damaged;
  parts[1].hold = nullptr;
  auto pushed = client_->Push(fingerprint_, parts, kPatientPush);
  ASSERT_OK(pushed);
  EXPECT_OK(pushed->at(0));
  EXPECT_THAT(pushed->at(1), StatusIs(StatusCode::kDataLoss, _));
  EXPECT_OK(pushed->at(2));
}

TEST_F(GrpcCacheClientTest, CorruptBytesAreAMissOfThatBlock) {
  Store();
  node_->Set({.frame_bytes = 1000, .corrupt_block = 1});
  auto match = Match();
  ASSERT_OK(match);
  ASSERT_OK(client_->Fetch(match->lease, {}, sink_, kPatientFetch));
  EXPECT_THAT(sink_.failed, ElementsAre(Pair(1u, MissReason::kCorrupt)));
  EXPECT_EQ(sink_.slices, 9u) << "the block's empty layer has nothing to corrupt";
  EXPECT_EQ(sink_.wrong, 0u);
  EXPECT_EQ(client_->GetStats().corrupt_slices, 3u);
}

TEST_F(GrpcCacheClientTest, AWrongSliceIsAskedForOnceMore) {
  Store();
  node_->Set({.frame_bytes = 1000, .corrupt_block = 1, .mends = true});
  auto match = Match();
  ASSERT_OK(match);
  ASSERT_OK(client_->Fetch(match->lease, {}, sink_, kPatientFetch));
  EXPECT_THAT(sink_.failed, IsEmpty());
  EXPECT_EQ(sink_.slices, 12u) << "each slice once";
  EXPECT_EQ(sink_.wrong, 0u);
  EXPECT_EQ(client_->GetStats().corrupt_slices, 3u);
}

TEST_F(GrpcCacheClientTest, AGetIsOneCallWhereTheNodeCan) {
  Store();
  for (const bool can : {true, false}) {
    node_->Set({.looks_up = can});
    int calls = 0;
    EXPECT_TRUE(node_->Eventually([&] { return (calls = node_->match_calls) >= 0; }));
    CheckingSink sink(spec_, chain_.keys);
    const auto got = client_->Get(fingerprint_, chain_.keys, {}, sink, kPatient,
                                  {.progress = seconds(60), .trace = "trace-3"});
    ASSERT_OK(got);
    EXPECT_EQ(got->matched_blocks, 3u);
    EXPECT_FALSE(got->lease.held());
    EXPECT_EQ(sink.slices, 12u);
    EXPECT_EQ(sink.wrong, 0u);
    EXPECT_TRUE(node_->Eventually([&] { return node_->match_calls == calls + (can ? 0 : 1); }));
  }
  EXPECT_TRUE(node_->Eventually([&] { return node_->traces.contains("trace-3"); }));
}

TEST_F(GrpcCacheClientTest, AGetAsksForAWrongSliceOnceMore) {
  Store();
  for (const bool mends : {true, false}) {
    node_->Set({.frame_bytes = 1000, .corrupt_block = 1, .mends = mends});
    CheckingSink sink(spec_, chain_.keys);
    ASSERT_OK(client_->Get(fingerprint_, chain_.keys, {}, sink, kPatient, kPatientFetch));
    EXPECT_EQ(sink.slices, mends ? 12u : 9u);
    EXPECT_EQ(sink.wrong, 0u);
    if (mends) {
      EXPECT_THAT(sink.failed, IsEmpty());
    } else {
      EXPECT_THAT(sink.failed, ElementsAre(Pair(1u, MissReason::kCorrupt)));
    }
  }
}

TEST_F(GrpcCacheClientTest, AGetKeepsToTheDeadlineOfItsAnswerAndToItsOwn) {
  Store();
  node_->Set({.hang_fetch_after = 0});  // Before the answer.
  EXPECT_THAT(client_->Get(fingerprint_, chain_.keys, {}, sink_, {.deadline = milliseconds(100)},
                           kPatientFetch),
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("lookup")));
  node_->Set({.hang_fetch_after = 5});
  EXPECT_THAT(
      client_->Get(fingerprint_, chain_.keys, {}, sink_, kPatient, {.progress = milliseconds(100)}),
      StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("slice")));
  EXPECT_THAT(client_->Get(fingerprint_, chain_.keys, {}, sink_, kPatient,
                           {.progress = seconds(60), .deadline = milliseconds(200)}),
              StatusIs(StatusCode::kDeadlineExceeded, _));
  node_->Set({.break_fetch_after = 5});
  EXPECT_THAT(client_->Get(fingerprint_, chain_.keys, {}, sink_, kPatient, kPatientFetch),
              StatusIs(StatusCode::kUnavailable, HasSubstr("broken")));
  EXPECT_EQ(sink_.wrong, 0u);
}

TEST_F(GrpcCacheClientTest, APushIsCommittedWithItsStreamWhereTheNodeCan) {
  Store();
  EXPECT_TRUE(node_->Eventually([&] { return node_->commit_calls == 1; })) << "a node of before";
  node_->Set({.commits = true});
  const Chain more(spec_, 3, {}, 1000);
  auto pushed = client_->Push(Fingerprint(spec_), more.parts, kPatientPush);
  ASSERT_OK(pushed);
  for (const Status& status : *pushed) EXPECT_OK(status);
  EXPECT_TRUE(node_->Eventually([&] { return node_->commit_calls == 1; })) << "no call of its own";
  auto match = client_->Match(Fingerprint(spec_), more.keys, kPatient);
  ASSERT_OK(match);
  EXPECT_EQ(match->matched_blocks, 3u);
}

TEST_F(GrpcCacheClientTest, AFetchThatBreaksHasGivenGoodSlices) {
  Store();
  node_->Set({.break_fetch_after = 5});
  auto match = Match();
  ASSERT_OK(match);
  EXPECT_THAT(client_->Fetch(match->lease, {}, sink_, kPatientFetch),
              StatusIs(StatusCode::kUnavailable, HasSubstr("broken")));
  EXPECT_EQ(sink_.slices, 5u);
  EXPECT_EQ(sink_.wrong, 0u);
}

TEST_F(GrpcCacheClientTest, AFetchThatEndsInTheMiddleOfASliceIsAnError) {
  Store();
  node_->Set({.frame_bytes = 100, .end_fetch_early = true});
  auto match = Match();
  ASSERT_OK(match);
  EXPECT_THAT(client_->Fetch(match->lease, {}, sink_, kPatientFetch),
              StatusIs(StatusCode::kDataLoss, HasSubstr("unfinished")));
}

TEST_F(GrpcCacheClientTest, AFetchWithoutProgressEnds) {
  Store();
  node_->Set({.hang_fetch_after = 5});
  auto match = Match();
  ASSERT_OK(match);
  // Long enough for the slices before, on a busy machine too.
  EXPECT_THAT(client_->Fetch(match->lease, {}, sink_,
                             {.progress = seconds(2), .deadline = std::chrono::hours(1)}),
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("no new slice")));
  EXPECT_EQ(sink_.slices, 5u);
}

TEST_F(GrpcCacheClientTest, AFetchKeepsToItsDeadline) {
  Store();
  node_->Set({.hang_fetch_after = 5});
  auto match = Match();
  ASSERT_OK(match);
  EXPECT_THAT(client_->Fetch(match->lease, {}, sink_,
                             {.progress = seconds(60), .deadline = milliseconds(200)}),
              StatusIs(StatusCode::kDeadlineExceeded, _));
  EXPECT_EQ(client_->GetStats().breaker, BreakerState::kClosed);
}

TEST_F(GrpcCacheClientTest, AFetchCanBeCancelled) {
  Store();
  node_->Set({.hang_fetch_after = 5});
  auto match = Match();
  ASSERT_OK(match);
  std::stop_source cancel;
  sink_.on_slice = [&](const SliceInfo&) {
    if (sink_.slices == 5) cancel.request_stop();
  };
  EXPECT_THAT(client_->Fetch(match->lease, {}, sink_,
                             {.progress = seconds(60), .cancel = cancel.get_token()}),
              StatusIs(StatusCode::kCancelled, _));
  std::stop_source before;
  before.request_stop();
  EXPECT_THAT(client_->Fetch(match->lease, {}, sink_, {.cancel = before.get_token()}),
              StatusIs(StatusCode::kCancelled, _));
}

TEST_F(GrpcCacheClientTest, ANodeThatIsAwayCostsLittleAndIsFoundWhenItComes) {
  const int port = node_->port();
  node_->Stop();
  Connect("127.0.0.1:" + std::to_string(port));
  EXPECT_THAT(client_->OpenNamespace(spec_), StatusIs(StatusCode::kUnavailable, _))
      << "remembered all the same";
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(Match({.deadline = milliseconds(200)}).ok());
  // The pauses between tries grow, so that there are few of them, however slow this machine is.
  EXPECT_GE(client_->GetStats().breaker_rejected, 80u) << "not 100 deadlines of 200 ms";
  EXPECT_FALSE(client_->GetStats().connected);

  node_ = std::make_unique<ScriptedNode>(port);
  ASSERT_TRUE(node_->running());
  EXPECT_TRUE(Recovers()) << "the namespace was opened by the client itself";
  EXPECT_EQ(client_->GetStats().breaker, BreakerState::kClosed);
}

TEST_F(GrpcCacheClientTest, AHangingNodeCostsTheDeadlineThreeTimes) {
  // No probe is due in this test.
  Connect(node_->address(), /*first_backoff=*/std::chrono::hours(1));
  Store();
  node_->Set({.hang = true});
  const auto begin = steady_clock::now();
  for (int i = 0; i < 3; ++i)
    EXPECT_THAT(Match({.deadline = milliseconds(50)}), StatusIs(StatusCode::kDeadlineExceeded, _));
  EXPECT_GE(steady_clock::now() - begin, milliseconds(150));
  EXPECT_EQ(client_->GetStats().breaker, BreakerState::kOpen);
  for (int i = 0; i < 100; ++i)
    EXPECT_THAT(Match({.deadline = milliseconds(50)}),
                StatusIs(StatusCode::kUnavailable, HasSubstr("not asked")));
  EXPECT_EQ(client_->GetStats().breaker_rejected, 100u);
}

TEST_F(GrpcCacheClientTest, TheSessionSurvivesAHang) {
  Store();
  node_->Set({.hang = true});
  while (client_->GetStats().breaker != BreakerState::kOpen) {
    EXPECT_FALSE(Match({.deadline = milliseconds(50)}).ok());
  }
  node_->Set({});
  EXPECT_TRUE(Recovers());
  EXPECT_EQ(client_->GetStats().sessions, 1u);
}

TEST_F(GrpcCacheClientTest, LeasesEndWithTheSession) {
  Store();
  auto match = Match();
  ASSERT_OK(match);
  node_->EndSessions();
  ASSERT_TRUE(node_->Eventually([&] { return node_->sessions_opened == 2; }));
  EXPECT_TRUE(Recovers());
  EXPECT_THAT(client_->Fetch(match->lease, {}, sink_, kPatientFetch),
              StatusIs(StatusCode::kNotFound, _));
  EXPECT_THAT(client_->RenewLease(match->lease, seconds(1), {.deadline = seconds(60)}),
              StatusIs(StatusCode::kNotFound, _));
  EXPECT_EQ(client_->GetStats().sessions, 2u);
}

// The session's end is noticed when somebody looks: until then the node is asked with an id that it
// does not know.
TEST_F(GrpcCacheClientTest, ARestartedNodeIsNotAskedWithTheSessionOfBefore) {
  Store();
  for (int restart = 0; restart < 5; ++restart) {
    const int port = node_->port();
    node_.reset();
    node_ = std::make_unique<ScriptedNode>(port);
    ASSERT_TRUE(node_->running());
    const auto until = steady_clock::now() + seconds(60);
    Status status;
    do {
      status = Match({.deadline = seconds(20)}).status();
      ASSERT_NE(status.code(), StatusCode::kNotFound) << ToString(status);
    } while (!status.ok() && steady_clock::now() < until);
    ASSERT_OK(status);
  }
  EXPECT_EQ(client_->GetStats().sessions, 6u);
}

TEST_F(GrpcCacheClientTest, ANodeThatEndsEverySessionIsNotAskedWithoutAPause) {
  steady_clock::time_point begin;
  for (int i = 0; i < 3; ++i) {
    const int opened = i + 1;
    ASSERT_TRUE(node_->Eventually([&] { return node_->sessions_opened >= opened; }));
    // Before the pause begins, or a part of it may be over when the clock is read.
    begin = steady_clock::now();
    node_->EndSessions();
  }
  ASSERT_TRUE(node_->Eventually([&] { return node_->sessions_opened >= 4; }));
  EXPECT_GE(steady_clock::now() - begin, milliseconds(50));
}

TEST_F(GrpcCacheClientTest, ANamespaceDroppedAtTheNodeIsOpenedAgain) {
  Store();
  node_->ForgetNamespaces();
  EXPECT_THAT(Match(), StatusIs(StatusCode::kNotFound, _));
  EXPECT_TRUE(node_->Eventually([&] { return node_->knows(std::string(fingerprint_.View())); }));
  EXPECT_OK(Match());
}

TEST_F(GrpcCacheClientTest, RefusesBadRequestsWithoutTheNode) {
  NamespaceSpec bad = spec_;
  bad.model.clear();
  EXPECT_THAT(client_->OpenNamespace(bad),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'model'")));
  EXPECT_THAT(client_->Match(fingerprint_, {}, {}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'keys'")));
  EXPECT_THAT(client_->Fetch(Lease(), {}, sink_, {}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'lease'")));
}

TEST_F(GrpcCacheClientTest, WatchesEventsAndSkipsUnknownKinds) {
  Store();  // Opens the session.
  auto events = client_->WatchEvents({});
  ASSERT_OK(events);
  auto event = (*events)->Next(seconds(60));
  ASSERT_OK(event);
  ASSERT_TRUE(event->has_value());
  EXPECT_EQ((*event)->kind, CacheEvent::Kind::kStored);
  EXPECT_EQ((*event)->sequence, 7u);
  EXPECT_EQ((*event)->tier, TierKind::kDisk);
  EXPECT_THAT(node_->watched_by, ElementsAre("session-00000001"));
  event = (*events)->Next(milliseconds(10));
  ASSERT_OK(event);
  EXPECT_FALSE(event->has_value());
  (*events)->Cancel();
  EXPECT_THAT((*events)->Next(seconds(60)), StatusIs(StatusCode::kCancelled, _));
}

TEST_F(GrpcCacheClientTest, ManyThreadsShareOneClient) {
  Store();
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        auto match = Match();
        CheckingSink sink(spec_, chain_.keys);
        if (match.ok() && client_->Fetch(match->lease, {}, sink, kPatientFetch).ok() &&
            sink.slices == 12 && sink.wrong == 0)
          ++good;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(good, 120);
}

TEST_F(GrpcCacheClientTest, EndsAtOnceWhileTheNodeHangs) {
  node_->Set({.hang = true});
  Connect(node_->address());
  const auto begin = steady_clock::now();
  client_.reset();
  EXPECT_LT(steady_clock::now() - begin, seconds(60)) << "it would hang for ever";
}

}  // namespace
}  // namespace cairn::client::testing
