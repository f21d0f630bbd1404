// Copies to disk, promotion, recovery, and what happens when bytes or the disk are bad.

#include <thread>

#include "services/cache/store/block/record.h"
#include "tests/unit/cache/store/engine/engine_fixture.h"

namespace cairn::cache::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class DiskTest : public EngineTest {
 protected:
  uint64_t BlocksIn(TierKind tier) { return engine_->GetStats().tiers[tier]->blocks; }
  // Stores 1..n, so that all is on disk, and host holds none of it.
  void StoreOnDiskOnly(uint64_t n) {
    StoreChain(1, n);
    Flush();
    CrashAndRestart();
    ASSERT_EQ(BlocksIn(TierKind::kHost), 0u);
    ASSERT_EQ(BlocksIn(TierKind::kDisk), n);
  }
  void ExpectBothRefused() {
    const MatchResult match = Match(TestKeys(1, 2));
    ASSERT_EQ(match.matched_blocks, 2u);
    const Fetched fetched = Fetch(*match.lease);
    EXPECT_THAT(fetched.failures, ElementsAre(std::pair(0, MissReason::kCorrupt),
                                              std::pair(1, MissReason::kCorrupt)));
    EXPECT_TRUE(fetched.slices.empty());
    EXPECT_GE(engine_->GetStats().corrupt_blocks, 1u);
  }
  std::vector<Extent> extents_;
};

TEST_F(DiskTest, StatisticsHaveTheTiersOfTheNodeAlone) {
  StartWithoutDevice();
  const EngineStats stats = engine_->GetStats();
  EXPECT_TRUE(stats.tiers[TierKind::kHost]);
  EXPECT_TRUE(stats.tiers[TierKind::kDisk]);
  EXPECT_FALSE(stats.tiers[TierKind::kDevice]);
}

TEST_F(DiskTest, CommittedBlocksAreCopiedToDisk) {
  Start();
  StoreChain(1, 5);
  EXPECT_EQ(BlocksIn(TierKind::kHost), 5u);
  EXPECT_EQ(BlocksIn(TierKind::kDisk), 5u);
  EXPECT_EQ(engine_->GetStats().unflushed_bytes, 0u);
}

TEST_F(DiskTest, FlushedBlocksSurviveACrashAndOthersDoNot) {
  Start();
  StoreChain(1, 5);
  Flush();
  ASSERT_OK(Store(6, 5));
  CrashAndRestart();
  const MatchResult match = Match(TestKeys(1, 6));
  EXPECT_EQ(match.matched_blocks, 5u);
  ASSERT_EQ(match.tiers.size(), 1u);
  EXPECT_EQ(match.tiers[0].tier, TierKind::kDisk);
  ASSERT_OK(engine_->Release(session_, {&*match.lease, 1}));
  EXPECT_EQ(ServeAndVerify(1, 5), 5u);
}

TEST_F(DiskTest, MatchPromotesAndTheFetchStillSaysDisk) {
  Start();
  StoreOnDiskOnly(6);
  const MatchResult match = Match(TestKeys(1, 6));
  EXPECT_EQ(BlocksIn(TierKind::kHost), 6u);
  const Fetched fetched = Fetch(*match.lease);
  ASSERT_EQ(fetched.slices.size(), 6u * kLayers);
  for (const FetchedSlice& slice : fetched.slices) EXPECT_EQ(slice.tier, TierKind::kDisk);
  EngineStats stats = engine_->GetStats();
  EXPECT_EQ(stats.promoted_blocks, 6u);
  EXPECT_EQ(stats.fetched_disk_bytes, stats.fetched_bytes);
  ASSERT_OK(engine_->Release(session_, {&*match.lease, 1}));
  EXPECT_EQ(ServeAndVerify(1, 6), 6u);
  EXPECT_EQ(engine_->GetStats().fetched_host_bytes, stats.fetched_bytes);
}

TEST_F(DiskTest, APrefixLargerThanTheArenaIsServed) {
  Options options;
  options.host_bytes = 1 << 20;  // 51 blocks.
  options.engine.max_transfer_bytes = 200 << 10;
  Start(options);
  StoreChain(1, 200);
  Flush();
  EXPECT_GT(engine_->GetStats().demoted_blocks, 100u);
  EXPECT_EQ(ServeAndVerify(1, 200), 200u);
  CrashAndRestart();
  EXPECT_EQ(ServeAndVerify(1, 200), 200u);
  EXPECT_EQ(ServeAndVerify(1, 200), 200u);
}

TEST_F(DiskTest, AReaderOfALargePrefixLeavesRoomForWriters) {
  Options options;
  options.host_bytes = 1 << 20;
  Start(options);
  StoreOnDiskOnly(200);
  const MatchResult match = Match(TestKeys(1, 200));
  EXPECT_EQ(match.matched_blocks, 200u);
  EXPECT_GT(BlocksIn(TierKind::kHost), 30u);
  EXPECT_OK(Store(1000, std::nullopt));
  EXPECT_EQ(Fetch(*match.lease).slices.size(), 200u * kLayers);
}

TEST_F(DiskTest, TwoLargeFetchesShareASmallBudget) {
  Options options;
  options.host_bytes = 256 << 10;
  options.engine.max_transfer_bytes = 40 << 10;
  Start(options);
  StoreChain(1, 100);
  Flush();
  const MatchResult a = Match(TestKeys(1, 100));
  const MatchResult b = Match(TestKeys(1, 100));
  Fetched from_a;
  std::thread other([&] { from_a = Fetch(*a.lease); });
  const Fetched from_b = Fetch(*b.lease);
  other.join();
  EXPECT_EQ(from_a.slices.size(), 100u * kLayers);
  EXPECT_EQ(from_b.slices.size(), 100u * kLayers);
}

TEST_F(DiskTest, AReaderThatKeepsTheBuffersMeetsItsDeadline) {
  Options options;
  options.host_bytes = 64 << 10;
  options.engine.max_transfer_bytes = 40 << 10;
  Start(options);
  StoreChain(1, 20);
  Flush();
  const MatchResult match = Match(TestKeys(1, 20));
  auto stream = engine_->Fetch({.session = session_, .lease = *match.lease, .trace = ""});
  ASSERT_OK(stream);
  std::vector<FetchedSlice> kept;
  Status last;
  for (;;) {
    auto item = (*stream)->Next(clock_.Now());
    last = item.status();
    if (!item.ok() || !*item) break;
    kept.push_back(std::get<FetchedSlice>(**item));
  }
  EXPECT_EQ(last.code(), StatusCode::kDeadlineExceeded);
  EXPECT_LT(kept.size(), 20u * kLayers);
  const size_t before = kept.size();
  kept.clear();
  EXPECT_EQ(before + Drain(**stream).slices.size(), 20u * kLayers);
}

TEST_F(DiskTest, BadBytesOnDiskAreAMissAndRemoved) {
  Start();
  StoreOnDiskOnly(6);
  disk_->CorruptReads(1);
  const MatchResult match = Match(TestKeys(1, 6));
  EXPECT_EQ(match.matched_blocks, 6u);
  const Fetched fetched = Fetch(*match.lease);
  EXPECT_THAT(fetched.failures, ElementsAre(std::pair(0, MissReason::kCorrupt)));
  for (const FetchedSlice& slice : fetched.slices) EXPECT_TRUE(IsSliceOf(1 + slice.block, slice));
  ASSERT_OK(engine_->Release(session_, {&*match.lease, 1}));
  EXPECT_EQ(engine_->GetStats().corrupt_blocks, 1u);
  EXPECT_EQ(Match(TestKeys(1, 6)).miss_reason, MissReason::kCorrupt);
  ASSERT_OK(Store(1, std::nullopt));
  EXPECT_EQ(ServeAndVerify(1, 6), 6u);
}

TEST_F(DiskTest, ABlockUnderAnotherKeysRecordIsRefusedByItsShape) {
  // Wrong bytes under a valid checksum: a sound part of another rectangle.
  Start();
  ASSERT_OK(Store(2, std::nullopt));  // The namespace's record comes with its first block.
  Flush();
  const auto record = EncodeRecord({.fingerprint = ns_,
                                    .generation = 1,
                                    .key = TestKey(1),
                                    .parent = {},
                                    .rect = Whole(),
                                    .grid = Whole(),
                                    .bytes = 0});
  const format::PartRect half{0, kLayers, 0, 1};
  const auto bytes = TestPart(spec_.layout, 1, half);
  auto good = DecodeRecord(record);
  ASSERT_OK(good);
  good->bytes = static_cast<uint32_t>(bytes.size());
  const auto extent = disk_->Reserve(good->bytes);
  ASSERT_OK(extent);
  disk_->Write(*extent, EncodeRecord(*good), bytes, [](Status status) { ASSERT_OK(status); });
  ASSERT_OK(disk_->Flush());
  CrashAndRestart();
  const MatchResult match = Match(TestKeys(1, 1));
  ASSERT_EQ(match.matched_blocks, 1u);
  EXPECT_THAT(Fetch(*match.lease).failures, ElementsAre(std::pair(0, MissReason::kCorrupt)));
}

// Sound bytes of the same shape, but another block's: only the record can tell. Once the block is
// promoted, and once there is no room for that and the fetch reads past the host tier.
TEST_F(DiskTest, AnotherBlocksExtentIsRefusedByItsRecord) {
  Start();
  StoreOnDiskOnly(2);
  ASSERT_TRUE(disk_->MixUpTwo());
  ExpectBothRefused();
}

TEST_F(DiskTest, AnotherBlocksExtentIsRefusedByItsRecordPastTheHostTier) {
  Start();
  StoreOnDiskOnly(2);
  ASSERT_TRUE(disk_->MixUpTwo());
  std::vector<Extent> all;
  for (;;) {
    const auto extent = host_->Reserve(4096);
    if (!extent.ok()) break;
    all.push_back(*extent);
  }
  ExpectBothRefused();
  for (const Extent& extent : all) host_->Release(extent);
}

TEST_F(DiskTest, RotInTheArenaFallsBackToTheDiskCopyAndMends) {
  StartWithoutDevice();
  StoreChain(1, 4);
  std::byte* rotten = nullptr;
  on_slice_ = [&](const FetchedSlice& s) {
    if (s.block == 1 && s.layer == 2) rotten = const_cast<std::byte*>(s.data.data());
  };
  const MatchResult first = Match(TestKeys(1, 4));
  Fetch(*first.lease);
  on_slice_ = nullptr;
  ASSERT_OK(engine_->Release(session_, {&*first.lease, 1}));
  ASSERT_NE(rotten, nullptr);
  *rotten ^= std::byte{1};
  EXPECT_EQ(ServeAndVerify(1, 4), 4u);
  EXPECT_EQ(engine_->GetStats().corrupt_blocks, 1u);
  EXPECT_EQ(BlocksIn(TierKind::kHost), 4u);
}

TEST_F(DiskTest, AFailingDiskFailsNoCommitAndNoReadFromHost) {
  Start();
  disk_->FailWrites(1000, Errorf(StatusCode::kUnavailable, "no disk"));
  StoreChain(1, 5);
  EXPECT_EQ(ServeAndVerify(1, 5), 5u);
  EXPECT_EQ(BlocksIn(TierKind::kDisk), 0u);
  EXPECT_GT(engine_->GetStats().unflushed_bytes, 0u);
  for (int i = 0; i < 10; ++i) {
    clock_.Advance(std::chrono::seconds(10));
    engine_->Tick();
  }
  EXPECT_EQ(engine_->GetStats().unflushed_bytes, 0u);  // Given up.
  EXPECT_EQ(ServeAndVerify(1, 5), 5u);
}

TEST_F(DiskTest, FailedWritesAreTriedAgain) {
  Start();
  disk_->FailWrites(2, Errorf(StatusCode::kUnavailable, "hiccup"));
  ASSERT_OK(Store(1, std::nullopt));
  EXPECT_EQ(BlocksIn(TierKind::kDisk), 0u);
  clock_.Advance(std::chrono::milliseconds(150));
  engine_->Tick();
  EXPECT_EQ(BlocksIn(TierKind::kDisk), 0u);
  clock_.Advance(std::chrono::milliseconds(250));
  engine_->Tick();
  EXPECT_EQ(BlocksIn(TierKind::kDisk), 1u);
}

TEST_F(DiskTest, FlushSaysWhenBlocksAreGivenUp) {
  Start();
  disk_->FailWrites(1000, Errorf(StatusCode::kUnavailable, "no disk"));
  ASSERT_OK(Store(1, std::nullopt));
  EXPECT_THAT(engine_->Flush(clock_.Now()),
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("not on disk")));
  disk_->FailWrites(0, OkStatus());
  EXPECT_OK(engine_->Flush(clock_.Now() + std::chrono::seconds(5)));
  CrashAndRestart();
  EXPECT_EQ(ServeAndVerify(1, 1), 1u);
}

TEST_F(DiskTest, GivenUpBlocksAreWrittenWhenTheDiskIsBack) {
  Start();
  disk_->FailWrites(1000, Errorf(StatusCode::kUnavailable, "no disk"));
  StoreChain(1, 5);
  for (int i = 0; i < 10; ++i) {
    clock_.Advance(std::chrono::seconds(10));
    engine_->Tick();
  }
  EXPECT_EQ(engine_->GetStats().unflushed_bytes, 0u);  // Given up.
  EXPECT_EQ(BlocksIn(TierKind::kDisk), 0u);
  // A flush does not say that they are there.
  EXPECT_FALSE(engine_->Flush(clock_.Now()).ok());
  disk_->FailWrites(0, OkStatus());
  for (int i = 0; i < 10; ++i) {
    clock_.Advance(std::chrono::seconds(10));
    engine_->Tick();
  }
  EXPECT_EQ(BlocksIn(TierKind::kDisk), 5u);
}

TEST_F(DiskTest, FlushTriesGivenUpBlocksAgain) {
  Start();
  disk_->FailWrites(1000, Errorf(StatusCode::kUnavailable, "no disk"));
  StoreChain(1, 5);
  for (int i = 0; i < 10; ++i) {
    clock_.Advance(std::chrono::seconds(10));
    engine_->Tick();
  }
  disk_->FailWrites(0, OkStatus());
  EXPECT_OK(engine_->Flush(clock_.Now() + std::chrono::seconds(5)));
  CrashAndRestart();
  EXPECT_EQ(ServeAndVerify(1, 5), 5u);
}

TEST_F(DiskTest, AFullDiskEvictsItsOwnTails) {
  Options options;
  options.disk_bytes = 400 << 10;  // 24 blocks.
  Start(options);
  for (uint64_t chain = 0; chain < 6; ++chain) {
    StoreChain(100 * chain + 1, 100 * chain + 10);
    clock_.Advance(std::chrono::seconds(1));
  }
  EXPECT_EQ(BlocksIn(TierKind::kHost), 60u);
  EXPECT_LE(BlocksIn(TierKind::kDisk), 24u);
  EXPECT_GT(engine_->GetStats().tiers[TierKind::kDisk]->evicted_blocks, 0u);
  Flush();
  CrashAndRestart();
  EXPECT_EQ(ServeAndVerify(501, 510), 10u);
  EXPECT_EQ(ServeAndVerify(401, 410), 10u);
  EXPECT_EQ(ServeAndVerify(301, 310), 4u);  // The head of the path is what is left.
}

TEST_F(DiskTest, APathLargerThanTheDiskKeepsItsHeadThere) {
  Options options;
  options.disk_bytes = 400 << 10;
  Start(options);
  StoreChain(1, 60);
  EXPECT_EQ(ServeAndVerify(1, 60), 60u);  // Host has them all.
  EXPECT_THAT(engine_->Flush(clock_.Now() + std::chrono::seconds(10)),
              StatusIs(StatusCode::kUnavailable, HasSubstr("could not be written")));
  ASSERT_OK(disk_->Flush());
  CrashAndRestart();
  EXPECT_EQ(ServeAndVerify(1, 60), 24u);
}

TEST_F(DiskTest, DroppedNamespacesStayDroppedAfterARestart) {
  Start();
  StoreChain(1, 5);
  Flush();
  const auto dropped = engine_->DropNamespace(ns_);
  ASSERT_OK(dropped);
  EXPECT_EQ(dropped->hidden_blocks, 5u);
  EXPECT_THAT(engine_->GetNamespace(ns_).status(),
              StatusIs(StatusCode::kNotFound, HasSubstr("namespace")));
  EXPECT_EQ(engine_->GetStats().tiers[TierKind::kHost]->used_bytes, 0u);
  EXPECT_EQ(engine_->GetStats().tiers[TierKind::kDisk]->used_bytes, 0u);
  // Reclaim was not flushed: after the crash the old extents are back, and must not be shown.
  CrashAndRestart();
  EXPECT_EQ(Match(TestKeys(1, 5)).matched_blocks, 0u);
  EXPECT_EQ(disk_->GetStats().used_bytes, 0u);
  StoreChain(1, 2);
  Flush();
  CrashAndRestart();
  EXPECT_EQ(ServeAndVerify(1, 2), 2u);
}

TEST_F(DiskTest, BumpEpochHidesAtOnceAndForGood) {
  Start();
  StoreChain(1, 5);
  Flush();
  const MatchResult match = Match(TestKeys(1, 5));
  auto stream = engine_->Fetch({.session = session_, .lease = *match.lease, .trace = ""});
  ASSERT_OK(stream);
  auto item = (*stream)->Next(TimePoint::max());
  ASSERT_OK(item);
  const FetchedSlice held = std::get<FetchedSlice>(**item);
  const auto bumped = engine_->BumpEpoch(ns_);
  ASSERT_OK(bumped);
  EXPECT_EQ(bumped->hidden_blocks, 5u);
  EXPECT_EQ(Match(TestKeys(1, 5)).matched_blocks, 0u);
  EXPECT_TRUE(IsSliceOf(1, held));  // Reclaim waits for readers.
  EXPECT_EQ(Drain(**stream).slices.size(), 0u);
  ASSERT_OK(Store(1, std::nullopt));
  Flush();
  stream->reset();
  const_cast<FetchedSlice&>(held).hold.reset();
  item = std::optional<FetchStream::Item>();
  engine_->Tick();
  EXPECT_EQ(engine_->GetStats().tiers[TierKind::kDisk]->extents, 1u);
  EXPECT_EQ(engine_->GetStats().tiers[TierKind::kHost]->extents, 1u);
  CrashAndRestart();
  EXPECT_EQ(Match(TestKeys(1, 5), false).matched_blocks, 1u);
}

TEST_F(DiskTest, BlocksOfManyPartsComeBackOnlyWhole) {
  Start();
  const format::PartRect left{0, kLayers, 0, 1}, right{0, kLayers, 1, 2};
  ASSERT_OK(Store(1, std::nullopt, left));
  ASSERT_OK(Store(1, std::nullopt, right));
  ASSERT_OK(Store(2, 1, right));
  ASSERT_OK(Store(2, 1, left));
  Flush();
  CrashAndRestart();
  EXPECT_EQ(ServeAndVerify(1, 2), 2u);
  ASSERT_OK(Store(3, 2, right));  // Its other half never comes.
  Flush();
  CrashAndRestart();
  EXPECT_EQ(Match(TestKeys(1, 3), false).matched_blocks, 2u);
  EXPECT_EQ(disk_->GetStats().extents, 4u);
}

TEST_F(DiskTest, ASetOfSimilarNamespacesIsReportedAfterARestartToo) {
  Start();
  StoreChain(1, 3);
  Flush();
  CrashAndRestart();
  NamespaceSpec other = spec_;
  other.numerics = "bf16";
  const auto opened = engine_->OpenNamespace(other, false);
  ASSERT_OK(opened);
  ASSERT_EQ(opened->differs.size(), 1u);
  EXPECT_EQ(opened->differs[0].difference.field, "numerics");
  EXPECT_EQ(opened->differs[0].stored_blocks, 3u);
  ns_ = opened->fingerprint;
  EXPECT_EQ(Match(TestKeys(1, 3)).miss_reason, MissReason::kFingerprint);
}

TEST_F(DiskTest, ForeignRecordsAreReleased) {
  Start();
  const auto extent = disk_->Reserve(100);
  const std::vector<std::byte> bytes(100);
  disk_->Write(*extent, "not a record", bytes, [](Status) {});
  ASSERT_OK(disk_->Flush());
  CrashAndRestart();
  EXPECT_EQ(disk_->GetStats().extents, 0u);
}

TEST_F(DiskTest, FetchWaitsForThePromotionsOfItsMatch) {
  Start();
  StoreOnDiskOnly(10);
  disk_->HoldCallbacks();
  const MatchResult match = Match(TestKeys(1, 10));
  auto stream = engine_->Fetch({.session = session_, .lease = *match.lease, .trace = ""});
  ASSERT_OK(stream);
  EXPECT_EQ((*stream)->Next(clock_.Now()).status().code(), StatusCode::kDeadlineExceeded);
  std::thread disk([&] {
    disk_->HoldCallbacks(false);
    disk_->RunHeld();
  });
  EXPECT_EQ(Drain(**stream).slices.size(), 10u * kLayers);
  disk.join();
}

TEST_F(DiskTest, PromotionsNobodyWaitsForAreCancelled) {
  Start();
  StoreOnDiskOnly(40);
  disk_->HoldCallbacks();
  const MatchResult match = Match(TestKeys(1, 40));
  ASSERT_OK(engine_->Release(session_, {&*match.lease, 1}));
  disk_->HoldCallbacks(false);
  disk_->RunHeld();
  EXPECT_LE(engine_->GetStats().promoted_blocks, 8u);  // Those under way.
  EXPECT_EQ(engine_->GetStats().mover_queue_depth, 0u);
}

TEST_F(DiskTest, IoErrorsOnReadAreMissesThatMayPass) {
  Start();
  StoreOnDiskOnly(2);
  disk_->FailReads(2, Errorf(StatusCode::kUnavailable, "EIO"));
  const MatchResult match = Match(TestKeys(1, 2));
  const Fetched fetched = Fetch(*match.lease);
  ASSERT_OK(engine_->Release(session_, {&*match.lease, 1}));
  EXPECT_EQ(engine_->GetStats().corrupt_blocks, 0u);
  EXPECT_EQ(ServeAndVerify(1, 2), 2u);
}

TEST_F(DiskTest, EveryBlockOfALargeNodeIsFoundAgain) {
  Options options;
  options.host_bytes = 2 << 20;
  Start(options);
  for (uint64_t chain = 0; chain < 20; ++chain) StoreChain(1000 * chain + 1, 1000 * chain + 50);
  Flush();
  CrashAndRestart();
  EXPECT_EQ(BlocksIn(TierKind::kDisk), 1000u);
  for (uint64_t chain = 0; chain < 20; ++chain)
    EXPECT_EQ(ServeAndVerify(1000 * chain + 1, 1000 * chain + 50), 50u);
}

}  // namespace
}  // namespace cairn::cache::testing
