// Blocks as they are stored, for other members, and on their way to another engine.

#include "services/cache/store/block/part_grid.h"
#include "services/cache/store/engine/for_peers.h"
#include "services/cache/store/engine/in_place.h"
#include "tests/unit/cache/store/block/encoded_parts.h"
#include "tests/unit/cache/store/engine/source_fixture.h"

namespace cairn::cache::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

using Bytes = std::vector<std::byte>;

class StoredReadTest : public SourceTest {
 protected:
  static MemoryAccount::Bounds HeadersOf(uint64_t bytes) {
    MemoryAccount::Bounds bounds = MemoryAccount::Unbounded();
    bounds[static_cast<size_t>(MemoryItem::kFetchHeaders)] = bytes;
    return bounds;
  }
  // Blocks 1 to `last` lie on disk alone.
  void StartOnDisk(uint64_t last, Options options = {}) {
    StartWithoutDevice(options);
    StoreChain(1, last);
    Flush();
    CrashAndRestart();
    ASSERT_EQ(BlocksIn(TierKind::kHost), 0u);
    ASSERT_EQ(BlocksIn(TierKind::kDisk), last);
  }
  // As StartOnDisk(20), and the readers of 1 to 19 leave no room in host.
  void StartWithFullHost(Options options = {}) {
    options.host_bytes = 256 << 10;
    StartOnDisk(20, options);
    ASSERT_TRUE(Match(TestKeys(1, 19)).lease);
    in_host_ = BlocksIn(TierKind::kHost);
    ASSERT_LT(in_host_, 19u);
  }
  Result<std::unique_ptr<StoredBlockRead>> Begin(uint64_t n) {
    return engine_->for_peers()->ReadStored(ns_, TestKey(n));
  }
  // A read that needs no waiting.
  Result<StoredBlock> Read(uint64_t n) {
    CAIRN_ASSIGN_OR_RETURN(const auto read, Begin(n));
    return read->Next(TimePoint());
  }
  static Bytes Copy(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }
  void ExpectBlock(const Result<StoredBlock>& block, uint64_t n) {
    ASSERT_OK(block);
    ASSERT_EQ(block->parts.size(), block->bytes.size());
    std::vector<format::PartRect> rects;
    for (size_t i = 0; i < block->parts.size(); ++i) {
      const format::PartRect& rect = block->parts[i].rect;
      EXPECT_EQ(block->parts[i].bytes, block->bytes[i].size());
      EXPECT_EQ(Copy(block->bytes[i]), TestPart(spec_.layout, n, rect)) << n;
      EXPECT_EQ(FitPart(rect, rects), PartFit::kFree);
      rects.push_back(rect);
    }
    EXPECT_TRUE(std::is_sorted(rects.begin(), rects.end()));
    EXPECT_TRUE(PoolGrid(spec_.layout).AreWhole(rects));
  }
  Status StoreInParts(uint64_t n, std::optional<uint64_t> parent,
                      const std::vector<format::PartRect>& rects) {
    for (const format::PartRect& rect : rects) CAIRN_RETURN_IF_ERROR(Store(n, parent, rect));
    return OkStatus();
  }
  // One for each head of each layer, the last ones first.
  std::vector<format::PartRect> AllCells() const {
    std::vector<format::PartRect> rects;
    for (uint16_t layer = kLayers; layer-- > 0;) {
      for (uint16_t head = kHeads; head-- > 0;) {
        rects.push_back(
            {layer, static_cast<uint16_t>(layer + 1), head, static_cast<uint16_t>(head + 1)});
      }
    }
    return rects;
  }
  std::vector<PlacedPart> Places(uint64_t n) {
    std::vector<PlacedPart> places;
    const std::vector keys = {TestKey(n)};
    const auto match = engine_->in_place()->MatchInPlace(
        {.session = session_, .fingerprint = ns_, .keys = keys, .trace = ""}, SIZE_MAX, &places);
    EXPECT_OK(match);
    EXPECT_OK(engine_->Release(session_, {&*match->lease, 1}));
    return places;
  }

  uint64_t in_host_ = 0;
};

TEST_F(StoredReadTest, BringsABlockWithAllThatItsWriterSaid) {
  StartWithoutDevice();
  ReservePartRequest part = Part(1, std::nullopt);
  part.compute_seconds = 0.25;
  for (const bool first : {true, false}) {
    if (!first) {
      part = Part(2, 1);
      part.first_position = 16;
    }
    const auto id = Reserve(part);
    ASSERT_OK(id);
    ASSERT_OK(engine_->Write(session_, *id, 0, TestPart(spec_.layout, first ? 1 : 2, Whole())));
    ASSERT_OK(CommitOne(*id));
  }
  const auto one = Read(1), two = Read(2);
  ExpectBlock(one, 1);
  EXPECT_EQ(one->parent, std::nullopt);
  EXPECT_TRUE(one->at_start);
  EXPECT_EQ(one->recompute_seconds, 0.25f);
  ExpectBlock(two, 2);
  EXPECT_EQ(two->parent, TestKey(1));
  EXPECT_FALSE(two->at_start);
  EXPECT_EQ(two->recompute_seconds, 0.0f);
}

TEST_F(StoredReadTest, UnknownBlocksAndNamespacesAreNotFound) {
  Start();
  EXPECT_EQ(Begin(1).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(engine_->for_peers()->ReadStored(Sha256::Of("other"), TestKey(1)).status(),
              StatusIs(StatusCode::kNotFound, HasSubstr("fingerprint")));
}

TEST_F(StoredReadTest, NeverAsksASource) {
  StartWithSource();
  GiveSource(1, 1);
  EXPECT_EQ(Begin(1).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(source_.reads() + source_.locates(), 0u);
}

TEST_F(StoredReadTest, PartsComeInTheOrderOfTheirRectangles) {
  Start();
  ASSERT_OK(StoreInParts(1, std::nullopt, AllCells()));
  const auto block = Read(1);
  ExpectBlock(block, 1);
  EXPECT_EQ(block->parts.size(), kLayers * kHeads);
}

TEST_F(StoredReadTest, ABlockOnDiskIsPromoted) {
  StartOnDisk(2);
  ExpectBlock(Read(2), 2);
  EXPECT_EQ(Read(2)->parent, TestKey(1));
  EXPECT_EQ(BlocksIn(TierKind::kHost), 1u);
}

TEST_F(StoredReadTest, ABlockOnDiskIsReadPastAFullHost) {
  StartWithFullHost();
  const auto block = Read(20);
  ExpectBlock(block, 20);
  EXPECT_EQ(block->parent, TestKey(19));
  EXPECT_EQ(BlocksIn(TierKind::kHost), in_host_);
}

TEST_F(StoredReadTest, ManyPartsAreReadPastAFullHost) {
  Options options;
  options.host_bytes = 256 << 10;
  StartWithoutDevice(options);
  StoreChain(1, 19);
  ASSERT_OK(StoreInParts(20, 19, AllCells()));
  Flush();
  CrashAndRestart();
  ASSERT_TRUE(Match(TestKeys(1, 19)).lease);
  const auto block = Read(20);
  ExpectBlock(block, 20);
  EXPECT_EQ(block->parts.size(), kLayers * kHeads);
}

TEST_F(StoredReadTest, ABufferIsWaitedFor) {
  Options options;
  options.engine.max_transfer_bytes = 20 << 10;
  StartWithFullHost(options);
  auto first = Read(20);
  ExpectBlock(first, 20);
  const auto second = *Begin(20);
  EXPECT_EQ(second->Next(clock_.Now()).status().code(), StatusCode::kDeadlineExceeded);
  first->hold.reset();
  ExpectBlock(second->Next(clock_.Now()), 20);
}

TEST_F(StoredReadTest, AReadWaitsUntilItsDeadlineAndGoesOn) {
  for (const bool full : {false, true}) {
    if (full) {
      StartWithFullHost();
    } else {
      StartOnDisk(20);
    }
    disk_->HoldCallbacks();
    auto read = *Begin(20);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(read->Next(clock_.Now()).status().code(), StatusCode::kDeadlineExceeded);
    }
    disk_->HoldCallbacks(false);
    EXPECT_EQ(disk_->RunHeld(), 1u);
    ExpectBlock(read->Next(clock_.Now()), 20);
    read.reset();
    engine_->CloseSession(session_);
    engine_.reset();
    disk_.reset();
  }
}

TEST_F(StoredReadTest, AReadMayEndWhileItsBytesAreUnderWay) {
  for (const bool full : {false, true}) {
    if (full) {
      StartWithFullHost();
    } else {
      StartOnDisk(20);
    }
    const uint64_t used = host_->GetStats().used_bytes;
    disk_->HoldCallbacks();
    auto read = *Begin(20);
    EXPECT_EQ(read->Next(clock_.Now()).status().code(), StatusCode::kDeadlineExceeded);
    read.reset();
    EXPECT_EQ(disk_->held(), 1u);
    // The places that it reads may not be given to others before the read is over. The pin keeps
    // the path.
    ASSERT_OK(engine_->DropNamespace(ns_));
    EXPECT_EQ(disk_->GetStats().extents, 20u);
    disk_->HoldCallbacks(false);
    EXPECT_EQ(disk_->RunHeld(), 1u);
    clock_.Advance(milliseconds(100));
    engine_->Tick();
    EXPECT_EQ(disk_->GetStats().extents, 0u);
    EXPECT_LE(host_->GetStats().used_bytes, used);
    engine_->CloseSession(session_);
    engine_.reset();
    disk_.reset();
  }
}

TEST_F(StoredReadTest, ABlockStaysWhileItIsReadAndWhileItsBytesAreHeld) {
  Options options;
  options.disk = false;
  options.host_bytes = 256 << 10;
  StartWithoutDevice(options);
  ASSERT_OK(Store(1, std::nullopt));
  auto read = *Begin(1);
  StoreAlone(100, 140);
  auto block = read->Next(clock_.Now());
  ExpectBlock(block, 1);
  read.reset();
  StoreAlone(200, 240);
  ExpectBlock(block, 1);
  block->hold.reset();
  StoreAlone(300, 340);
  EXPECT_EQ(Begin(1).status().code(), StatusCode::kNotFound);
}

TEST_F(StoredReadTest, ABlockThatABumpHidMeanwhileIsNotGiven) {
  Start();
  StoreChain(1, 2);
  const auto read = *Begin(1);
  const auto before = Read(2);
  ASSERT_OK(engine_->BumpEpoch(ns_));
  EXPECT_EQ(read->Next(clock_.Now()).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(Begin(2).status().code(), StatusCode::kNotFound);
  ExpectBlock(before, 2);  // Given before the bump.
}

TEST_F(StoredReadTest, ABlockThatIsDroppedUnderAReadIsNotGiven) {
  StartWithFullHost();
  disk_->HoldCallbacks();
  const auto read = *Begin(20);
  EXPECT_EQ(read->Next(clock_.Now()).status().code(), StatusCode::kDeadlineExceeded);
  ASSERT_OK(engine_->DropNamespace(ns_));
  disk_->HoldCallbacks(false);
  disk_->RunHeld();
  EXPECT_EQ(read->Next(clock_.Now()).status().code(), StatusCode::kNotFound);
}

TEST_F(StoredReadTest, ADamagedBlockIsRemoved) {
  for (const bool full : {false, true}) {
    if (full) {
      StartWithFullHost();
    } else {
      StartOnDisk(20);
    }
    disk_->CorruptReads(1);
    EXPECT_EQ(Read(20).status().code(), StatusCode::kDataLoss);
    EXPECT_EQ(Begin(20).status().code(), StatusCode::kNotFound);
    EXPECT_EQ(engine_->GetStats().corrupt_blocks, 1u);
    EXPECT_EQ(BlocksIn(TierKind::kDisk), 19u);
    engine_->CloseSession(session_);
    engine_.reset();
    disk_.reset();
  }
}

TEST_F(StoredReadTest, ABlockThatIsLostOnDiskIsRemoved) {
  StartWithFullHost();
  disk_->FailReads(1, Errorf(StatusCode::kNotFound, "gone"));
  EXPECT_EQ(Read(20).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(BlocksIn(TierKind::kDisk), 19u);
}

TEST_F(StoredReadTest, ABlockThatCannotBeReadNowStays) {
  StartWithFullHost();
  disk_->FailReads(1, Errorf(StatusCode::kResourceExhausted, "the queue is full"));
  EXPECT_EQ(Read(20).status().code(), StatusCode::kResourceExhausted);
  ExpectBlock(Read(20), 20);
}

TEST_F(StoredReadTest, ABadHeaderInHostGivesTheCopyOnDisk) {
  StartWithoutDevice();
  StoreChain(1, 2);
  Flush();
  const auto places = Places(2);
  ASSERT_EQ(places.size(), 1u);
  host_->Map({places[0].extent, places[0].bytes})[0] ^= std::byte{1};
  ExpectBlock(Read(2), 2);
  EXPECT_EQ(engine_->GetStats().corrupt_blocks, 1u);
  ExpectBlock(Read(2), 2);
}

TEST_F(StoredReadTest, ReadsAreChargedUntilTheirBytesAreLetGo) {
  Options options;
  options.memory = HeadersOf(64 << 10);
  Start(options);
  StoreChain(1, 1);
  std::vector<StoredBlock> held;
  Result<StoredBlock> block = Read(1);
  for (; block.ok() && held.size() < 1000; block = Read(1)) held.push_back(*std::move(block));
  EXPECT_THAT(block.status(),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("limits.fetch_headers")));
  EXPECT_GT(held.size(), 10u);
  // A fetch that has begun finds room all the same.
  const uint64_t used = account_->used(MemoryItem::kFetchHeaders);
  EXPECT_LE(used, uint64_t{48 << 10});
  EXPECT_GT(used, held.size() * sizeof(StoredBlock));
  held.clear();
  EXPECT_EQ(account_->used(MemoryItem::kFetchHeaders), 0u);
  ExpectBlock(Read(1), 1);
}

TEST_F(StoredReadTest, ABlockOfMorePartsThanASourceMayBringIsRefused) {
  constexpr uint16_t kMany = SourceBlock::kMaxParts + 1;
  spec_.layout.form = NativeLayout{
      .groups = {{.count = kMany, .planes = {{"k", 1, 8, DType::kF16}, {"v", 1, 8, DType::kF16}}}},
      .kv_heads = 1};
  Options options;
  options.host_bytes = 32 << 20;
  StartWithoutDevice(options);
  for (uint16_t layer = 0; layer < kMany; ++layer) {
    ASSERT_OK(
        Store(1, std::nullopt, format::PartRect{layer, static_cast<uint16_t>(layer + 1), 0, 1}));
  }
  EXPECT_THAT(Begin(1).status(), StatusIs(StatusCode::kResourceExhausted, HasSubstr("1025 parts")));
}

// Reads from the engine of another node, as the calls between members do.
class EngineSource final : public BlockSource {
 public:
  void Give(CacheEngine* from) { from_ = from; }

  void Locate(const Digest& fingerprint, std::span<const BlockKey> keys, TimePoint,
              LocateDone done) override {
    Located located;
    if (const auto found = from_->Exists(fingerprint, keys); found.ok()) {
      SourceRun run;
      while (run.blocks < keys.size() && (*found)[run.blocks]) ++run.blocks;
      if (run.blocks > 0) located.runs.push_back(run);
    }
    done(std::move(located));
  }
  void Read(const Digest& fingerprint, const BlockKey& key, TimePoint, BlockSink* sink,
            ReadDone done) override {
    done(Copy(fingerprint, key, sink));
  }

 private:
  Status Copy(const Digest& fingerprint, const BlockKey& key, BlockSink* sink) const {
    CAIRN_ASSIGN_OR_RETURN(const auto read, from_->for_peers()->ReadStored(fingerprint, key));
    CAIRN_ASSIGN_OR_RETURN(const StoredBlock block, read->Next(TimePoint()));
    CAIRN_ASSIGN_OR_RETURN(const auto rooms, sink->Begin(block));
    for (size_t i = 0; i < rooms.size(); ++i) {
      std::memcpy(rooms[i].data(), block.bytes[i].data(), rooms[i].size());
    }
    return sink->Finish();
  }

  CacheEngine* from_ = nullptr;
};

// Each test writes to one node, and then reads through a second one.
class BetweenEnginesTest : public StoredReadTest {
 protected:
  void TearDown() override {
    StoredReadTest::TearDown();
    first_engine_.reset();
  }
  // The node so far becomes the other member, and a new, empty one asks it.
  void StartSecond(Options options = {}) {
    first_engine_ = std::move(engine_);
    first_host_ = std::move(host_);
    first_disk_ = std::move(disk_);
    between_.Give(first_engine_.get());
    options.source = &between_;
    options.timers = &timers_;
    StartWithoutDevice(options);
  }
  // The second node's copy of block n after it was read, as its own peers get it.
  Bytes CopyOf(uint64_t n) {
    const MatchResult match = Ask({TestKey(n)})->result();
    EXPECT_EQ(match.matched_blocks, 1u);
    auto stream = SourceTest::Begin(match);
    for (;;) {
      const auto item = stream->Next(TimePoint());
      EXPECT_OK(item);
      if (!item.ok() || !*item) break;
      EXPECT_TRUE(std::holds_alternative<FetchedSlice>(**item));
    }
    const auto copy = Read(n);
    EXPECT_OK(copy);
    return copy.ok() && copy->bytes.size() == 1 ? StoredReadTest::Copy(copy->bytes[0]) : Bytes();
  }

  EngineSource between_;
  std::unique_ptr<HostTier> first_host_;
  std::unique_ptr<FakeTier> first_disk_;
  std::unique_ptr<CacheEngine> first_engine_;
};

TEST_F(BetweenEnginesTest, BlocksPassAsTheyWereSealed) {
  StartWithoutDevice();
  StoreChain(1, 3);
  ASSERT_OK(StoreInParts(4, 3, AllCells()));
  StartSecond();
  const MatchResult match = Ask(TestKeys(1, 4))->result();
  ASSERT_EQ(match.matched_blocks, 4u);
  EXPECT_TRUE(TakeAll(match, 1).failures.empty());
  EXPECT_EQ(ServeAndVerify(1, 4), 4u);
  for (uint64_t n = 1; n <= 4; ++n) ExpectBlock(Read(n), n);
  EXPECT_EQ(Read(3)->parent, TestKey(2));
}

TEST_F(BetweenEnginesTest, BlocksPassFromADiskWithAndWithoutRoomInHost) {
  StartWithFullHost();
  StartSecond();
  const MatchResult match = Ask(TestKeys(1, 20))->result();
  ASSERT_EQ(match.matched_blocks, 20u);
  EXPECT_TRUE(TakeAll(match, 1).failures.empty());
  EXPECT_EQ(ServeAndVerify(1, 20), 20u);
}

TEST_F(BetweenEnginesTest, ADamagedBlockIsAMissOnBothNodes) {
  StartOnDisk(2);
  StartSecond();
  const MatchResult match = Ask(TestKeys(1, 2))->result();
  first_disk_->CorruptReads(1);
  const Fetched fetched = TakeAll(match, 1);
  EXPECT_EQ(fetched.failures, (std::map<uint32_t, MissReason>{{0, MissReason::kCorrupt}}));
  EXPECT_EQ(fetched.slices.size(), kLayers);
  EXPECT_EQ(first_engine_->GetStats().corrupt_blocks, 1u);
}

// A lossy recipe whose blocks are encoded again on their way to disk.
class LadderBetweenEnginesTest : public BetweenEnginesTest {
 protected:
  static constexpr format::PartRect kAll{0, 3, 0, 2};
  LadderBetweenEnginesTest() { spec_ = EncodedSpec("host=int8>disk=turbo:bits=4"); }

  static Bytes PartOf(const std::vector<std::string>& chain, uint64_t n) {
    return EncodedPart(chain, n, kAll, /*at_start=*/n == 1);
  }
  static Bytes Pushed(uint64_t n) { return PartOf({"int8"}, n); }
  static Bytes OnDisk(uint64_t n) { return PartOf({"int8", "turbo:bits=4"}, n); }
  void Push(uint64_t first, uint64_t last) {
    for (uint64_t n = first; n <= last; ++n) {
      const Bytes bytes = Pushed(n);
      ReservePartRequest part;
      part.key = TestKey(n);
      if (n > 1) part.parent = TestKey(n - 1);
      part.first_position = (n - 1) * 32;
      part.part = kAll;
      part.bytes = bytes.size();
      const auto id = Reserve(part);
      ASSERT_OK(id);
      ASSERT_OK(engine_->Write(session_, *id, 0, bytes));
      ASSERT_OK(CommitOne(*id));
    }
  }
};

TEST_F(LadderBetweenEnginesTest, ABlockInHostPassesInItsFormAndIsEncodedAgainThere) {
  StartWithoutDevice();
  Push(1, 2);
  StartSecond();
  for (const uint64_t n : {1u, 2u}) EXPECT_EQ(CopyOf(n), Pushed(n)) << n;
  // The first block's first token is kept apart by the lower rung: the copy knows that it begins
  // the sequence.
  Flush();
  CrashAndRestart();
  for (const uint64_t n : {1u, 2u}) EXPECT_EQ(CopyOf(n), OnDisk(n)) << n;
}

TEST_F(LadderBetweenEnginesTest, ABlockThatWasPromotedPassesInTheFormOfTheDisk) {
  StartWithoutDevice();
  Push(1, 2);
  Flush();
  CrashAndRestart();
  StartSecond();
  for (const uint64_t n : {1u, 2u}) EXPECT_EQ(CopyOf(n), OnDisk(n)) << n;
  EXPECT_EQ(first_engine_->GetStats().tiers[TierKind::kHost]->blocks, 2u);
  EXPECT_EQ(engine_->GetStats().tiers[TierKind::kDisk]->blocks, 2u);
}

TEST_F(LadderBetweenEnginesTest, ABlockThatIsReadPastHostPassesInTheFormOfTheDisk) {
  Options options;
  options.host_bytes = 256 << 10;
  StartWithoutDevice(options);
  Push(1, 40);
  Flush();
  CrashAndRestart();
  ASSERT_TRUE(Match(TestKeys(1, 39)).lease);
  const uint64_t in_host = BlocksIn(TierKind::kHost);
  ASSERT_LT(in_host, 39u);
  StartSecond();
  EXPECT_EQ(CopyOf(40), OnDisk(40));
  EXPECT_EQ(first_engine_->GetStats().tiers[TierKind::kHost]->blocks, in_host);
}

}  // namespace
}  // namespace cairn::cache::testing
