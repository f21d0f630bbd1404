// Blocks that are encoded again on their way to disk, and come back as they lie there.

#include <thread>

#include "services/cache/store/engine/in_place.h"
#include "tests/unit/cache/store/block/encoded_parts.h"
#include "tests/unit/cache/store/engine/engine_fixture.h"

namespace cairn::cache::testing {
namespace {

using ::testing::HasSubstr;

using Chain = std::vector<std::string>;

const Chain kPushed = {"int8"};
const Chain kOnDisk = {"int8", "turbo:bits=4"};
constexpr format::PartRect kAll{0, 3, 0, 2};

class LadderTest : public EngineTest {
 protected:
  LadderTest() { spec_ = EncodedSpec("host=int8>disk=turbo:bits=4"); }

  // Block 1 begins the sequence; n follows n - 1.
  Status Push(uint64_t n, const std::vector<std::byte>& bytes,
              const format::PartRect& rect = kAll) {
    ReservePartRequest part;
    part.key = TestKey(n);
    if (n > 1) part.parent = TestKey(n - 1);
    part.first_position = (n - 1) * 32;
    part.part = rect;
    part.bytes = bytes.size();
    const auto id = Reserve(part);
    if (!id.ok()) return id.status();
    CAIRN_RETURN_IF_ERROR(engine_->Write(session_, *id, 0, bytes));
    return CommitOne(*id);
  }
  static std::vector<std::byte> PartOf(const Chain& chain, uint64_t n,
                                       const format::PartRect& rect = kAll) {
    return EncodedPart(chain, n, rect, /*at_start=*/n == 1);
  }
  void PushBlocks(uint64_t first, uint64_t last) {
    for (uint64_t n = first; n <= last; ++n) ASSERT_OK(Push(n, PartOf(kPushed, n))) << n;
  }

  static void ExpectSlice(const FetchedSlice& slice, uint64_t n, const Chain& chain) {
    const auto part = PartOf(chain, n, slice.part);
    const auto header = format::ParseHeader(part);
    ASSERT_OK(header);
    const auto& entry = header->slices[slice.layer - slice.part.layer_begin];
    EXPECT_EQ(slice.codec, header->codec);
    ASSERT_EQ(slice.data.size(), entry.length) << "block " << n << " layer " << slice.layer;
    EXPECT_EQ(std::memcmp(slice.data.data(), part.data() + entry.offset, entry.length), 0)
        << "block " << n << " layer " << slice.layer;
  }
  // Blocks first .. last come whole, those up to `last_on_disk` as they lie on disk, the others as
  // they were pushed.
  MatchResult ExpectServed(uint64_t first, uint64_t last, uint64_t last_on_disk) {
    MatchResult match = Match(TestKeys(first, last));
    EXPECT_EQ(match.matched_blocks, last - first + 1);
    if (!match.lease) return match;
    std::map<uint64_t, uint32_t> cells;
    on_slice_ = [&](const FetchedSlice& slice) {
      const uint64_t n = first + slice.block;
      ExpectSlice(slice, n, n <= last_on_disk ? kOnDisk : kPushed);
      cells[n] += slice.part.head_end - slice.part.head_begin;
    };
    EXPECT_TRUE(Fetch(*match.lease).failures.empty());
    on_slice_ = nullptr;
    EXPECT_EQ(cells.size(), last - first + 1);
    for (const auto& [n, count] : cells) EXPECT_EQ(count, kAll.Cells()) << n;
    EXPECT_OK(engine_->Release(session_, {&*match.lease, 1}));
    return match;
  }
  void ExpectPushedForm(uint64_t first, uint64_t last) { ExpectServed(first, last, 0); }
  void ExpectDiskForm(uint64_t first, uint64_t last) { ExpectServed(first, last, last); }
  std::vector<PlacedPart> Places(uint64_t first, uint64_t last, LeaseId* lease) {
    const auto keys = TestKeys(first, last);
    std::vector<PlacedPart> places;
    MatchRequest request{.session = session_, .fingerprint = ns_, .keys = keys, .trace = ""};
    const auto match = engine_->in_place()->MatchInPlace(request, SIZE_MAX, &places);
    EXPECT_OK(match);
    *lease = *match->lease;
    return places;
  }
  // Flips a bit of what lies in host.
  void Damage(uint64_t n) {
    LeaseId lease = 0;
    const auto places = Places(n, n, &lease);
    ASSERT_EQ(places.size(), 1u);
    host_->Map({places[0].extent, places[0].bytes}).back() ^= std::byte{1};
    ASSERT_OK(engine_->Release(session_, {&lease, 1}));
  }
  uint64_t BlocksIn(TierKind tier) { return engine_->GetStats().tiers[tier]->blocks; }

  ManualExecutor manual_;
};

TEST_F(LadderTest, DemotionEncodesAgainAndHostKeepsWhatWasPushed) {
  Start();
  PushBlocks(1, 3);
  uint64_t pushed = 0, on_disk = 0;
  for (uint64_t n = 1; n <= 3; ++n) {
    pushed += PartOf(kPushed, n).size();
    on_disk += PartOf(kOnDisk, n).size();
  }
  const EngineStats stats = engine_->GetStats();
  EXPECT_EQ(stats.tiers[TierKind::kDisk]->blocks, 3u);
  EXPECT_EQ(stats.tiers[TierKind::kDisk]->used_bytes, on_disk);
  EXPECT_EQ(stats.recoded_bytes_in, pushed);
  EXPECT_EQ(stats.recoded_bytes_out, on_disk);
  EXPECT_LT(on_disk, pushed * 6 / 10);
  EXPECT_EQ(engine_->ListNamespaces("")[0].bytes, pushed);
  ExpectPushedForm(1, 3);
}

TEST_F(LadderTest, AfterARestartTheLowerFormIsServedAndStays) {
  StartWithoutDevice();
  PushBlocks(1, 3);
  Flush();
  CrashAndRestart();
  uint64_t on_disk = 0;
  for (uint64_t n = 1; n <= 3; ++n) on_disk += PartOf(kOnDisk, n).size();
  for (const TierKind from : {TierKind::kDisk, TierKind::kHost}) {
    const MatchResult match = ExpectServed(1, 3, 3);
    EXPECT_EQ(match.bytes, on_disk);
    ASSERT_EQ(match.tiers.size(), 1u);
    EXPECT_EQ(match.tiers[0].tier, from);
  }
  const EngineStats stats = engine_->GetStats();
  EXPECT_EQ(stats.promoted_blocks, 3u);
  EXPECT_EQ(stats.tiers[TierKind::kHost]->blocks, 3u);
  // Nothing was encoded or written a second time, and a writer has nothing to bring.
  Flush();
  EXPECT_EQ(engine_->GetStats().recoded_bytes_in, 0u);
  EXPECT_EQ(disk_->GetStats().extents, 3u);
  EXPECT_EQ(Push(2, PartOf(kPushed, 2)).code(), StatusCode::kAlreadyExists);
}

TEST_F(LadderTest, OneFetchBringsBothForms) {
  Start();
  PushBlocks(1, 3);
  Flush();
  CrashAndRestart();
  PushBlocks(4, 5);
  const MatchResult match = ExpectServed(1, 5, 3);
  ASSERT_EQ(match.tiers.size(), 2u);
  EXPECT_EQ(match.tiers[1].bytes, PartOf(kPushed, 4).size() + PartOf(kPushed, 5).size());
  // Readers on this machine find the same bytes where they are told.
  LeaseId lease = 0;
  const auto places = Places(1, 5, &lease);
  ASSERT_EQ(places.size(), 5u);
  for (const PlacedPart& place : places) {
    const auto expected = PartOf(place.block < 3 ? kOnDisk : kPushed, place.block + 1);
    const auto bytes = host_->Map({place.extent, place.bytes});
    ASSERT_EQ(bytes.size(), expected.size());
    EXPECT_EQ(std::memcmp(bytes.data(), expected.data(), expected.size()), 0);
    EXPECT_OK(engine_->in_place()->Report(session_, lease, place.block));
  }
  EXPECT_EQ(engine_->GetStats().corrupt_blocks, 0u);  // Both forms are sound.
  ASSERT_OK(engine_->Release(session_, {&lease, 1}));
}

TEST_F(LadderTest, PartsOfSeveralRanksAreEncodedEachByItself) {
  Start();
  const format::PartRect left{0, 3, 0, 1}, right{0, 3, 1, 2};
  for (uint64_t n = 1; n <= 2; ++n) {
    ASSERT_OK(Push(n, PartOf(kPushed, n, right), right));
    ASSERT_OK(Push(n, PartOf(kPushed, n, left), left));
  }
  ExpectPushedForm(1, 2);
  Flush();
  CrashAndRestart();
  ExpectDiskForm(1, 2);
  EXPECT_EQ(disk_->GetStats().extents, 4u);
}

TEST_F(LadderTest, APrefixLargerThanTheArenaIsServedPastIt) {
  Options options;
  options.host_bytes = 256 << 10;
  options.engine.max_transfer_bytes = 64 << 10;
  Start(options);
  PushBlocks(1, 40);
  Flush();
  const EngineStats stats = engine_->GetStats();
  EXPECT_GT(stats.demoted_blocks, 10u);
  EXPECT_EQ(stats.tiers[TierKind::kHost]->evicted_bytes,
            stats.tiers[TierKind::kHost]->evicted_blocks * PartOf(kPushed, 2).size());
  CrashAndRestart();
  ExpectDiskForm(1, 40);
}

TEST_F(LadderTest, ABlockThatWasDamagedBeforeItsCopyIsRemoved) {
  executor_ = &manual_;
  Start();
  manual_.RunAll();
  PushBlocks(1, 2);
  Damage(2);
  manual_.RunAll();
  const EngineStats stats = engine_->GetStats();
  EXPECT_EQ(stats.corrupt_blocks, 1u);
  EXPECT_EQ(stats.blocks, 1u);
  EXPECT_EQ(stats.unflushed_bytes, 0u);
  EXPECT_EQ(stats.tiers[TierKind::kDisk]->extents, 1u);
  const MatchResult match = Match(TestKeys(1, 2), false);
  EXPECT_EQ(match.matched_blocks, 1u);
  EXPECT_EQ(match.miss_reason, MissReason::kCorrupt);
  // It can be stored again.
  ASSERT_OK(Push(2, PartOf(kPushed, 2)));
  manual_.RunAll();
  EXPECT_EQ(BlocksIn(TierKind::kDisk), 2u);
  EXPECT_OK(engine_->Flush(clock_.Now() + std::chrono::seconds(5)));
}

TEST_F(LadderTest, BytesThatNoEncoderWroteAreRemovedToo) {
  Start();
  const std::vector<std::byte> junk(1000, std::byte{0x7c});
  ASSERT_OK(Push(1, SealSlices({junk, {}, junk}, format::Codec::kInt8, kAll)));
  EXPECT_EQ(engine_->GetStats().corrupt_blocks, 1u);
  EXPECT_EQ(engine_->GetStats().blocks, 0u);
}

TEST_F(LadderTest, ABlockThatIsDamagedInHostComesFromDisk) {
  StartWithoutDevice();
  PushBlocks(1, 2);
  Damage(2);
  const MatchResult match = Match(TestKeys(1, 2));
  on_slice_ = [&](const FetchedSlice& slice) {
    const bool damaged = slice.block == 1 && slice.layer == 2;
    ExpectSlice(slice, slice.block + 1, damaged ? kOnDisk : kPushed);
  };
  const Fetched fetched = Fetch(*match.lease);
  on_slice_ = nullptr;
  EXPECT_TRUE(fetched.failures.empty());
  EXPECT_EQ(fetched.slices.size(), 6u);
  EXPECT_EQ(engine_->GetStats().corrupt_blocks, 1u);
  ASSERT_OK(engine_->Release(session_, {&*match.lease, 1}));
  ExpectDiskForm(2, 2);
}

TEST_F(LadderTest, NumbersThatCannotBeEncodedStayInHost) {
  spec_.recipe = "host=raw>disk=int8";
  Start();
  const std::vector<std::byte> infinities(2 * 2 * 2 * 32 * 64, std::byte{0x7c});
  ASSERT_OK(Push(1, SealSlices({infinities, {}, infinities}, format::Codec::kRaw, kAll)));
  ASSERT_OK(Push(2, PartOf({"raw"}, 2)));
  EngineStats stats = engine_->GetStats();
  EXPECT_EQ(stats.unencodable_copies, 1u);
  EXPECT_EQ(stats.corrupt_blocks, 0u);
  EXPECT_EQ(stats.unflushed_bytes, 0u);
  EXPECT_EQ(stats.tiers[TierKind::kHost]->blocks, 2u);
  EXPECT_EQ(stats.tiers[TierKind::kDisk]->blocks, 1u);
  // It fails nobody's flush, because no disk could take it, and it is counted once.
  for (int i = 0; i < 2; ++i) EXPECT_OK(engine_->Flush(clock_.Now() + std::chrono::seconds(5)));
  EXPECT_EQ(engine_->GetStats().unencodable_copies, 1u);
}

TEST_F(LadderTest, WritersBringTheFirstRungAlone) {
  Start();
  EXPECT_THAT(Push(1, PartOf(kOnDisk, 1)),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("codec")));
}

TEST_F(LadderTest, AFailedWriteIsTriedAgain) {
  Start();
  disk_->FailWrites(1, Errorf(StatusCode::kUnavailable, "hiccup"));
  PushBlocks(1, 1);
  EXPECT_EQ(BlocksIn(TierKind::kDisk), 0u);
  clock_.Advance(std::chrono::milliseconds(150));
  engine_->Tick();
  EXPECT_EQ(BlocksIn(TierKind::kDisk), 1u);
  Flush();
  CrashAndRestart();
  ExpectDiskForm(1, 1);
}

TEST_F(LadderTest, WithoutADiskNothingIsEncoded) {
  Options options;
  options.disk = false;
  Start(options);
  PushBlocks(1, 2);
  ExpectPushedForm(1, 2);
  EXPECT_EQ(engine_->GetStats().recoded_bytes_in, 0u);
}

TEST_F(LadderTest, TheWriteBudgetCountsWhatIsWritten) {
  Options options;
  // A second's worth is three blocks as they lie on disk, and one as they were pushed.
  options.engine.disk_write_budget = 3 * PartOf(kOnDisk, 2).size() + 1000;
  options.engine.disk_flush_after = Duration(0);
  Start(options);
  PushBlocks(1, 5);
  EXPECT_EQ(engine_->GetStats().tiers[TierKind::kDisk]->blocks, 3u);
  EXPECT_EQ(engine_->GetStats().over_budget_copies, 2u);
}

TEST_F(LadderTest, LaddersThatTheNodeCannotClimbAreRefused) {
  Start();
  const auto refused = [this](const std::string& recipe) {
    return engine_->OpenNamespace(EncodedSpec(recipe), false).status();
  };
  EXPECT_THAT(refused("device=int8>host=int4"),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("rungs only for host and disk")));
  EXPECT_THAT(refused("host=turbo:bits=4>disk=turbo:bits=2"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("different codecs")));
}

TEST_F(LadderTest, ManyThreadsSeeEachBlockWholeInOneOfItsForms) {
  ThreadPool pool({.name = "moves", .threads = 2});
  executor_ = &pool;
  Options options;
  options.host_bytes = 256 << 10;  // 13 blocks as pushed.
  options.disk_bytes = 400 << 10;  // 40 as they lie on disk.
  options.engine.max_transfer_bytes = 64 << 10;
  Start(options);
  constexpr uint64_t kBlocks = 24;
  std::vector<std::vector<std::byte>> pushed(1), on_disk(1);
  for (uint64_t n = 1; n <= kBlocks; ++n) {
    pushed.push_back(PartOf(kPushed, n));
    on_disk.push_back(PartOf(kOnDisk, n));
  }
  std::atomic<bool> writing{true};
  std::atomic<uint64_t> served{0};
  std::thread writer([&] {
    for (int round = 0; round < 12 || (served == 0 && round < 1000); ++round) {
      // Dropped or evicted blocks are stored again.
      for (uint64_t n = 1; n <= kBlocks; ++n) (void)Push(n, pushed[n]);
      if (round % 4 == 3) (void)engine_->BumpEpoch(ns_);
      engine_->Tick();
    }
    writing = false;
  });
  std::thread reader([&] {
    const SessionId session = *engine_->OpenSession("reader");
    const auto keys = TestKeys(1, kBlocks);
    while (writing) {
      const auto match =
          engine_->Match({.session = session, .fingerprint = ns_, .keys = keys, .trace = ""});
      if (!match.ok() || !match->lease) continue;
      auto stream = engine_->Fetch({.session = session, .lease = *match->lease, .trace = ""});
      while (stream.ok()) {
        auto item = (*stream)->Next(clock_.Now() + std::chrono::seconds(20));
        ASSERT_OK(item);
        if (!*item) break;
        const auto* slice = std::get_if<FetchedSlice>(&**item);
        if (slice == nullptr) continue;
        const auto& part =
            (slice->codec == format::Codec::kInt8 ? pushed : on_disk)[slice->block + 1];
        const format::SliceEntry entry = format::ParseHeader(part)->slices[slice->layer];
        ASSERT_EQ(slice->data.size(), entry.length);
        ASSERT_EQ(std::memcmp(slice->data.data(), part.data() + entry.offset, entry.length), 0);
        ++served;
      }
      (void)engine_->Release(session, {&*match->lease, 1});
    }
    engine_->CloseSession(session);
  });
  writer.join();
  reader.join();
  EXPECT_GT(served, 0u);
  EXPECT_EQ(engine_->GetStats().corrupt_blocks, 0u);
  ASSERT_OK(engine_->DropNamespace(ns_));
  const TimePoint deadline = SteadyClock::Get().Now() + std::chrono::seconds(120);
  while (host_->GetStats().used_bytes + disk_->GetStats().used_bytes > 0 &&
         SteadyClock::Get().Now() < deadline) {
    engine_->Tick();
    std::this_thread::yield();
  }
  EXPECT_EQ(host_->GetStats().used_bytes, 0u);
  EXPECT_EQ(disk_->GetStats().used_bytes, 0u);
  pool.Stop();
  engine_->CloseSession(session_);
  engine_.reset();
}

NamespaceSpec LadderOf(uint32_t layers, uint32_t heads, uint32_t dim) {
  NamespaceSpec spec = TestSpec("bomb");
  spec.recipe = "host=int8>disk=turbo:bits=4";
  spec.layout.block_tokens = 256;
  spec.layout.form = NativeLayout{
      .groups = {{.count = layers,
                  .planes = {{"k", heads, dim, DType::kF16}, {"v", heads, dim, DType::kF16}}}},
      .kv_heads = heads};
  return spec;
}

TEST_F(LadderTest, OneWhoseLayersAreLargerThanAPartIsRefused) {
  Start();
  EXPECT_OK(engine_->OpenNamespace(LadderOf(80, 512, 64), false));
  EXPECT_THAT(engine_->OpenNamespace(LadderOf(65535, 1024, 128), false).status(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("field 'recipe'")));
}

TEST_F(LadderTest, ATinyPartThatDeclaresMuchFailsItsCopyAlone) {
  constexpr uint16_t kMany = 65535;
  spec_ = LadderOf(kMany, 512, 64);
  Options options;
  options.host_bytes = 16 << 20;
  StartWithoutDevice(options);
  const std::vector<uint64_t> lengths(kMany, 1);
  std::vector<std::byte> part(format::PartBytes(lengths));
  const format::PartRect all{0, kMany, 0, 512};
  format::SealPart(part, format::Codec::kInt8, all, 256, lengths);
  EXPECT_OK(Push(1, part, all));
  EXPECT_EQ(engine_->GetStats().unencodable_copies, 1u);
  EXPECT_EQ(BlocksIn(TierKind::kDisk), 0u);
  EXPECT_EQ(Match({TestKey(1)}).matched_blocks, 1u);
}

}  // namespace
}  // namespace cairn::cache::testing
