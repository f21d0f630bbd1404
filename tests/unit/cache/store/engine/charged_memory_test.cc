// Memory that grows with what clients ask for is charged to an item of the account, and its bound
// is kept.

#include "services/cache/store/engine/in_place.h"
#include "services/cache/store/lease/session_table.h"
#include "services/cache/store/mover/write_back.h"
#include "tests/unit/cache/store/block/encoded_parts.h"
#include "tests/unit/cache/store/engine/engine_fixture.h"

namespace cairn::cache::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

MemoryAccount::Bounds BoundOf(MemoryItem item, uint64_t bytes) {
  MemoryAccount::Bounds bounds = MemoryAccount::Unbounded();
  bounds[static_cast<size_t>(item)] = bytes;
  return bounds;
}

class ChargedMemoryTest : public EngineTest {
 protected:
  uint64_t Used(MemoryItem item) const { return account_->used(item); }
};

TEST_F(ChargedMemoryTest, ReservationsAreRefusedAtTheBoundOfLeases) {
  constexpr uint64_t kReservations = 10;
  Options options;
  options.memory = BoundOf(MemoryItem::kLeases, kReservations * Reservation::kMemoryBytes);
  Start(options);
  std::vector<ReservationId> ids;
  for (uint64_t n = 1; n <= kReservations; ++n) {
    const auto id = Reserve(Part(n, std::nullopt));
    ASSERT_OK(id);
    ids.push_back(*id);
  }
  EXPECT_THAT(Reserve(Part(99, std::nullopt)),
              StatusIs(StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("leases"), HasSubstr("limits.lease_memory"))));
  // Aborted, committed or ended with their session, they cost nothing any more.
  ASSERT_OK(engine_->Abort(session_, {&ids[0], 1}));
  EXPECT_EQ(Used(MemoryItem::kLeases), (kReservations - 1) * Reservation::kMemoryBytes);
  ASSERT_OK(engine_->Write(session_, ids[1], 0, TestPart(spec_.layout, 2, Whole())));
  ASSERT_OK(CommitOne(ids[1]));
  EXPECT_OK(Store(50, std::nullopt));
  EXPECT_EQ(Used(MemoryItem::kLeases), (kReservations - 2) * Reservation::kMemoryBytes);
  engine_->CloseSession(session_);
  EXPECT_EQ(Used(MemoryItem::kLeases), 0u);
}

// Nobody else's blocks make room for what readers keep of a dropped namespace.
TEST_F(ChargedMemoryTest, WhatReadersKeepOfADroppedNamespaceIsChargedToLeases) {
  Options options;
  options.memory = MemoryAccount::Unbounded();
  options.host_bytes = 8 << 20;
  Start(options);
  StoreChain(1, 300);
  // A lease without a deadline outlives the drop.
  const auto keys = TestKeys(1, 200);
  std::vector<PlacedPart> places;
  const auto match = engine_->in_place()->MatchInPlace(
      {.session = session_, .fingerprint = ns_, .keys = keys, .trace = ""}, SIZE_MAX, &places);
  ASSERT_OK(match);
  ASSERT_TRUE(match->lease);
  const uint64_t before = Used(MemoryItem::kLeases);
  const uint64_t index_before = engine_->GetStats().index_bytes;
  ASSERT_OK(engine_->BumpEpoch(ns_));
  engine_->Tick();
  const uint64_t kept = Used(MemoryItem::kLeases) - before;
  EXPECT_GT(kept, 200 * 32u);
  EXPECT_LE(engine_->GetStats().index_bytes + kept, index_before + 4096);
  // A second drop of the same kind is counted too.
  StoreChain(1, 20);
  ASSERT_OK(engine_->Release(session_, {&*match->lease, 1}));
  engine_->Tick();
  EXPECT_EQ(Used(MemoryItem::kLeases), 0u);
}

TEST_F(ChargedMemoryTest, TheMapOfExtentsCountsForTheIndex) {
  constexpr uint64_t kPerExtent = 4096;
  disk_ = std::make_unique<FakeTier>(
      FakeTier::Options{.capacity_bytes = 64 << 20, .map_bytes_per_extent = kPerExtent});
  Options options;
  options.device_bytes = 0;
  options.engine.max_index_bytes = 1 << 20;  // Half of it remembers removed blocks.
  Start(options);
  for (uint64_t n = 1; n <= 300; ++n) ASSERT_OK(Store(n, std::nullopt)) << n;
  const EngineStats stats = engine_->GetStats();
  EXPECT_LE(disk_->GetStats().extents * kPerExtent, 512u << 10);
  EXPECT_LE(stats.index_bytes, (1u << 20) + 4 * kPerExtent);
  EXPECT_GE(disk_->GetStats().extents, 50u);
}

class CopyMemoryTest : public EngineTest {
 protected:
  CopyMemoryTest() { spec_ = EncodedSpec("host=int8>disk=turbo:bits=4"); }
  void StartWith(uint64_t max_copy_bytes) {
    executor_ = &manual_;
    Options options;
    options.memory = MemoryAccount::Unbounded();
    options.device_bytes = 0;
    options.engine.max_copy_bytes = max_copy_bytes;
    Start(options);
    disk_->HoldCallbacks();
  }
  void Push(uint64_t n) {
    const auto bytes = EncodedPart({"int8"}, n, spec_.layout.WholeRect(), n == 1);
    ReservePartRequest part;
    part.key = TestKey(n);
    part.part = spec_.layout.WholeRect();
    part.first_position = n == 1 ? 0 : 32;
    part.bytes = bytes.size();
    const auto id = Reserve(part);
    ASSERT_OK(id);
    ASSERT_OK(engine_->Write(session_, *id, 0, bytes));
    ASSERT_OK(CommitOne(*id));
  }
  uint64_t Used() const { return account_->used(MemoryItem::kDisk); }
  // Runs what can run without time.
  void Run() {
    while (manual_.RunAll() > 0) {
    }
  }
  void Pass(Duration time) {
    clock_.Advance(time);
    engine_->Tick();
    Run();
  }

  ManualExecutor manual_;
};

TEST_F(CopyMemoryTest, CopiesThatEncodeAgainShareABound) {
  StartWith(64 << 20);
  Push(1);
  Run();
  const uint64_t one = Used();
  ASSERT_GT(one, 0u);
  disk_->RunHeld();
  Run();
  EXPECT_EQ(Used(), 0u);
  engine_.reset();
  disk_.reset();

  StartWith(3 * one);
  uint64_t most = 0;
  for (uint64_t n = 1; n <= 12; ++n) Push(n);
  for (int i = 0; i < 100 && BlocksIn(TierKind::kDisk) < 12; ++i) {
    Run();
    most = std::max(most, Used());
    disk_->RunOneHeld();
    Pass(WriteBack::kCopyPause);
  }
  EXPECT_LE(most, 3 * one);
  EXPECT_GE(most, 2 * one);
  EXPECT_EQ(BlocksIn(TierKind::kDisk), 12u);
  EXPECT_EQ(Used(), 0u);
  EXPECT_EQ(engine_->GetStats().unflushed_bytes, 0u);
}

TEST_F(CopyMemoryTest, ACopyThatNeedsMoreThanTheBoundRunsAlone) {
  StartWith(1);
  for (uint64_t n = 1; n <= 6; ++n) Push(n);
  uint64_t most = 0;
  Run();
  const uint64_t one = Used();
  for (int i = 0; i < 100 && BlocksIn(TierKind::kDisk) < 6; ++i) {
    most = std::max(most, Used());
    disk_->RunHeld();
    Run();
    Pass(WriteBack::kCopyPause);
  }
  EXPECT_EQ(BlocksIn(TierKind::kDisk), 6u);
  EXPECT_GT(one, 1u);
  EXPECT_LT(most, 2 * one);
  EXPECT_EQ(Used(), 0u);
}

}  // namespace
}  // namespace cairn::cache::testing
