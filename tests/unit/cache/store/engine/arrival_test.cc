// A match that waits for blocks that somebody writes: without a thread, until they are stored,
// until their writers leave, or until it has waited long enough.

#include "common/concurrency/timers.h"
#include "tests/unit/cache/store/engine/engine_fixture.h"

namespace cairn::cache::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class ArrivalTest : public EngineTest {
 protected:
  void StartWithTimers(Options options = {}) {
    options.timers = &timers_;
    Start(options);
    writer_ = *engine_->OpenSession("writer");
  }
  void TearDown() override {
    if (engine_ != nullptr) engine_->CloseSession(writer_);
    EXPECT_EQ(engine_->GetStats().waiting_matches, 0u);
    EngineTest::TearDown();
    EXPECT_EQ(timers_.pending(), 0u);
  }

  void Pass(Duration time) {
    clock_.Advance(time);
    timers_.RunDue();
    engine_->Tick();
  }

  // The lease that announces the keys which are not here.
  LeaseId Announce(const std::vector<BlockKey>& keys, std::optional<SessionId> session = {},
                   Duration ttl = seconds(60)) {
    const auto result = engine_->Match({.session = session.value_or(writer_),
                                        .fingerprint = ns_,
                                        .keys = keys,
                                        .lease_ttl = ttl,
                                        .trace = {},
                                        .announce = true});
    EXPECT_OK(result);
    EXPECT_EQ(result->further, nullptr);
    EXPECT_TRUE(result->lease.has_value());
    return result->lease.value_or(0);
  }

  struct Asked {
    std::vector<Result<MatchResult>> answers;
    bool answered() const { return !answers.empty(); }
    const MatchResult& result() const { return *answers.front(); }
  };
  struct Wish {
    uint32_t blocks = 0;
    bool lease = false;
    std::optional<SessionId> session = {};
    TimePoint deadline = TimePoint::max();
  };
  std::shared_ptr<Asked> Wait(const std::vector<BlockKey>& keys, Duration wait, const Wish& wish) {
    auto asked = std::make_shared<Asked>();
    auto result = engine_->Match({.session = wish.session.value_or(session_),
                                  .fingerprint = ns_,
                                  .keys = keys,
                                  .lease = wish.lease,
                                  .trace = "trace",
                                  .wait = wait,
                                  .wait_blocks = wish.blocks});
    EXPECT_OK(result);
    if (!result.ok() || result->further == nullptr) {
      asked->answers.push_back(std::move(result));
      return asked;
    }
    const auto further = std::move(result->further);
    further->Find(wish.deadline, [asked](Result<MatchResult> found) {
      asked->answers.push_back(std::move(found));
    });
    return asked;
  }

  std::shared_ptr<Asked> Wait(const std::vector<BlockKey>& keys, Duration wait) {
    return Wait(keys, wait, Wish());
  }

  Timers timers_{&clock_};
  SessionId writer_ = 0;
};

TEST_F(ArrivalTest, NothingIsWaitedForThatNobodyWrites) {
  StartWithTimers();
  StoreChain(1, 2);
  const auto asked = Wait(TestKeys(1, 4), seconds(1));
  ASSERT_TRUE(asked->answered());
  EXPECT_EQ(asked->result().matched_blocks, 2u);
  EXPECT_EQ(asked->result().miss_reason, MissReason::kAbsent);
}

TEST_F(ArrivalTest, WhatIsHereIsNotWaitedFor) {
  StartWithTimers();
  StoreChain(1, 2);
  Announce(TestKeys(1, 4));
  EXPECT_TRUE(Wait(TestKeys(1, 4), seconds(1), {.blocks = 2})->answered());
  EXPECT_TRUE(Wait(TestKeys(1, 2), seconds(1))->answered());
}

TEST_F(ArrivalTest, AMatchWithoutABudgetIsAnsweredAtOnce) {
  StartWithTimers();
  Announce(TestKeys(1, 4));
  const auto asked = Wait(TestKeys(1, 4), Duration(0));
  ASSERT_TRUE(asked->answered());
  EXPECT_EQ(asked->result().matched_blocks, 0u);
  EXPECT_EQ(asked->result().miss_reason, MissReason::kIncomplete);
}

TEST_F(ArrivalTest, ItEndsWhenTheLastBlockIsStored) {
  StartWithTimers();
  Announce(TestKeys(1, 3));
  const auto asked = Wait(TestKeys(1, 3), seconds(1), {.lease = true});
  for (uint64_t n = 1; n <= 3; ++n) {
    EXPECT_FALSE(asked->answered()) << n;
    ASSERT_OK(Store(n, n == 1 ? std::nullopt : std::optional(n - 1)));
  }
  ASSERT_TRUE(asked->answered());
  EXPECT_EQ(asked->result().matched_blocks, 3u);
  ASSERT_TRUE(asked->result().lease.has_value());
  EXPECT_EQ(Fetch(*asked->result().lease).slices.size(), 3u * kLayers);
}

TEST_F(ArrivalTest, ItEndsAtTheNumberOfBlocksThatWasAskedFor) {
  StartWithTimers();
  Announce(TestKeys(1, 4));
  const auto two = Wait(TestKeys(1, 4), seconds(1), {.blocks = 2});
  const auto all = Wait(TestKeys(1, 4), seconds(1));
  StoreChain(1, 1);
  EXPECT_FALSE(two->answered());
  ASSERT_OK(Store(2, 1));
  ASSERT_TRUE(two->answered());
  EXPECT_EQ(two->result().matched_blocks, 2u);
  EXPECT_FALSE(all->answered());
  Pass(seconds(1));
  EXPECT_TRUE(all->answered());
}

TEST_F(ArrivalTest, BlocksInAnyOrderAreWaitedForInTheirs) {
  StartWithTimers();
  Announce(TestKeys(1, 3));
  const auto asked = Wait(TestKeys(1, 3), seconds(1));
  StoreAlone(2, 3);
  EXPECT_FALSE(asked->answered());
  StoreAlone(1, 1);
  ASSERT_TRUE(asked->answered());
  EXPECT_EQ(asked->result().matched_blocks, 3u);
}

TEST_F(ArrivalTest, AReservedBlockIsWaitedForUntilItsAbort) {
  StartWithTimers();
  const auto id = Reserve(Part(1, std::nullopt));
  ASSERT_OK(id);
  const auto asked = Wait(TestKeys(1, 1), seconds(1));
  EXPECT_FALSE(asked->answered());
  ASSERT_OK(engine_->Abort(session_, {&*id, 1}));
  ASSERT_TRUE(asked->answered());
  EXPECT_EQ(asked->result().matched_blocks, 0u);
  EXPECT_EQ(asked->result().miss_reason, MissReason::kAbsent);
}

TEST_F(ArrivalTest, AReservationThatExpiresEndsTheWait) {
  StartWithTimers({.engine = {.default_reservation_ttl = milliseconds(200)}});
  ASSERT_OK(Reserve(Part(1, std::nullopt)));
  const auto asked = Wait(TestKeys(1, 1), seconds(1));
  Pass(milliseconds(199));
  EXPECT_FALSE(asked->answered());
  Pass(milliseconds(1));
  EXPECT_TRUE(asked->answered());
}

TEST_F(ArrivalTest, OneOfTwoWritersMayLeave) {
  StartWithTimers();
  const LeaseId first = Announce(TestKeys(1, 1));
  const LeaseId second = Announce(TestKeys(1, 1));
  const auto asked = Wait(TestKeys(1, 1), seconds(1));
  ASSERT_OK(engine_->Release(writer_, {&first, 1}));
  EXPECT_FALSE(asked->answered());
  ASSERT_OK(engine_->Release(writer_, {&second, 1}));
  EXPECT_TRUE(asked->answered());
}

TEST_F(ArrivalTest, TheEndOfTheWritersSessionEndsTheWait) {
  StartWithTimers();
  Announce(TestKeys(1, 3));
  const auto asked = Wait(TestKeys(1, 3), seconds(1));
  StoreChain(1, 1);
  engine_->CloseSession(writer_);
  ASSERT_TRUE(asked->answered());
  EXPECT_EQ(asked->result().matched_blocks, 1u);
}

TEST_F(ArrivalTest, AnAnnouncementThatExpiresEndsTheWait) {
  StartWithTimers();
  Announce(TestKeys(1, 3), writer_, milliseconds(300));
  const auto asked = Wait(TestKeys(1, 3), seconds(1));
  Pass(milliseconds(299));
  EXPECT_FALSE(asked->answered());
  Pass(milliseconds(1));
  EXPECT_TRUE(asked->answered());
}

TEST_F(ArrivalTest, TheBudgetEndsTheWaitWithWhatIsHere) {
  StartWithTimers();
  Announce(TestKeys(1, 3));
  const auto asked = Wait(TestKeys(1, 3), milliseconds(100), {.lease = true});
  StoreChain(1, 2);
  Pass(milliseconds(99));
  EXPECT_FALSE(asked->answered());
  Pass(milliseconds(1));
  ASSERT_TRUE(asked->answered());
  EXPECT_EQ(asked->result().matched_blocks, 2u);
  EXPECT_EQ(asked->result().miss_reason, MissReason::kIncomplete);
  EXPECT_TRUE(asked->result().lease.has_value());
  EXPECT_DOUBLE_EQ(engine_->GetStats().match_wait_seconds, 0.1);
  EXPECT_EQ(engine_->GetStats().waited_matches, 1u);
}

TEST_F(ArrivalTest, TheNodeAndTheCallBoundTheBudget) {
  StartWithTimers({.engine = {.max_match_wait = milliseconds(50)}});
  Announce(TestKeys(1, 3));
  const auto node = Wait(TestKeys(1, 3), seconds(500));
  const auto call =
      Wait(TestKeys(1, 3), seconds(500), {.deadline = clock_.Now() + milliseconds(20)});
  Pass(milliseconds(20));
  EXPECT_TRUE(call->answered());
  EXPECT_FALSE(node->answered());
  Pass(milliseconds(30));
  EXPECT_TRUE(node->answered());
}

TEST_F(ArrivalTest, ANodeMayForbidWaiting) {
  StartWithTimers({.engine = {.max_match_wait = Duration(0)}});
  Announce(TestKeys(1, 3));
  EXPECT_TRUE(Wait(TestKeys(1, 3), seconds(1))->answered());
}

TEST_F(ArrivalTest, ASessionThatEndedGetsAnError) {
  StartWithTimers();
  const SessionId reader = *engine_->OpenSession("reader");
  Announce(TestKeys(1, 1));
  const auto asked = Wait(TestKeys(1, 1), seconds(1), {.session = reader});
  engine_->CloseSession(reader);
  StoreChain(1, 1);
  ASSERT_TRUE(asked->answered());
  EXPECT_THAT(asked->answers.front(), StatusIs(StatusCode::kNotFound, ::testing::_));
}

TEST_F(ArrivalTest, ADroppedNamespaceEndsTheWait) {
  StartWithTimers();
  Announce(TestKeys(1, 1));
  const auto asked = Wait(TestKeys(1, 1), seconds(1));
  ASSERT_OK(engine_->DropNamespace(ns_));
  ASSERT_TRUE(asked->answered());
  EXPECT_THAT(asked->answers.front(), StatusIs(StatusCode::kNotFound, ::testing::_));
  ASSERT_OK(engine_->OpenNamespace(spec_, false));
}

TEST_F(ArrivalTest, ADrainingNodeLetsNobodyWait) {
  StartWithTimers();
  Announce(TestKeys(1, 1));
  const auto before = Wait(TestKeys(1, 1), seconds(1));
  engine_->BeginDrain();
  EXPECT_TRUE(before->answered());
  EXPECT_TRUE(Wait(TestKeys(1, 1), seconds(1))->answered());
}

TEST_F(ArrivalTest, AFloodOfWaitersIsAnsweredWithoutWaiting) {
  StartWithTimers();
  Announce(TestKeys(1, 2));
  std::vector<std::shared_ptr<Asked>> flood;
  for (int i = 0; i < 100; ++i) flood.push_back(Wait(TestKeys(1, 2), seconds(1)));
  size_t waiting = 0;
  for (const auto& asked : flood) waiting += asked->answered() ? 0 : 1;
  EXPECT_EQ(waiting, 64u);
  EXPECT_EQ(engine_->GetStats().waiting_matches, 64u);
  // Another session still finds a place, and the places come back.
  const SessionId other = *engine_->OpenSession("other");
  EXPECT_FALSE(Wait(TestKeys(1, 2), seconds(1), {.session = other})->answered());
  Pass(seconds(1));
  EXPECT_EQ(engine_->GetStats().waiting_matches, 0u);
  EXPECT_FALSE(Wait(TestKeys(1, 2), seconds(1))->answered());
  Pass(seconds(1));
  engine_->CloseSession(other);
}

TEST_F(ArrivalTest, OneTenantLeavesPlacesToOthers) {
  StartWithTimers();
  Announce(TestKeys(1, 1));
  std::vector<SessionId> sessions;
  size_t waiting = 0;
  for (int s = 0; s < 12; ++s) {
    sessions.push_back(*engine_->OpenSession("flood"));
    for (int i = 0; i < 64; ++i) {
      waiting += Wait(TestKeys(1, 1), seconds(1), {.session = sessions.back()})->answered() ? 0 : 1;
    }
  }
  EXPECT_EQ(waiting, 512u);
  Pass(seconds(1));
  for (const SessionId session : sessions) engine_->CloseSession(session);
}

TEST_F(ArrivalTest, AnnouncementsLeaveMemoryForLeases) {
  MemoryAccount::Bounds bounds = MemoryAccount::Unbounded();
  bounds[static_cast<size_t>(MemoryItem::kLeases)] = 64 << 10;
  StartWithTimers({.memory = bounds});
  StoreChain(1, 1);
  Status refused;
  for (uint64_t n = 2; refused.ok() && n < 1000; n += 10) {
    const auto keys = TestKeys(n, n + 9);
    refused = engine_
                  ->Match({.session = writer_,
                           .fingerprint = ns_,
                           .keys = keys,
                           .trace = {},
                           .announce = true})
                  .status();
  }
  EXPECT_THAT(refused, StatusIs(StatusCode::kResourceExhausted, ::testing::_));
  EXPECT_TRUE(Match(TestKeys(1, 1)).lease.has_value());
}

TEST_F(ArrivalTest, AnAnnouncementNeedsALease) {
  StartWithTimers();
  const auto keys = TestKeys(1, 1);
  EXPECT_THAT(engine_->Match({.session = writer_,
                              .fingerprint = ns_,
                              .keys = keys,
                              .lease = false,
                              .trace = {},
                              .announce = true}),
              StatusIs(StatusCode::kInvalidArgument, ::testing::_));
}

// The announcer is a writer of the block itself, which is no reason why the block is not here.
TEST_F(ArrivalTest, AnAnnouncementSaysWhyItsBlocksAreMissing) {
  StartWithTimers();
  const auto keys = TestKeys(1, 2);
  const auto announce = [&] {
    const auto result = engine_->Match(
        {.session = writer_, .fingerprint = ns_, .keys = keys, .trace = {}, .announce = true});
    EXPECT_OK(result);
    return result.ok() ? result->miss_reason : MissReason::kNone;
  };
  EXPECT_EQ(announce(), MissReason::kAbsent);
  EXPECT_EQ(announce(), MissReason::kIncomplete) << "somebody else writes it";
}

TEST_F(ArrivalTest, AnnouncedBlocksCostNoRoomAndAreNotFound) {
  StartWithTimers();
  const uint64_t before = engine_->GetStats().tiers[TierKind::kHost]->used_bytes;
  Announce(TestKeys(1, 8));
  EXPECT_EQ(engine_->GetStats().tiers[TierKind::kHost]->used_bytes, before);
  EXPECT_EQ(engine_->GetStats().announced_blocks, 8u);
  EXPECT_EQ(engine_->Exists(ns_, TestKeys(1, 1))->front(), std::nullopt);
}

}  // namespace
}  // namespace cairn::cache::testing
