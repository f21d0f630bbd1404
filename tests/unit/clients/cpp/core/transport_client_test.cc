// Behaviour that all paths share: which one is asked, what a caller gets, and what is counted.
#include "clients/cpp/src/core/transport_client.h"

#include "common/status/matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/clients/cpp/core/fake_paths.h"
#include "tests/unit/clients/cpp/parts.h"

namespace cairn::client {
namespace {

using ::cairn::testing::StatusIs;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::_;
using testing::Chain;
using testing::CheckingSink;
using ::testing::ElementsAre;
using testing::FakeGet;
using testing::FakeMain;
using testing::FakeMatch;
using testing::FakeNear;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using testing::SmallSpec;

Status Failure(StatusCode code) { return Errorf(code, "no"); }

class TransportClientTest : public ::testing::Test {
 protected:
  TransportClientTest() { Start({}); }
  void Start(const TransportClient::Options& options) {
    auto near = std::make_unique<FakeNear>();
    auto main = std::make_unique<FakeMain>();
    near_ = near.get();
    main_ = main.get();
    near_->matched = main_->matched = FakeMatch();
    main_->pushed = PushReport{.results = std::vector<Status>(3)};
    main_->exists = TierList(3);
    main_->renewed = seconds(5);
    main_->fetched = FetchReport{};
    client_ = std::make_unique<TransportClient>(options, &clock_, std::move(near), std::move(main));
  }
  Result<MatchOutcome> Match() { return client_->Match(fingerprint_, chain_.keys, {}); }
  // A lease of the client.
  Lease NewLease() {
    auto match = Match();
    EXPECT_OK(match);
    return std::move(match->lease);
  }
  uint64_t Fallbacks() const { return client_->GetStats().local_fallbacks; }

  FakeClock clock_;
  const NamespaceSpec spec_ = SmallSpec();
  const Digest fingerprint_ = Fingerprint(spec_);
  const Chain chain_{spec_, 3};
  CheckingSink sink_{spec_, chain_.keys};
  FakeNear* near_ = nullptr;
  FakeMain* main_ = nullptr;
  std::unique_ptr<TransportClient> client_;
};

TEST_F(TransportClientTest, TheNearPathIsAskedFirst) {
  const auto match = Match();
  ASSERT_OK(match);
  EXPECT_EQ(main_->matches, 0);
  EXPECT_EQ(match->lease.info().id, 7u);
  EXPECT_EQ(match->lease.info().session, "session-1");
  EXPECT_EQ(match->lease.info().blocks, 3u);
  EXPECT_EQ(match->lease.info().expires_at, clock_.Now() + seconds(30));
  EXPECT_EQ(client_->GetStats().matched_blocks, 3u);
}

TEST_F(TransportClientTest, WhatTheNearPathCannotServeGoesOverTheMainOne) {
  near_->matched.reset();
  ASSERT_OK(Match());
  EXPECT_EQ(main_->matches, 1);
  EXPECT_EQ(Fallbacks(), 0u) << "it was not there";
  for (const StatusCode code :
       {StatusCode::kUnavailable, StatusCode::kDataLoss, StatusCode::kResourceExhausted}) {
    near_->matched = Failure(code);
    ASSERT_OK(Match());
  }
  EXPECT_EQ(main_->matches, 4);
  EXPECT_EQ(Fallbacks(), 3u);
  near_->matched = Failure(StatusCode::kInvalidArgument);
  EXPECT_THAT(Match(), StatusIs(StatusCode::kInvalidArgument, _)) << "the node has answered";
  EXPECT_EQ(main_->matches, 4);
}

TEST_F(TransportClientTest, NearOnlyNeverSendsBytesOverTheMainPath) {
  Start({.near_only = true});
  const Lease lease = NewLease();
  near_->matched.reset();
  EXPECT_THAT(Match(), StatusIs(StatusCode::kUnavailable, HasSubstr("closed for today")));
  EXPECT_THAT(client_->Exists(fingerprint_, chain_.keys, {}),
              StatusIs(StatusCode::kUnavailable, HasSubstr("closed for today")));
  EXPECT_THAT(client_->Push(fingerprint_, chain_.parts, {}),
              StatusIs(StatusCode::kUnavailable, HasSubstr("closed for today")));
  Start({.near_only = true});
  near_->matched = Failure(StatusCode::kResourceExhausted);
  EXPECT_THAT(Match(), StatusIs(StatusCode::kResourceExhausted, _));
  EXPECT_EQ(Fallbacks(), 0u);

  near_->matched = main_->matched;
  const Lease another = NewLease();
  near_->fetched = FetchReport{.rest = {{1, 3}}};
  ASSERT_OK(client_->Fetch(another, {}, sink_, {}));
  EXPECT_THAT(sink_.failed,
              ElementsAre(Pair(1u, MissReason::kRefused), Pair(2u, MissReason::kRefused)));
  EXPECT_THAT(main_->fetched_ranges, IsEmpty());
}

TEST_F(TransportClientTest, AMatchThatNamesHoldersTakesTheMainPathIfThatMayBe) {
  const MatchOptions holders = {.holders = {"node-1"}};
  ASSERT_OK(client_->Match(fingerprint_, chain_.keys, holders));
  EXPECT_EQ(main_->matches, 1);
  EXPECT_EQ(near_->matches, 0);
  Start({.near_only = true});
  ASSERT_OK(client_->Match(fingerprint_, chain_.keys, holders));
  EXPECT_EQ(near_->matches, 1);
}

TEST_F(TransportClientTest, BadHoldersAreNamed) {
  const auto match = [this](std::vector<std::string> holders) {
    return client_->Match(fingerprint_, chain_.keys, {.holders = std::move(holders)}).status();
  };
  EXPECT_OK(match(std::vector<std::string>(4, std::string(128, 'n'))));
  EXPECT_THAT(match(std::vector<std::string>(5, "n")),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'holders': got 5")));
  EXPECT_THAT(match({"n", ""}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'holders[1]': got 0")));
  EXPECT_THAT(match({std::string(129, 'n')}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'holders[0]': got 129")));
}

TEST_F(TransportClientTest, AFetchTakesTheMainPathForWhatTheNearOneLeaves) {
  const Lease lease = NewLease();
  near_->fetched = FetchReport{.counts = {.slices = 4, .bytes = {0, 100}, .lent_bytes = 60},
                               .rest = {{0, 1}, {2, 3}}};
  main_->fetched = FetchReport{.counts = {.slices = 1, .bytes = {0, 7}}, .node_answers = true};
  ASSERT_OK(client_->Fetch(lease, {}, sink_, {}));
  EXPECT_THAT(main_->fetched_ranges, ElementsAre(Pair(0u, 1u), Pair(2u, 3u)));
  const ClientStats stats = client_->GetStats();
  EXPECT_EQ(stats.fetches, 1u);
  EXPECT_EQ(stats.fetched_slices, 6u);
  EXPECT_EQ(stats.fetched_bytes_by_path[static_cast<size_t>(Path::kLocal)], 100u);
  EXPECT_EQ(stats.fetched_bytes_by_path[static_cast<size_t>(Path::kGrpc)], 14u);
  EXPECT_EQ(stats.lent_bytes, 60u);
}

TEST_F(TransportClientTest, AFetchThatBreaksGoesOnOnlyIfNothingWasDelivered) {
  const Lease lease = NewLease();
  near_->fetched = FetchReport{.status = Failure(StatusCode::kUnavailable), .rest = {{0, 3}}};
  ASSERT_OK(client_->Fetch(lease, {}, sink_, {}));
  EXPECT_THAT(main_->fetched_ranges, ElementsAre(Pair(0u, 3u)));
  EXPECT_EQ(Fallbacks(), 1u);
  near_->fetched->counts.slices = 1;
  EXPECT_THAT(client_->Fetch(lease, {}, sink_, {}), StatusIs(StatusCode::kUnavailable, _));
  EXPECT_EQ(main_->fetched_ranges.size(), 1u) << "nothing comes twice";
}

TEST_F(TransportClientTest, PartsWithoutRoomTakeTheMainPath) {
  near_->pushed =
      PushReport{.results = {OkStatus(), Failure(StatusCode::kResourceExhausted), OkStatus()}};
  main_->pushed = PushReport{.results = std::vector<Status>(1)};
  const auto pushed = client_->Push(fingerprint_, chain_.parts, {});
  ASSERT_OK(pushed);
  for (const Status& status : *pushed) EXPECT_OK(status);
  EXPECT_EQ(main_->pushed_parts, 1u);
  const ClientStats stats = client_->GetStats();
  EXPECT_EQ(stats.pushed_parts, 3u);
  const uint64_t bytes = chain_.parts[0].bytes.size();
  EXPECT_EQ(stats.pushed_bytes_by_path[static_cast<size_t>(Path::kLocal)], 2 * bytes);
  EXPECT_EQ(stats.pushed_bytes_by_path[static_cast<size_t>(Path::kGrpc)], bytes);
}

TEST_F(TransportClientTest, EveryPartHasAResultWhenThePathFailsInTheMiddle) {
  near_->pushed =
      PushReport{.status = Failure(StatusCode::kDeadlineExceeded), .results = {OkStatus()}};
  auto pushed = client_->Push(fingerprint_, chain_.parts, {});
  ASSERT_OK(pushed);
  ASSERT_EQ(pushed->size(), 3u);
  EXPECT_OK((*pushed)[0]);
  EXPECT_THAT((*pushed)[1], StatusIs(StatusCode::kDeadlineExceeded, _));
  EXPECT_THAT((*pushed)[2], StatusIs(StatusCode::kDeadlineExceeded, _));
  EXPECT_EQ(main_->pushed_parts, 0u);

  near_->pushed->status = Failure(StatusCode::kUnavailable);
  main_->pushed = PushReport{.results = std::vector<Status>(2)};
  pushed = client_->Push(fingerprint_, chain_.parts, {});
  ASSERT_OK(pushed);
  for (const Status& status : *pushed) EXPECT_OK(status);
  EXPECT_EQ(main_->pushed_parts, 2u) << "what was not tried";
}

TEST_F(TransportClientTest, LeasesGoBackToThePathThatHasThem) {
  NewLease().Release();
  EXPECT_THAT(near_->released, ElementsAre(7u));
  near_->owns_leases = false;
  Lease lease = NewLease();
  const auto renewed = client_->RenewLease(lease, seconds(9), {});
  ASSERT_OK(renewed);
  EXPECT_EQ(*renewed, seconds(5)) << "by the main path";
  near_->renewed = Failure(StatusCode::kNotFound);
  EXPECT_THAT(client_->RenewLease(lease, seconds(9), {}), StatusIs(StatusCode::kNotFound, _));
  lease.Release();
  EXPECT_THAT(main_->released, ElementsAre(7u));
  Lease late = NewLease();
  client_.reset();
  late.Release();  // The lease is of a client that is gone: nothing happens.
}

TEST_F(TransportClientTest, LeasesOfASessionThatEndedAreNotAskedFor) {
  const Lease lease = NewLease();
  clock_.Advance(seconds(5));
  main_->link_.alive = false;
  ASSERT_OK(Match());
  EXPECT_THAT(client_->Fetch(lease, {}, sink_, {}), StatusIs(StatusCode::kNotFound, _));
  EXPECT_THAT(client_->RenewLease(lease, seconds(9), {}), StatusIs(StatusCode::kNotFound, _));
  EXPECT_THAT(main_->fetched_ranges, IsEmpty());
  EXPECT_EQ(near_->checked, 2) << "once per session";
}

TEST_F(TransportClientTest, ACallIsMadeOnceMoreWhenItsSessionHadEnded) {
  ASSERT_OK(Match());
  near_->matched = Failure(StatusCode::kNotFound);
  EXPECT_THAT(Match(), StatusIs(StatusCode::kNotFound, _)) << "the session is still open";
  EXPECT_EQ(near_->matches, 2);
  clock_.Advance(seconds(5));
  near_->on_match = [&] { main_->link_.alive = false; };
  EXPECT_THAT(Match(), StatusIs(StatusCode::kNotFound, _));
  EXPECT_EQ(near_->matches, 4);
}

TEST_F(TransportClientTest, ADeadNodeIsAskedAgainAfterTheBackOff) {
  Start({.breaker = {.failures = 3, .first_backoff = seconds(1), .jitter = 0}});
  near_->matched.reset();
  main_->matched = Failure(StatusCode::kDeadlineExceeded);
  for (int i = 0; i < 3; ++i) EXPECT_THAT(Match(), StatusIs(StatusCode::kDeadlineExceeded, _));
  for (int i = 0; i < 10; ++i) {
    EXPECT_THAT(Match(), StatusIs(StatusCode::kUnavailable, HasSubstr("not asked")));
  }
  EXPECT_EQ(main_->matches, 3);
  main_->matched = FakeMatch();
  clock_.Advance(seconds(1));
  ASSERT_OK(Match());
  const ClientStats stats = client_->GetStats();
  EXPECT_EQ(stats.breaker_opened, 1u);
  EXPECT_EQ(stats.breaker_rejected, 10u);
  EXPECT_EQ(stats.calls_by_code[static_cast<size_t>(StatusCode::kDeadlineExceeded)], 3u);
  EXPECT_EQ(stats.calls_by_code[static_cast<size_t>(StatusCode::kUnavailable)], 10u);
}

TEST_F(TransportClientTest, TooLittleTimeIsNotAFailureOfANodeThatSends) {
  Start({.breaker = {.failures = 1}});
  const Lease lease = NewLease();
  main_->fetched =
      FetchReport{.status = Failure(StatusCode::kDeadlineExceeded), .node_answers = true};
  main_->on_fetch = [&] { clock_.Advance(milliseconds(10)); };
  EXPECT_THAT(client_->Fetch(lease, {}, sink_, {.deadline = milliseconds(10)}),
              StatusIs(StatusCode::kDeadlineExceeded, _));
  EXPECT_EQ(client_->GetStats().breaker, BreakerState::kClosed);
  EXPECT_THAT(client_->Fetch(lease, {}, sink_, {.deadline = seconds(1)}),
              StatusIs(StatusCode::kDeadlineExceeded, _));
  EXPECT_EQ(client_->GetStats().breaker, BreakerState::kOpen) << "there was time left";
}

TEST_F(TransportClientTest, AGetIsOneCallOfTheMainPathOrAMatchAndAFetch) {
  near_->matched.reset();
  main_->got = FakeGet{.blocks = 2};
  auto got = client_->Get(fingerprint_, chain_.keys, {}, sink_, {}, {});
  ASSERT_OK(got);
  EXPECT_EQ(got->matched_blocks, 2u);
  EXPECT_EQ(main_->matches, 0);

  main_->got.reset();  // A node that cannot do both at once.
  got = client_->Get(fingerprint_, chain_.keys, {}, sink_, {}, {});
  ASSERT_OK(got);
  EXPECT_EQ(got->matched_blocks, 3u);
  EXPECT_EQ(main_->matches, 1);
  EXPECT_EQ(main_->fetched_ranges.size(), 1u);

  near_->matched = main_->matched;
  near_->fetched = FetchReport{};
  got = client_->Get(fingerprint_, chain_.keys, {}, sink_, {}, {});
  ASSERT_OK(got);
  EXPECT_FALSE(got->lease.held());
  EXPECT_EQ(near_->fetched_ranges.size(), 1u);
  EXPECT_EQ(main_->gets, 2);
  EXPECT_EQ(client_->GetStats().matches, 3u);
}

TEST_F(TransportClientTest, AGetThatDeliveredSlicesIsNotMadeOnceMore) {
  near_->matched.reset();
  main_->got = FakeGet{.blocks = 2,
                       .fetch = {.status = Failure(StatusCode::kNotFound), .node_answers = true}};
  main_->on_fetch = [&] { main_->link_.alive = false; };
  EXPECT_THAT(client_->Get(fingerprint_, chain_.keys, {}, sink_, {}, {}),
              StatusIs(StatusCode::kNotFound, _));
  EXPECT_EQ(main_->gets, 1);
}

TEST_F(TransportClientTest, RoomIsABufferWhereTheNearPathHasNone) {
  std::vector<PartToWrite> parts(
      1,
      {.key = chain_.keys[0], .rect = chain_.parts[0].rect, .bytes = chain_.parts[0].bytes.size()});
  for (const auto& begun :
       {std::optional<Status>(), std::optional(Failure(StatusCode::kResourceExhausted))}) {
    near_->begun = begun;
    const auto push = client_->BeginPush(fingerprint_, parts, {});
    ASSERT_OK(push);
    EXPECT_EQ((*push)->path(), Path::kGrpc);
    EXPECT_EQ((*push)->slots()[0].room.size(), parts[0].bytes);
  }
  EXPECT_EQ(Fallbacks(), 1u);
  near_->begun = Failure(StatusCode::kNotFound);
  EXPECT_THAT(client_->BeginPush(fingerprint_, parts, {}), StatusIs(StatusCode::kNotFound, _));
}

TEST_F(TransportClientTest, OpeningANamespacePreparesTheNearPath) {
  main_->creates = true;
  const auto opened = client_->OpenNamespace(spec_, {});
  ASSERT_OK(opened);
  EXPECT_TRUE(opened->created) << "by the session that this call opened";
  EXPECT_EQ(near_->remembered, 1);
  EXPECT_EQ(near_->prepared, 1);
  NamespaceSpec nameless = spec_;
  nameless.model.clear();
  EXPECT_THAT(client_->OpenNamespace(nameless, {}), StatusIs(StatusCode::kInvalidArgument, _));
  EXPECT_EQ(near_->remembered, 1);
}

TEST_F(TransportClientTest, AWatchNamesTheSessionThatIsOpen) {
  EXPECT_FALSE(client_->WatchEvents({}).ok());
  ASSERT_OK(Match());
  EXPECT_FALSE(client_->WatchEvents({}).ok());
  EXPECT_THAT(main_->watched_by, ElementsAre("", "session-1"));
}

// Without its session, the node would tell it of all tenants.
TEST_F(TransportClientTest, AClientThatNamesATenantWatchesWithASessionOnly) {
  Start({.names_tenant = true});
  EXPECT_FALSE(client_->WatchEvents({}).ok());
  EXPECT_THAT(main_->watched_by, ElementsAre("session-1"));
  Start({.names_tenant = true});
  main_->link_.refusal = Failure(StatusCode::kUnavailable);
  EXPECT_THAT(client_->WatchEvents({}).status(), StatusIs(StatusCode::kUnavailable, _));
  EXPECT_THAT(main_->watched_by, IsEmpty());
}

}  // namespace
}  // namespace cairn::client
