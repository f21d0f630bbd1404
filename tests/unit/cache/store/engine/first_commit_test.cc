// Several writers of one block: a reservation takes room and nothing else, and the first commit
// wins.

#include "services/cache/store/engine/in_place.h"
#include "tests/unit/cache/store/engine/engine_fixture.h"

namespace cairn::cache::testing {
namespace {

using ::testing::HasSubstr;

constexpr format::PartRect kLeft{0, kLayers, 0, 1}, kRight{0, kLayers, 1, 2};

class FirstCommitTest : public EngineTest {
 protected:
  void SetUp() override {
    Options options;
    options.disk = false;
    options.segment_bytes = 2 << 20;
    StartWithoutDevice(options);
    other_ = *engine_->OpenSession("other");
  }
  Status CommitOf(SessionId session, ReservationId id) {
    const auto results = engine_->Commit(session, {&id, 1}, "");
    return results.ok() ? (*results)[0] : results.status();
  }
  Status Fill(SessionId session, ReservationId id, uint64_t n, const format::PartRect& rect) {
    return engine_->Write(session, id, 0, TestPart(spec_.layout, n, rect));
  }
  Result<PlacedReservation> ReserveInPlace(SessionId session, const ReservePartRequest& part) {
    const auto results = engine_->in_place()->ReserveInPlace(session, ns_, {&part, 1});
    if (!results.ok()) return results.status();
    return (*results)[0];
  }
  uint64_t HostBytes() { return engine_->GetStats().tiers[TierKind::kHost]->used_bytes; }

  SessionId other_ = 0;
};

TEST_F(FirstCommitTest, AStalledWriterHoldsNobodyUp) {
  const auto stalled = Reserve(Part(1, std::nullopt), other_);
  ASSERT_OK(stalled);
  ASSERT_OK(Store(1, std::nullopt));
  EXPECT_EQ(ServeAndVerify(1, 1), 1u);
  const uint64_t one_block = HostBytes() / 2;
  ASSERT_OK(Fill(other_, *stalled, 1, Whole()));
  EXPECT_THAT(CommitOf(other_, *stalled), StatusIs(StatusCode::kAlreadyExists, HasSubstr("here")));
  EXPECT_EQ(HostBytes(), one_block);
  EXPECT_EQ(engine_->GetStats().reservations, 0u);
  EXPECT_EQ(engine_->GetStats().reserved_bytes, 0u);
  EXPECT_EQ(engine_->GetStats().commits, 1u);
  EXPECT_EQ(ServeAndVerify(1, 1), 1u);
}

TEST_F(FirstCommitTest, AStalledWriterOnThisMachineHoldsNobodyUp) {
  ASSERT_OK(host_->AddOwner(spec_.tenant));
  const auto stalled = ReserveInPlace(other_, Part(1, std::nullopt));
  ASSERT_OK(stalled);
  ASSERT_OK(Store(1, std::nullopt));
  const auto second = ReserveInPlace(other_, Part(2, 1));
  const auto third = ReserveInPlace(session_, Part(2, 1));
  ASSERT_OK(second);
  ASSERT_OK(third);
  for (const auto& [session, placed] : {std::pair(session_, *third), std::pair(other_, *second)}) {
    const auto bytes = TestPart(spec_.layout, 2, Whole());
    std::memcpy(host_->Map({placed.extent, static_cast<uint32_t>(bytes.size())}).data(),
                bytes.data(), bytes.size());
  }
  EXPECT_OK(CommitOf(session_, third->id));
  EXPECT_THAT(CommitOf(other_, second->id), StatusIs(StatusCode::kAlreadyExists, HasSubstr("")));
  EXPECT_EQ(ServeAndVerify(1, 2), 2u);
  engine_->CloseSession(other_);
  EXPECT_EQ(engine_->GetStats().reserved_bytes, 0u);
}

TEST_F(FirstCommitTest, SquattedKeysAreStoredByOthers) {
  for (uint64_t n = 1; n <= 100; ++n) {
    EXPECT_OK(Reserve(Part(n, std::nullopt, {{0, 1, 0, 1}}), other_));
  }
  uint32_t stored = 0;
  for (uint64_t n = 1; n <= 100; ++n) {
    stored += Store(n, n == 1 ? std::nullopt : std::optional(n - 1)).ok();
  }
  EXPECT_EQ(stored, 100u);
  EXPECT_EQ(Match(TestKeys(1, 100), false).matched_blocks, 100u);
  engine_->CloseSession(other_);
}

TEST_F(FirstCommitTest, EachReservationOfAKeyCostsWhatItReserves) {
  engine_.reset();
  Options options;
  options.disk = false;
  options.engine.max_reserved_bytes = 3 * HostRoom(Part(1, std::nullopt).bytes);
  StartWithoutDevice(options);
  for (int i = 0; i < 3; ++i) EXPECT_OK(Reserve(Part(1, std::nullopt)));
  EXPECT_EQ(engine_->GetStats().reserved_bytes, options.engine.max_reserved_bytes);
  EXPECT_THAT(Reserve(Part(1, std::nullopt)),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("reservations")));
}

TEST_F(FirstCommitTest, AnotherWriterTakesThePartOfAStalledRank) {
  ASSERT_OK(Store(1, std::nullopt, kLeft));
  ASSERT_OK(Reserve(Part(1, std::nullopt, kRight), other_));  // And never comes back.
  EXPECT_THAT(Store(1, std::nullopt, kLeft),
              StatusIs(StatusCode::kAlreadyExists, HasSubstr("committed")));
  EXPECT_OK(Store(1, std::nullopt, kRight));
  EXPECT_EQ(ServeAndVerify(1, 1), 1u);
  engine_->CloseSession(other_);
}

TEST_F(FirstCommitTest, PartsOfTwoRacingWritersMakeOneBlock) {
  std::map<std::pair<SessionId, int>, ReservationId> ids;
  for (const SessionId session : {session_, other_}) {
    for (const int side : {0, 1}) {
      const format::PartRect& rect = side == 0 ? kLeft : kRight;
      const auto id = Reserve(Part(1, std::nullopt, rect), session);
      ASSERT_OK(id);
      ids[{session, side}] = *id;
      ASSERT_OK(Fill(session, *id, 1, rect));
    }
  }
  EXPECT_OK(CommitOf(session_, ids[std::pair(session_, 0)]));
  EXPECT_THAT(CommitOf(other_, ids[std::pair(other_, 0)]),
              StatusIs(StatusCode::kAlreadyExists, HasSubstr("")));
  EXPECT_OK(CommitOf(other_, ids[std::pair(other_, 1)]));
  EXPECT_THAT(CommitOf(session_, ids[std::pair(session_, 1)]),
              StatusIs(StatusCode::kAlreadyExists, HasSubstr("")));
  EXPECT_EQ(engine_->GetStats().commits, 2u);
  EXPECT_EQ(engine_->GetStats().reserved_bytes, 0u);
  EXPECT_EQ(ServeAndVerify(1, 1), 1u);
}

TEST_F(FirstCommitTest, APartThatCoversCommittedOnesTakesTheirPlace) {
  // A writer that cuts the grid otherwise stopped in the middle.
  ASSERT_OK(Store(1, std::nullopt, {{0, 1, 0, 1}}));
  ASSERT_OK(Store(1, std::nullopt, {{1, 2, 0, 1}}));
  EXPECT_OK(Store(1, std::nullopt));
  EXPECT_EQ(ServeAndVerify(1, 1), 1u);
  EXPECT_EQ(engine_->GetStats().incomplete_blocks, 0u);
  ASSERT_OK(engine_->DropNamespace(ns_));
  EXPECT_EQ(HostBytes(), 0u);
}

TEST_F(FirstCommitTest, ACutThatCrossesACommittedOneIsRefusedAtTheCommitToo) {
  const auto crossing = Reserve(Part(1, std::nullopt, {{1, 3, 0, 1}}), other_);
  ASSERT_OK(crossing);
  ASSERT_OK(Store(1, std::nullopt, {{0, 2, 0, 2}}));
  ASSERT_OK(Fill(other_, *crossing, 1, {1, 3, 0, 1}));
  EXPECT_THAT(CommitOf(other_, *crossing),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("overlaps")));
  EXPECT_OK(Store(1, std::nullopt, {{2, kLayers, 0, 2}}));
  EXPECT_EQ(ServeAndVerify(1, 1), 1u);
}

TEST_F(FirstCommitTest, AMissSaysIncompleteAsLongAsSomebodyWrites) {
  EXPECT_EQ(Match(TestKeys(1, 1)).miss_reason, MissReason::kAbsent);
  const auto first = Reserve(Part(1, std::nullopt));
  const auto second = Reserve(Part(1, std::nullopt), other_);
  ASSERT_OK(first);
  ASSERT_OK(second);
  EXPECT_EQ(Match(TestKeys(1, 1)).miss_reason, MissReason::kIncomplete);
  ASSERT_OK(engine_->Abort(session_, {&*first, 1}));
  EXPECT_EQ(Match(TestKeys(1, 1)).miss_reason, MissReason::kIncomplete);
  engine_->CloseSession(other_);
  EXPECT_EQ(Match(TestKeys(1, 1)).miss_reason, MissReason::kAbsent);
}

TEST_F(FirstCommitTest, OneThatExpiresTakesNothingAwayFromOthers) {
  const auto slow = Reserve(Part(1, std::nullopt), other_);
  ASSERT_OK(slow);
  clock_.Advance(std::chrono::seconds(20));
  const auto id = Reserve(Part(1, std::nullopt));
  ASSERT_OK(id);
  clock_.Advance(std::chrono::seconds(11));
  engine_->Tick();
  EXPECT_EQ(engine_->GetStats().expired_reservations, 1u);
  ASSERT_OK(Fill(session_, *id, 1, Whole()));
  EXPECT_OK(CommitOne(*id));
  EXPECT_EQ(ServeAndVerify(1, 1), 1u);
}

}  // namespace
}  // namespace cairn::cache::testing
