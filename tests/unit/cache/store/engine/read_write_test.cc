// Reserve, write, commit, match, fetch on the host tier.

#include <thread>

#include "services/cache/store/engine/in_place.h"
#include "services/cache/store/state/namespace_registry.h"
#include "tests/unit/cache/store/engine/engine_fixture.h"

namespace cairn::cache::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ReadWriteTest : public EngineTest {
 protected:
  void SetUp() override {
    Options options;
    options.disk = false;
    Start(options);
  }
};

// The promises of a node whose host memory holds the only copy.
class HostOnlyTest : public EngineTest {
 protected:
  void SetUp() override {
    Options options;
    options.disk = false;
    StartWithoutDevice(options);
  }
};

TEST_F(ReadWriteTest, CommittedBlocksAreMatchedAndFetchedLayerByLayer) {
  StoreChain(1, 5);
  const MatchResult match = Match(TestKeys(1, 7));
  EXPECT_EQ(match.matched_blocks, 5u);
  EXPECT_EQ(match.miss_reason, MissReason::kAbsent);
  ASSERT_EQ(match.tiers.size(), 1u);
  EXPECT_EQ(match.tiers[0].tier, TierKind::kHost);
  EXPECT_EQ(match.tiers[0].blocks, 5u);
  ASSERT_TRUE(match.lease);
  const Fetched fetched = Fetch(*match.lease);
  ASSERT_EQ(fetched.order.size(), 5u * kLayers);
  for (size_t i = 0; i < fetched.order.size(); ++i) {
    EXPECT_EQ(fetched.order[i].first, i / 5);
    EXPECT_EQ(fetched.order[i].second, i % 5);
  }
  const EngineStats stats = engine_->GetStats();
  EXPECT_EQ(stats.blocks, 5u);
  EXPECT_EQ(stats.matched_tokens, 5u * 16);
  EXPECT_EQ(stats.missed_tokens, 2u * 16);
  EXPECT_EQ(stats.misses[static_cast<size_t>(MissReason::kAbsent)], 2u);
  EXPECT_EQ(stats.fetched_bytes, 5u * kLayers * 4096);
  EXPECT_EQ(stats.fetched_host_bytes, stats.fetched_bytes);
  EXPECT_GT(stats.index_bytes, 0u);
}

TEST_F(ReadWriteTest, EveryByteThatIsServedIsTheByteThatWasWritten) {
  StoreChain(1, 20);
  EXPECT_EQ(ServeAndVerify(1, 20), 20u);
}

TEST_F(ReadWriteTest, NothingIsVisibleBeforeCommit) {
  const auto id = Reserve(Part(1, std::nullopt));
  ASSERT_OK(id);
  ASSERT_OK(engine_->Write(session_, *id, 0, TestPart(spec_.layout, 1, Whole())));
  EXPECT_EQ(Match(TestKeys(1, 1)).matched_blocks, 0u);
  EXPECT_EQ(engine_->GetStats().reservations, 1u);
  ASSERT_OK(CommitOne(*id));
  EXPECT_EQ(Match(TestKeys(1, 1)).matched_blocks, 1u);
  EXPECT_EQ(engine_->GetStats().reservations, 0u);
}

TEST_F(ReadWriteTest, WritesMayComeInPiecesButNotPastTheEnd) {
  const auto id = Reserve(Part(1, std::nullopt));
  ASSERT_OK(id);
  const auto bytes = TestPart(spec_.layout, 1, Whole());
  ASSERT_OK(engine_->Write(session_, *id, 1000, std::span(bytes).subspan(1000)));
  ASSERT_OK(engine_->Write(session_, *id, 0, std::span(bytes).first(1000)));
  EXPECT_THAT(engine_->Write(session_, *id, bytes.size(), std::span(bytes).first(1)),
              StatusIs(StatusCode::kOutOfRange, HasSubstr("offset")));
  EXPECT_THAT(engine_->Write(session_, *id, UINT64_MAX, std::span(bytes).first(2)),
              StatusIs(StatusCode::kOutOfRange, HasSubstr("offset")));
  ASSERT_OK(CommitOne(*id));
  EXPECT_EQ(ServeAndVerify(1, 1), 1u);
}

TEST_F(ReadWriteTest, WrongBytesAreRefusedAtCommitAndLeaveNothing) {
  const auto id = Reserve(Part(1, std::nullopt));
  auto bytes = TestPart(spec_.layout, 1, Whole());
  bytes[5000] ^= std::byte{1};
  ASSERT_OK(engine_->Write(session_, *id, 0, bytes));
  EXPECT_THAT(CommitOne(*id), StatusIs(StatusCode::kDataLoss, HasSubstr("layer")));
  EXPECT_EQ(Match(TestKeys(1, 1)).matched_blocks, 0u);
  EXPECT_EQ(engine_->GetStats().tiers[TierKind::kHost]->used_bytes, 0u);
  EXPECT_OK(Store(1, std::nullopt));
}

TEST_F(ReadWriteTest, PartOfAnotherShapeIsRefusedAtCommit) {
  const format::PartRect left{0, kLayers, 0, 1}, right{0, kLayers, 1, 2};
  const auto id = Reserve(Part(1, std::nullopt, left));
  ASSERT_OK(engine_->Write(session_, *id, 0, TestPart(spec_.layout, 1, right)));
  EXPECT_THAT(CommitOne(*id), StatusIs(StatusCode::kInvalidArgument, HasSubstr("heads [1, 2)")));
}

TEST_F(ReadWriteTest, FirstCommitWins) {
  ASSERT_OK(Store(1, std::nullopt));
  EXPECT_THAT(Store(1, std::nullopt), StatusIs(StatusCode::kAlreadyExists, HasSubstr("here")));
}

TEST_F(ReadWriteTest, BlockAppearsWhenItsGridIsCovered) {
  const format::PartRect a{0, 2, 0, 2}, b{2, kLayers, 0, 1}, c{2, kLayers, 1, 2};
  ASSERT_OK(Store(1, std::nullopt, a));
  ASSERT_OK(Store(1, std::nullopt, c));
  MatchResult match = Match(TestKeys(1, 1));
  EXPECT_EQ(match.matched_blocks, 0u);
  EXPECT_EQ(match.miss_reason, MissReason::kIncomplete);
  EXPECT_EQ(engine_->GetStats().incomplete_blocks, 1u);
  EXPECT_THAT(Store(1, std::nullopt, {{0, 1, 0, 1}}),
              StatusIs(StatusCode::kAlreadyExists, HasSubstr("part")));
  EXPECT_THAT(Store(1, std::nullopt, {{1, 3, 0, 1}}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("overlaps")));
  ASSERT_OK(Store(1, std::nullopt, b));
  EXPECT_EQ(engine_->GetStats().incomplete_blocks, 0u);
  EXPECT_EQ(ServeAndVerify(1, 1), 1u);
}

TEST_F(ReadWriteTest, IncompleteBlocksExpire) {
  ASSERT_OK(Store(1, std::nullopt, {{0, 2, 0, 2}}));
  clock_.Advance(std::chrono::seconds(59));
  engine_->Tick();
  EXPECT_EQ(engine_->GetStats().incomplete_blocks, 1u);
  clock_.Advance(std::chrono::seconds(2));
  engine_->Tick();
  EXPECT_EQ(engine_->GetStats().incomplete_blocks, 0u);
  EXPECT_EQ(engine_->GetStats().tiers[TierKind::kHost]->used_bytes, 0u);
  EXPECT_OK(Store(1, std::nullopt, {{0, 2, 0, 2}}));
}

TEST_F(ReadWriteTest, BlocksStoredOutOfOrderFormOnePath) {
  for (uint64_t n : {4, 2, 5, 1, 3})
    ASSERT_OK(Store(n, n == 1 ? std::nullopt : std::optional<uint64_t>(n - 1)));
  EXPECT_EQ(ServeAndVerify(1, 5), 5u);
}

TEST_F(ReadWriteTest, ReservationsEndWithTheirDeadlineAndTheirSession) {
  const auto expired = Reserve(Part(1, std::nullopt));
  ASSERT_OK(expired);
  clock_.Advance(std::chrono::seconds(31));
  EXPECT_THAT(engine_->Write(session_, *expired, 0, {}),
              StatusIs(StatusCode::kNotFound, HasSubstr("reservation")));
  EXPECT_THAT(CommitOne(*expired), StatusIs(StatusCode::kNotFound, HasSubstr("expired")));
  engine_->Tick();
  EXPECT_EQ(engine_->GetStats().expired_reservations, 1u);
  EXPECT_EQ(engine_->GetStats().reserved_bytes, 0u);

  const SessionId other = *engine_->OpenSession("other");
  ASSERT_OK(Reserve(Part(1, std::nullopt), other));
  engine_->CloseSession(other);
  EXPECT_EQ(engine_->GetStats().tiers[TierKind::kHost]->used_bytes, 0u);
  EXPECT_OK(Reserve(Part(1, std::nullopt)));
}

TEST_F(ReadWriteTest, ASessionThatNamesATenantIsServedThatTenantOnly) {
  StoreChain(1, 2);
  const std::vector<BlockKey> keys = TestKeys(1, 2);
  for (const std::string_view tenant :
       {std::string_view("another"), std::string_view(spec_.tenant)}) {
    const SessionId session = *engine_->OpenSession("test", tenant);
    const bool own = tenant == spec_.tenant;
    const auto allowed = [&](const Status& status) {
      if (own) return status.ok();
      // As about one that is not there.
      EXPECT_EQ(status, NoNamespace(ns_));
      return status.ok();
    };
    EXPECT_EQ(allowed(engine_
                          ->Match({.session = session,
                                   .fingerprint = ns_,
                                   .keys = keys,
                                   .lease = true,
                                   .trace = {}})
                          .status()),
              own);
    EXPECT_EQ(
        allowed(engine_->Prefetch({.session = session, .fingerprint = ns_, .keys = keys}).status()),
        own);
    const ReservePartRequest part = Part(9, std::nullopt);
    EXPECT_EQ(allowed(engine_->Reserve(session, ns_, {&part, 1}, Duration(0)).status()), own);
    engine_->CloseSession(session);
  }
}

TEST_F(ReadWriteTest, EvictionTakesTheTailOfTheLeastUsedPath) {
  StoreChain(1, 60);
  clock_.Advance(std::chrono::seconds(1));
  StoreChain(101, 160);
  clock_.Advance(std::chrono::seconds(1));
  Match(TestKeys(1, 60), /*lease=*/false);  // Does not count as use.
  StoreChain(201, 320);
  const uint32_t first = Match(TestKeys(1, 60), false).matched_blocks;
  EXPECT_LT(first, 60u);
  EXPECT_EQ(Match(TestKeys(101, 160), false).matched_blocks, 60u);
  EXPECT_EQ(Match(TestKeys(201, 320), false).matched_blocks, 120u);
  EXPECT_EQ(ServeAndVerify(1, 60), first);
  EXPECT_EQ(Match(TestKeys(1, 60), false).miss_reason, MissReason::kEvicted);
  const EngineStats stats = engine_->GetStats();
  const TierState& host = *stats.tiers[TierKind::kHost];
  ASSERT_GT(host.evicted_blocks, 0u);
  // All of them were used two seconds before; the index counts time in ticks.
  EXPECT_NEAR(host.evicted_age_seconds / static_cast<double>(host.evicted_blocks), 2, 0.05);
}

TEST_F(HostOnlyTest, LeasesKeepBlocksUntilTheyEnd) {
  StoreChain(1, 100);
  const MatchResult match = Match(TestKeys(1, 100));
  ASSERT_EQ(match.matched_blocks, 100u);
  Status last = OkStatus();
  for (uint64_t n = 1000; n < 1200 && last.ok(); ++n) last = Store(n, std::nullopt);
  // 204 blocks fit; with 100 leased ones the rest turned over, and none of the leased went.
  EXPECT_OK(last);
  EXPECT_EQ(Match(TestKeys(1, 100), false).matched_blocks, 100u);
  clock_.Advance(std::chrono::seconds(31));
  engine_->Tick();
  EXPECT_EQ(engine_->GetStats().expired_leases, 1u);
  for (uint64_t n = 2000; n < 2250; ++n) ASSERT_OK(Store(n, std::nullopt));
  EXPECT_EQ(Match(TestKeys(1, 100), false).matched_blocks, 0u);
}

TEST_F(ReadWriteTest, AFullyLeasedArenaRefusesAndRecovers) {
  Status last = OkStatus();
  uint64_t n = 1;
  for (; last.ok() && n < 1000; ++n) {
    last = Store(n, n == 1 ? std::nullopt : std::optional(n - 1));
    if (last.ok() && n % 10 == 0) Match(TestKeys(1, n));
  }
  EXPECT_OK(last) << "tails may be evicted while unleased";
  const MatchResult all = Match(TestKeys(1, n));
  ASSERT_TRUE(all.lease);
  for (uint64_t m = 5000; m < 5300 && last.ok(); ++m) {
    last = Store(m, std::nullopt);
    Match(TestKeys(m, m));
  }
  EXPECT_THAT(last, StatusIs(StatusCode::kResourceExhausted, HasSubstr("host tier")));
  engine_->CloseSession(session_);
  session_ = *engine_->OpenSession("again");
  EXPECT_OK(Store(9000, std::nullopt));
}

TEST_F(ReadWriteTest, SlicesStayReadableAfterTheirLeaseEnded) {
  keep_holds_ = true;
  StoreChain(1, 3);
  const MatchResult match = Match(TestKeys(1, 3));
  const Fetched fetched = Fetch(*match.lease);
  ASSERT_OK(engine_->Release(session_, {&*match.lease, 1}));
  for (uint64_t n = 1000; n < 1400; ++n) ASSERT_OK(Store(n, std::nullopt));
  for (const FetchedSlice& slice : fetched.slices) EXPECT_TRUE(IsSliceOf(1 + slice.block, slice));
}

TEST_F(ReadWriteTest, AnEndedLeaseTurnsTheRestIntoFailures) {
  StoreChain(1, 3);
  const MatchResult match = Match(TestKeys(1, 3));
  FetchRequest request{.session = session_,
                       .lease = *match.lease,
                       .block_begin = 0,
                       .block_end = 0,
                       .layer_begin = 0,
                       .layer_end = 0,
                       .trace = ""};
  auto stream = engine_->Fetch(request);
  ASSERT_OK(stream);
  ASSERT_OK((*stream)->Next(TimePoint::max()));
  clock_.Advance(std::chrono::seconds(31));
  engine_->Tick();
  const Fetched rest = Drain(**stream);
  EXPECT_TRUE(rest.slices.empty());
  EXPECT_THAT(rest.failures,
              ElementsAre(std::pair(0, MissReason::kDeadline), std::pair(1, MissReason::kDeadline),
                          std::pair(2, MissReason::kDeadline)));
  EXPECT_THAT(engine_->Fetch(request).status(),
              StatusIs(StatusCode::kNotFound, HasSubstr("lease")));
}

TEST_F(ReadWriteTest, RenewedLeasesLiveOn) {
  StoreChain(1, 2);
  const MatchResult match = Match(TestKeys(1, 2));
  clock_.Advance(std::chrono::seconds(20));
  ASSERT_OK(engine_->RenewLease(session_, *match.lease, std::chrono::seconds(60)));
  clock_.Advance(std::chrono::seconds(50));
  engine_->Tick();
  EXPECT_EQ(engine_->GetStats().leases, 1u);
  EXPECT_THAT(engine_->RenewLease(session_, *match.lease, std::chrono::seconds(601)).status(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("601")));
  clock_.Advance(std::chrono::seconds(11));
  EXPECT_THAT(engine_->RenewLease(session_, *match.lease, Duration(0)).status(),
              StatusIs(StatusCode::kNotFound, HasSubstr("lease")));
}

TEST_F(HostOnlyTest, ARottenBlockIsAMissAndIsRemoved) {
  StoreChain(1, 4);
  // Flip one bit of block 3's last layer in the arena.
  std::byte* rotten = nullptr;
  {
    const MatchResult match = Match(TestKeys(1, 4));
    on_slice_ = [&](const FetchedSlice& s) {
      if (s.block == 2 && s.layer == kLayers - 1) rotten = const_cast<std::byte*>(s.data.data());
    };
    Fetch(*match.lease);
    on_slice_ = nullptr;
    ASSERT_OK(engine_->Release(session_, {&*match.lease, 1}));
  }
  ASSERT_NE(rotten, nullptr);
  rotten[100] ^= std::byte{0x10};
  const MatchResult match = Match(TestKeys(1, 4));
  const Fetched fetched = Fetch(*match.lease);
  EXPECT_THAT(fetched.failures, ElementsAre(std::pair(2, MissReason::kCorrupt)));
  for (const FetchedSlice& slice : fetched.slices) EXPECT_TRUE(IsSliceOf(1 + slice.block, slice));
  ASSERT_OK(engine_->Release(session_, {&*match.lease, 1}));
  EXPECT_EQ(engine_->GetStats().corrupt_blocks, 1u);
  const MatchResult after = Match(TestKeys(1, 4));
  EXPECT_EQ(after.matched_blocks, 2u);
  EXPECT_EQ(after.miss_reason, MissReason::kCorrupt);
  ASSERT_OK(Store(3, 2));
  EXPECT_EQ(ServeAndVerify(1, 4), 4u);
}

// A reader in place checks hashes itself and tells; nobody may ask for that block again for long.
TEST_F(HostOnlyTest, ARottenBlockThatAReaderInPlaceReportsIsAMissAtOnce) {
  StoreChain(1, 2);
  const auto keys = TestKeys(1, 2);
  std::vector<PlacedPart> places;
  const auto match = engine_->in_place()->MatchInPlace(
      {.session = session_, .fingerprint = ns_, .keys = keys, .trace = ""}, SIZE_MAX, &places);
  ASSERT_OK(match);
  ASSERT_EQ(places.size(), 2u);
  const auto misses = [&] {
    return engine_->GetStats().misses[static_cast<size_t>(MissReason::kCorrupt)];
  };
  ASSERT_OK(engine_->in_place()->Report(session_, *match->lease, 1));
  EXPECT_EQ(misses(), 0u);  // It is sound, whatever the reader says.
  host_->Map({places[1].extent, places[1].bytes}).back() ^= std::byte{1};
  ASSERT_OK(engine_->in_place()->Report(session_, *match->lease, 1));
  EXPECT_EQ(misses(), 1u);
  EXPECT_EQ(engine_->GetStats().corrupt_blocks, 1u);
  EXPECT_EQ(engine_->GetStats().blocks, 1u);
  ASSERT_OK(engine_->Release(session_, {&*match->lease, 1}));
}

TEST_F(ReadWriteTest, RangesOfBlocksAndLayersAreServed) {
  StoreChain(1, 4);
  const MatchResult match = Match(TestKeys(1, 4));
  FetchRequest request{.session = session_,
                       .lease = *match.lease,
                       .block_begin = 1,
                       .block_end = 3,
                       .layer_begin = 2,
                       .layer_end = 3,
                       .trace = ""};
  auto stream = engine_->Fetch(request);
  ASSERT_OK(stream);
  const Fetched fetched = Drain(**stream);
  EXPECT_THAT(fetched.order, ElementsAre(std::pair(2, 1), std::pair(2, 2)));
  request.block_end = 5;
  EXPECT_THAT(engine_->Fetch(request).status(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("[1, 5)")));
  request.block_end = 0;
  request.layer_end = 9;
  EXPECT_THAT(engine_->Fetch(request).status(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("[2, 9)")));
}

TEST_F(ReadWriteTest, BadInputIsNamed) {
  MatchRequest request{.session = session_, .fingerprint = ns_, .keys = {}, .trace = ""};
  EXPECT_THAT(engine_->Match(request).status(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("keys")));
  const auto keys = TestKeys(1, 1);
  request.keys = keys;
  request.session = 999;
  EXPECT_THAT(engine_->Match(request).status(),
              StatusIs(StatusCode::kNotFound, HasSubstr("session")));
  request.session = session_;
  request.fingerprint = TestKey(1);
  EXPECT_THAT(engine_->Match(request).status(),
              StatusIs(StatusCode::kNotFound, HasSubstr("fingerprint")));
  request.fingerprint = ns_;
  request.lease_ttl = std::chrono::seconds(-1);
  EXPECT_THAT(engine_->Match(request).status(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("lease_ttl")));
  ReservePartRequest part = Part(1, 1);
  EXPECT_THAT(Reserve(part).status(), StatusIs(StatusCode::kInvalidArgument, HasSubstr("parent")));
  part = Part(1, std::nullopt);
  part.bytes += 1;
  EXPECT_THAT(Reserve(part).status(), StatusIs(StatusCode::kInvalidArgument, HasSubstr("bytes")));
  part.bytes -= 1;
  part.compute_seconds = -1;
  EXPECT_THAT(Reserve(part).status(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("compute_seconds")));
}

TEST_F(ReadWriteTest, DrainingRefusesWritesAndServesReads) {
  StoreChain(1, 2);
  engine_->BeginDrain();
  EXPECT_THAT(Reserve(Part(3, 2)).status(),
              StatusIs(StatusCode::kUnavailable, HasSubstr("shutting down")));
  EXPECT_EQ(ServeAndVerify(1, 2), 2u);
}

TEST_F(ReadWriteTest, ADrainWaitsForTheLastLeaseAndTheLastReservation) {
  StoreChain(1, 2);
  const auto id = Reserve(Part(3, 2));
  ASSERT_OK(id);
  EXPECT_FALSE(engine_->WaitUnused(clock_.Now()));
  std::thread writer([&] { EXPECT_OK(engine_->Abort(session_, {&*id, 1})); });
  EXPECT_TRUE(engine_->WaitUnused(TimePoint::max()));
  writer.join();

  const auto keys = TestKeys(1, 2);
  MatchRequest request;
  request.session = session_;
  request.fingerprint = ns_;
  request.keys = keys;
  const auto match = engine_->Match(request);
  ASSERT_OK(match);
  EXPECT_FALSE(engine_->WaitUnused(clock_.Now()));
  std::thread reader([&] { EXPECT_OK(engine_->Release(session_, {&*match->lease, 1})); });
  EXPECT_TRUE(engine_->WaitUnused(TimePoint::max()));
  reader.join();
}

TEST_F(ReadWriteTest, SecondsSavedFollowTheCallersSpeed) {
  StoreChain(1, 4);
  const auto keys = TestKeys(1, 4);
  MatchRequest request{.session = session_,
                       .fingerprint = ns_,
                       .keys = keys,
                       .prefill_tokens_per_second = 32,
                       .trace = ""};
  ASSERT_OK(engine_->Match(request));
  EXPECT_DOUBLE_EQ(engine_->GetStats().prefill_seconds_saved, 2.0);
  // However slow a client says that it is, the sum only grows: in 64 bits of nanoseconds it would
  // begin again after 18,447 of these.
  request.prefill_tokens_per_second = 1e-300;
  double before = 2.0;
  for (int i = 0; i < 20'000; ++i) {
    const auto match = engine_->Match(request);
    ASSERT_OK(match);
    ASSERT_OK(engine_->Release(session_, {&*match->lease, 1}));
    const double now = engine_->GetStats().prefill_seconds_saved;
    ASSERT_GT(now, before) << i;
    before = now;
  }
}

TEST_F(ReadWriteTest, ExistsSaysWhere) {
  StoreChain(1, 2);
  const auto keys = TestKeys(1, 3);
  const auto exists = engine_->Exists(ns_, keys);
  ASSERT_OK(exists);
  EXPECT_THAT(*exists, ElementsAre(TierKind::kHost, TierKind::kHost, std::nullopt));
}

class LimitsTest : public EngineTest {};

TEST_F(LimitsTest, BudgetsAnswerResourceExhaustedAndSayWhich) {
  Options options;
  options.disk = false;
  options.engine.max_sessions = 2;
  options.engine.max_leases_per_session = 1;
  options.engine.max_namespaces = 1;
  options.engine.max_reserved_bytes = 40 << 10;
  options.engine.max_incomplete_bytes = 12 << 10;
  Start(options);
  ASSERT_OK(engine_->OpenSession("b"));
  EXPECT_THAT(engine_->OpenSession("c").status(),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("sessions")));
  StoreChain(1, 1);
  EXPECT_THAT(engine_->OpenNamespace(TestSpec("other"), false).status(),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("namespaces")));
  EXPECT_TRUE(Match(TestKeys(1, 1)).lease);
  const auto keys = TestKeys(1, 1);
  MatchRequest request{.session = session_, .fingerprint = ns_, .keys = keys, .trace = ""};
  EXPECT_THAT(engine_->Match(request).status(),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("leases")));
  ASSERT_OK(Reserve(Part(11, std::nullopt)));
  const auto second = Reserve(Part(12, std::nullopt));
  ASSERT_OK(second);
  EXPECT_THAT(Reserve(Part(13, std::nullopt)).status(),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("reservations")));
  ASSERT_OK(engine_->Abort(session_, {&*second, 1}));
  ASSERT_OK(Store(20, std::nullopt, {{0, 2, 0, 2}}));
  EXPECT_THAT(Store(21, std::nullopt, {{0, 2, 0, 2}}),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("incomplete")));
}

TEST_F(LimitsTest, IndexBudgetTurnsBlocksOver) {
  Options options;
  options.disk = false;
  options.engine.max_index_bytes = 560 << 10;  // 512 KiB of it remember blocks that went.
  Start(options);
  uint64_t most = 0;
  for (uint64_t n = 1; n < 200; ++n) {
    ASSERT_OK(Store(n, std::nullopt));
    most = std::max(most, engine_->GetStats().blocks);
  }
  EXPECT_LT(most, 199u);
  EXPECT_GT(most, 20u);
}

}  // namespace
}  // namespace cairn::cache::testing
