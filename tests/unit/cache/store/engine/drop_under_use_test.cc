// Drops and new epochs while somebody reads or writes: only what readers can still see stays.

#include "services/cache/store/engine/in_place.h"
#include "tests/unit/cache/store/engine/engine_fixture.h"

namespace cairn::cache::testing {
namespace {

using ::testing::HasSubstr;

// Runs a function once, before the next task.
class HookExecutor : public Executor {
 public:
  Status Post(std::function<void()> task) override {
    if (const auto hook = std::exchange(hook_, nullptr)) hook();
    task();
    return OkStatus();
  }
  void SetHook(std::function<void()> hook) { hook_ = std::move(hook); }

 private:
  std::function<void()> hook_;
};

enum class How { kDrop, kBump };

class DropUnderUseTest : public EngineTest, public ::testing::WithParamInterface<How> {
 protected:
  DropUnderUseTest() { executor_ = &hooked_; }

  // As a client on this machine takes it: without a deadline.
  Result<MatchResult> LeaseInPlace(SessionId session, const std::vector<BlockKey>& keys,
                                   std::vector<PlacedPart>* places = nullptr) {
    return engine_->in_place()->MatchInPlace(
        {.session = session, .fingerprint = ns_, .keys = keys, .trace = ""}, SIZE_MAX, places);
  }
  void Hide() {
    ASSERT_OK(GetParam() == How::kDrop ? engine_->DropNamespace(ns_) : engine_->BumpEpoch(ns_));
  }
  void OpenAgain() { ns_ = engine_->OpenNamespace(spec_, false)->fingerprint; }
  uint64_t UsedIn(TierKind tier) { return engine_->GetStats().tiers[tier]->used_bytes; }
  uint64_t BlockBytes() { return TestPart(spec_.layout, 1, Whole()).size(); }
  // Pages are 4 KiB.
  uint64_t HostRoomOf(uint64_t blocks) { return blocks * ((BlockBytes() + 4095) / 4096 * 4096); }

  HookExecutor hooked_;
};

TEST_P(DropUnderUseTest, ALeaseOfThisMachineKeepsItsOwnPathAlone) {
  StartWithoutDevice();
  StoreChain(1, 20);
  for (uint64_t n = 100; n < 150; ++n) ASSERT_OK(Store(n, 3));  // A tree.
  StoreChain(200, 240);
  Flush();
  const SessionId stopped = *engine_->OpenSession("stopped");
  std::vector<PlacedPart> places;
  const auto lease = LeaseInPlace(stopped, TestKeys(1, 5), &places);
  ASSERT_OK(lease);
  ASSERT_EQ(lease->matched_blocks, 5u);
  Hide();
  engine_->Tick();
  EXPECT_EQ(UsedIn(TierKind::kHost), HostRoomOf(5));
  EXPECT_EQ(UsedIn(TierKind::kDisk), 5 * BlockBytes());
  // The reader still sees its bytes.
  for (const PlacedPart& place : places) {
    const auto bytes = host_->Map({place.extent, place.bytes});
    const auto expected = TestPart(spec_.layout, 1 + place.block, Whole());
    EXPECT_EQ(std::memcmp(bytes.data(), expected.data(), expected.size()), 0) << place.block;
  }
  // Others have the room.
  OpenAgain();
  for (uint64_t n = 1; n <= 180; ++n) ASSERT_OK(Store(n, std::nullopt));
  engine_->CloseSession(stopped);
  engine_->Tick();
  ASSERT_OK(engine_->DropNamespace(ns_));
  EXPECT_EQ(UsedIn(TierKind::kHost), 0u);
  EXPECT_EQ(UsedIn(TierKind::kDisk), 0u);
}

TEST_P(DropUnderUseTest, EachLeaseThatEndsGivesItsBlocksBack) {
  StartWithoutDevice();
  StoreChain(1, 10);
  std::vector<SessionId> sessions;
  for (const uint64_t depth : {2, 6, 10}) {
    sessions.push_back(*engine_->OpenSession("holder"));
    ASSERT_OK(LeaseInPlace(sessions.back(), TestKeys(1, depth)));
  }
  Hide();
  engine_->Tick();
  EXPECT_EQ(UsedIn(TierKind::kHost), HostRoomOf(10));
  engine_->CloseSession(sessions[2]);
  engine_->Tick();
  EXPECT_EQ(UsedIn(TierKind::kHost), HostRoomOf(6));
  engine_->CloseSession(sessions[0]);
  engine_->Tick();
  EXPECT_EQ(UsedIn(TierKind::kHost), HostRoomOf(6));
  engine_->CloseSession(sessions[1]);
  engine_->Tick();
  EXPECT_EQ(UsedIn(TierKind::kHost), 0u);
  EXPECT_EQ(UsedIn(TierKind::kDisk), 0u);
}

TEST_P(DropUnderUseTest, ManyEpochsUnderOneStoppedReaderKeepOnePathEach) {
  StartWithoutDevice();
  const SessionId stopped = *engine_->OpenSession("stopped");
  for (int epoch = 0; epoch < 10; ++epoch) {
    StoreChain(1, 20);
    ASSERT_OK(LeaseInPlace(stopped, TestKeys(1, 1)));
    Hide();
    OpenAgain();
    engine_->Tick();
    EXPECT_EQ(UsedIn(TierKind::kHost), HostRoomOf(static_cast<uint64_t>(epoch) + 1));
  }
  engine_->CloseSession(stopped);
  engine_->Tick();
  EXPECT_EQ(UsedIn(TierKind::kHost), 0u);
}

TEST_P(DropUnderUseTest, LeasesWithADeadlineEndAtOnce) {
  StartWithoutDevice();
  StoreChain(1, 10);
  ASSERT_TRUE(Match(TestKeys(1, 10)).lease);
  Hide();
  engine_->Tick();
  EXPECT_EQ(engine_->GetStats().leases, 0u);
  EXPECT_EQ(UsedIn(TierKind::kHost), 0u);
  EXPECT_EQ(UsedIn(TierKind::kDisk), 0u);
}

TEST_P(DropUnderUseTest, BlocksThatWaitForTheirCopyGoToo) {
  Options options;
  options.engine.disk_write_budget = 1;  // Copies wait.
  StartWithoutDevice(options);
  StoreChain(1, 10);
  const SessionId stopped = *engine_->OpenSession("stopped");
  ASSERT_OK(LeaseInPlace(stopped, TestKeys(1, 1)));
  Hide();
  engine_->Tick();
  EXPECT_EQ(UsedIn(TierKind::kHost), HostRoomOf(1));
  engine_->CloseSession(stopped);
  engine_->Tick();
  EXPECT_EQ(UsedIn(TierKind::kHost), 0u);
}

TEST_P(DropUnderUseTest, ReservationsOfEveryKindEndWithTheirRoom) {
  Options options;
  options.segment_bytes = 2 << 20;
  StartWithoutDevice(options);
  ASSERT_OK(host_->AddOwner(spec_.tenant));
  const SessionId stopped = *engine_->OpenSession("stopped");
  const auto timed = Reserve(Part(1, std::nullopt));
  const ReservePartRequest part = Part(2, std::nullopt);
  const auto in_place = engine_->in_place()->ReserveInPlace(stopped, ns_, {&part, 1});
  ASSERT_OK(timed);
  ASSERT_OK(in_place);
  ASSERT_OK((*in_place)[0]);
  ASSERT_OK(Store(3, std::nullopt, {{0, 1, 0, 2}}));  // Incomplete.
  Hide();
  engine_->Tick();
  // A process may still be writing there.
  EXPECT_EQ(UsedIn(TierKind::kHost), HostRoomOf(1));
  EXPECT_EQ(engine_->GetStats().reservations, 1u);
  EXPECT_EQ(engine_->GetStats().reserved_bytes, HostRoom(part.bytes));
  const auto bytes = TestPart(spec_.layout, 2, Whole());
  std::memcpy(host_->Map({(*in_place)[0]->extent, static_cast<uint32_t>(bytes.size())}).data(),
              bytes.data(), bytes.size());
  const auto committed = engine_->Commit(stopped, {&(*in_place)[0]->id, 1}, "");
  ASSERT_OK(committed);
  EXPECT_THAT((*committed)[0], StatusIs(StatusCode::kNotFound, HasSubstr("dropped")));
  EXPECT_EQ(UsedIn(TierKind::kHost), 0u);
  EXPECT_EQ(engine_->GetStats().reserved_bytes, 0u);
  engine_->CloseSession(stopped);
}

TEST_P(DropUnderUseTest, AMatchThatLosesTheRaceLeavesNoLease) {
  StartWithoutDevice();
  StoreChain(1, 5);
  Flush();
  CrashAndRestart();  // All blocks are on disk: the match asks for them between its two looks.
  const SessionId session = *engine_->OpenSession("here");
  bool hidden = false;
  hooked_.SetHook([&] {
    hidden = true;
    Hide();
  });
  std::vector<PlacedPart> places;
  EXPECT_THAT(LeaseInPlace(session, TestKeys(1, 5), &places),
              StatusIs(StatusCode::kNotFound, HasSubstr("")));
  EXPECT_TRUE(hidden);
  EXPECT_EQ(engine_->GetStats().leases, 0u);
  engine_->Tick();
  EXPECT_EQ(UsedIn(TierKind::kHost), 0u);
  EXPECT_EQ(UsedIn(TierKind::kDisk), 0u);
  engine_->CloseSession(session);
}

TEST_P(DropUnderUseTest, AFetchUnderWayKeepsWhatItHandsOut) {
  StartWithoutDevice();
  StoreChain(1, 10);
  Flush();
  const MatchResult match = Match(TestKeys(1, 4));
  auto stream = engine_->Fetch({.session = session_, .lease = *match.lease, .trace = ""});
  ASSERT_OK(stream);
  auto item = (*stream)->Next(TimePoint::max());
  ASSERT_OK(item);
  FetchedSlice slice = std::get<FetchedSlice>(**item);
  Hide();
  engine_->Tick();
  EXPECT_LE(UsedIn(TierKind::kHost), HostRoomOf(4));
  EXPECT_TRUE(IsSliceOf(1 + slice.block, slice));
  slice.hold.reset();
  stream->reset();
  *item = std::nullopt;
  engine_->Tick();
  EXPECT_EQ(UsedIn(TierKind::kHost), 0u);
}

INSTANTIATE_TEST_SUITE_P(How, DropUnderUseTest, ::testing::Values(How::kDrop, How::kBump),
                         [](const auto& test) {
                           return test.param == How::kDrop ? "Drop" : "Bump";
                         });

}  // namespace
}  // namespace cairn::cache::testing
