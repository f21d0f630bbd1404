// The client's core over the engine of a node, in one thread and on a fake clock: what a node that
// is late, dies or refuses costs a caller.
#include "common/concurrency/executor.h"
#include "common/status/matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/cache/store/tier/host_tier.h"
#include "services/cache/store/tier/testing/fake_tier.h"
#include "tests/support/in_process_node.h"
#include "tests/unit/clients/cpp/parts.h"

namespace cairn::client {
namespace {

using cairn::testing::InProcessNode;
using ::cairn::testing::StatusIs;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::_;
using testing::Chain;
using testing::CheckingSink;
using ::testing::IsEmpty;
using testing::SmallSpec;

class InProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    StartEngine();
    ASSERT_OK(client_->OpenNamespace(spec_, {}));
  }
  void TearDown() override {
    client_.reset();
    node_.RunAll();
  }
  // A node with an empty memory and what its disk has flushed.
  void StartEngine() {
    cache::Tiers tiers(host_.get());
    tiers.Add(&disk_);
    auto engine = cache::CacheEngine::Create({}, {.tiers = tiers,
                                                  .clock = &clock_,
                                                  .executor = &executor_,
                                                  .node_id = "node",
                                                  .node_epoch = ++starts_});
    ASSERT_OK(engine);
    engine_ = *std::move(engine);
    node_.Start(engine_.get());
  }
  // kill -9, and a new process.
  void Restart() {
    node_.Die();
    executor_.RunAll();
    engine_.reset();
    host_ = NewHost();
    disk_.Crash();
    StartEngine();
  }
  static std::unique_ptr<cache::HostTier> NewHost() {
    return *cache::HostTier::Create(
        {.capacity_bytes = 4 << 20, .prefault = false, .check_memory = false});
  }
  void Store() {
    const auto pushed = client_->Push(fingerprint_, chain_.parts, {});
    ASSERT_OK(pushed);
    for (const Status& status : *pushed) ASSERT_OK(status);
  }
  Result<MatchOutcome> Match() { return client_->Match(fingerprint_, chain_.keys, {}); }

  const NamespaceSpec spec_ = SmallSpec();
  const Digest fingerprint_ = Fingerprint(spec_);
  const Chain chain_{spec_, 5};
  CheckingSink sink_{spec_, chain_.keys};
  FakeClock clock_;
  ManualExecutor executor_;
  cache::testing::FakeTier disk_;
  std::unique_ptr<cache::HostTier> host_ = NewHost();
  uint64_t starts_ = 0;
  std::unique_ptr<cache::CacheEngine> engine_;
  InProcessNode node_{&clock_, [this] { return executor_.RunOne() || disk_.RunOneHeld(); }};
  std::unique_ptr<CacheClient> client_ = node_.NewClient();
};

TEST_F(InProcessTest, AnAnswerThatIsLateIsAMissAndItsLeaseEndsByItself) {
  Store();
  node_.SetFaults({.latency = milliseconds(80)});
  const TimePoint begin = clock_.Now();
  EXPECT_THAT(Match(), StatusIs(StatusCode::kDeadlineExceeded, _));
  EXPECT_EQ(clock_.Now() - begin, milliseconds(50)) << "the caller waited for its deadline";
  EXPECT_EQ(engine_->GetStats().leases, 1u) << "the node knows nothing of that";
  node_.SetFaults({.latency = milliseconds(20)});
  ASSERT_OK(Match());
  EXPECT_EQ(clock_.Now() - begin, milliseconds(70));
  node_.Advance(seconds(31));
  EXPECT_EQ(engine_->GetStats().leases, 0u);
}

TEST_F(InProcessTest, ANodeThatHangsCostsThreeDeadlinesAndThenNothing) {
  Store();
  node_.SetFaults({.latency = seconds(10)});
  const TimePoint begin = clock_.Now();
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(Match().ok());
  EXPECT_EQ(clock_.Now() - begin, milliseconds(150));
  EXPECT_EQ(client_->GetStats().breaker, BreakerState::kOpen);
  node_.SetFaults({});
  node_.Advance(seconds(1));
  ASSERT_OK(Match());
}

TEST_F(InProcessTest, ASlowNodeIsGivenUpWhenNothingComesForTooLong) {
  Store();
  const auto match = Match();
  ASSERT_OK(match);
  node_.SetFaults({.slice_latency = milliseconds(900)});
  ASSERT_OK(client_->Fetch(match->lease, {}, sink_, {})) << "slow, but moving";
  EXPECT_EQ(sink_.slices, 20u);
  node_.SetFaults({.slice_latency = milliseconds(1100)});
  const TimePoint begin = clock_.Now();
  EXPECT_THAT(client_->Fetch(match->lease, {}, sink_, {}),
              StatusIs(StatusCode::kDeadlineExceeded, _));
  EXPECT_EQ(clock_.Now() - begin, seconds(1));
}

TEST_F(InProcessTest, WhatIsOnDiskComesWhileTheCallerWaits) {
  Store();
  ASSERT_OK(client_->Flush({}));
  node_.Advance(seconds(5));
  Restart();
  disk_.HoldCallbacks();
  auto match = Match();
  ASSERT_OK(match);
  ASSERT_EQ(match->matched_blocks, 5u);
  EXPECT_EQ(match->tiers[0].tier, TierKind::kDisk);
  ASSERT_OK(client_->Fetch(match->lease, {}, sink_, {}));
  EXPECT_EQ(sink_.slices, 20u);
  EXPECT_EQ(sink_.wrong, 0u);
  EXPECT_THAT(sink_.failed, IsEmpty());
}

TEST_F(InProcessTest, ANodeThatDiesInTheMiddleOfAFetchHasGivenGoodSlices) {
  Store();
  ASSERT_OK(client_->Flush({}));
  node_.Advance(seconds(5));
  const auto match = Match();
  ASSERT_OK(match);
  node_.SetFaults({.die_after_slices = 7});
  EXPECT_THAT(client_->Fetch(match->lease, {}, sink_, {}), StatusIs(StatusCode::kUnavailable, _));
  EXPECT_EQ(sink_.slices, 7u);
  EXPECT_EQ(sink_.wrong, 0u);
  EXPECT_FALSE(Match().ok());
  EXPECT_FALSE(client_->GetStats().connected);

  Restart();
  node_.Advance(seconds(1));
  ASSERT_OK(Match()) << "the client has opened a session and its namespace again";
  EXPECT_THAT(client_->Fetch(match->lease, {}, sink_, {}), StatusIs(StatusCode::kNotFound, _))
      << "the lease has died with the node";
  EXPECT_EQ(client_->GetStats().sessions, 2u);
}

TEST_F(InProcessTest, ANodeThatRefusesSessionsIsAskedAgainLater) {
  node_.SetFaults({.refuse_sessions = true});
  const auto other = node_.NewClient();
  EXPECT_THAT(other->OpenNamespace(spec_, {}), StatusIs(StatusCode::kUnavailable, _));
  const uint64_t sessions = engine_->GetStats().sessions;
  node_.SetFaults({});
  EXPECT_THAT(other->Match(fingerprint_, chain_.keys, {}), StatusIs(StatusCode::kUnavailable, _))
      << "its back-off has not passed";
  node_.Advance(milliseconds(50));
  ASSERT_OK(other->Match(fingerprint_, chain_.keys, {}));
  EXPECT_EQ(engine_->GetStats().sessions, sessions + 1);
}

TEST_F(InProcessTest, AClientThatGoesTakesItsLeasesAlong) {
  Store();
  auto other = node_.NewClient();
  const auto match = other->Match(fingerprint_, chain_.keys, {});
  ASSERT_OK(match);
  EXPECT_EQ(engine_->GetStats().leases, 1u);
  other.reset();
  EXPECT_EQ(engine_->GetStats().leases, 0u);
}

TEST_F(InProcessTest, AWatchSeesWhatIsStoredAndEndsWithTheNode) {
  auto watch = client_->WatchEvents({});
  ASSERT_OK(watch);
  const TimePoint begin = clock_.Now();
  const auto nothing = (*watch)->Next(seconds(2));
  ASSERT_OK(nothing);
  EXPECT_FALSE(nothing->has_value());
  EXPECT_EQ(clock_.Now() - begin, seconds(2));
  Store();
  const auto event = (*watch)->Next(seconds(2));
  ASSERT_OK(event);
  ASSERT_TRUE(event->has_value());
  EXPECT_EQ((*event)->kind, CacheEvent::Kind::kStored);
  EXPECT_EQ((*event)->key, chain_.keys[0]);
  EXPECT_EQ((*event)->node_epoch, 1u);
  node_.Die();
  EXPECT_THAT((*watch)->Next(seconds(2)), StatusIs(StatusCode::kUnavailable, _));
}

}  // namespace
}  // namespace cairn::client
