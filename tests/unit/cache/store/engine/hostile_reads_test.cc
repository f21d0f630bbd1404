// Requests of readers that cost the node more than they should: repeated keys, headers of many
// blocks, blocks of many parts. The memory that they hold is counted.

#include "services/cache/store/engine/in_place.h"
#include "services/cache/store/state/memory_account.h"
#include "tests/unit/cache/store/engine/engine_fixture.h"

namespace cairn::cache {
namespace {

using testing::EngineTest;
using testing::Fetched;
using ::testing::HasSubstr;
using testing::kHeads;
using testing::StatusIs;
using testing::TestKey;
using testing::TestKeys;

class HostileReadsTest : public EngineTest {
 protected:
  // An opaque namespace whose blocks have `parts` parts of `bytes` bytes.
  void UseOpaque(uint32_t parts, uint64_t bytes) {
    spec_ = testing::TestSpec("opaque");
    spec_.layout.form = OpaqueLayout{"engine", bytes, parts};
    part_bytes_ = bytes;
  }
  Status StoreOpaque(uint64_t n) {
    for (uint32_t head = 0; head < spec_.layout.KvHeads(); ++head) {
      const format::PartRect rect{0, 1, static_cast<uint16_t>(head),
                                  static_cast<uint16_t>(head + 1)};
      const std::vector<uint64_t> lengths = {part_bytes_};
      std::vector<std::byte> bytes(format::PartBytes(lengths), static_cast<std::byte>(n + head));
      format::SealPart(bytes, format::Codec::kOpaque, rect,
                       static_cast<uint16_t>(spec_.layout.block_tokens), lengths);
      ReservePartRequest part;
      part.key = TestKey(n);
      part.part = rect;
      part.bytes = bytes.size();
      CAIRN_ASSIGN_OR_RETURN(const ReservationId id, Reserve(part));
      CAIRN_RETURN_IF_ERROR(engine_->Write(session_, id, 0, bytes));
      CAIRN_RETURN_IF_ERROR(CommitOne(id));
    }
    return OkStatus();
  }

  uint64_t part_bytes_ = 0;
};

TEST_F(HostileReadsTest, ARepeatedKeyIsAMiss) {
  Start();
  ASSERT_OK(Store(1, std::nullopt));
  const std::vector<BlockKey> keys(1000, TestKey(1));
  const MatchResult match = Match(keys);
  EXPECT_EQ(match.matched_blocks, 1u);
  EXPECT_EQ(match.miss_reason, MissReason::kAbsent);
  ASSERT_TRUE(match.lease);
  EXPECT_EQ(Fetch(*match.lease).slices.size(), testing::kLayers);
  const auto exists = engine_->Exists(ns_, keys);
  ASSERT_OK(exists);
  for (const auto& tier : *exists) EXPECT_TRUE(tier.has_value());
}

TEST_F(HostileReadsTest, LeasesLeaveNothingInTheIndex) {
  StartWithoutDevice();  // Blocks that are copied to a device while they are read take more.
  StoreChain(1, 4);
  const uint64_t before = engine_->GetStats().index_bytes;
  std::vector<LeaseId> leases;
  for (int i = 0; i < 2000; ++i) leases.push_back(*Match(TestKeys(1, 4)).lease);
  // The path is a candidate among those that are leased now, and was one among the others.
  EXPECT_LE(engine_->GetStats().index_bytes, before + 32);
  EXPECT_OK(engine_->Release(session_, leases));
  EXPECT_EQ(engine_->GetStats().index_bytes, before);
}

MemoryAccount::Bounds Bounded(MemoryItem item, uint64_t bytes) {
  MemoryAccount::Bounds bounds = MemoryAccount::Unbounded();
  bounds[static_cast<size_t>(item)] = bytes;
  return bounds;
}

TEST_F(HostileReadsTest, LeasesAreChargedAndRefusedAtTheBound) {
  StartWithoutDevice({.memory = Bounded(MemoryItem::kLeases, 64 << 10)});
  const MemoryAccount& memory = *account_;
  StoreChain(1, 4);
  const auto keys = TestKeys(1, 4);
  const MatchRequest request{.session = session_, .fingerprint = ns_, .keys = keys, .trace = ""};
  std::vector<LeaseId> leases;
  for (;;) {
    const auto match = engine_->Match(request);
    if (!match.ok()) {
      EXPECT_THAT(match, StatusIs(StatusCode::kResourceExhausted, HasSubstr("leases")));
      break;
    }
    leases.push_back(*match->lease);
    ASSERT_LT(leases.size(), 1000u);
  }
  EXPECT_GT(leases.size(), 30u);
  EXPECT_LE(memory.used(MemoryItem::kLeases), 64u << 10);
  EXPECT_OK(engine_->Release(session_, leases));
  EXPECT_EQ(memory.used(MemoryItem::kLeases), 0u);
  const MatchResult match = Match(keys);
  ASSERT_TRUE(match.lease);
  EXPECT_OK(engine_->Release(session_, {&*match.lease, 1}));
}

// The record that a fetch keeps of a block does not grow with the layers of its parts.
TEST_F(HostileReadsTest, AFetchOfManyLayersHoldsNoTableOfThem) {
  std::get<NativeLayout>(spec_.layout.form).groups = {
      {.count = 1, .planes = {{"k", kHeads, 32, DType::kF16}}}, {.count = 20'000, .planes = {}}};
  StartWithoutDevice({.host_bytes = 64 << 20, .memory = MemoryAccount::Unbounded()});
  const MemoryAccount& memory = *account_;
  StoreChain(1, 20);
  const MatchResult match = Match(TestKeys(1, 20));
  ASSERT_EQ(match.matched_blocks, 20u);
  uint64_t most = 0;
  size_t slices = 0;
  on_slice_ = [&](const FetchedSlice& slice) {
    slices += !slice.data.empty();
    most = std::max(most, memory.used(MemoryItem::kFetchHeaders));
  };
  const Fetched fetched = Fetch(*match.lease);
  EXPECT_TRUE(fetched.failures.empty());
  EXPECT_EQ(slices, 20u);
  EXPECT_GT(most, 0u);
  EXPECT_LT(most, 64u << 10);  // The tables have 9.6 MB.
  EXPECT_EQ(memory.used(MemoryItem::kFetchHeaders), 0u);
  EXPECT_OK(engine_->Release(session_, {&*match.lease, 1}));
}

TEST_F(HostileReadsTest, AFetchOfManyBlocksStaysWithinTheBound) {
  constexpr uint64_t kBlocks = 600;
  constexpr uint64_t kBound = 256 << 10;
  StartWithoutDevice(
      {.host_bytes = 32 << 20, .memory = Bounded(MemoryItem::kFetchHeaders, kBound)});
  const MemoryAccount& memory = *account_;
  StoreChain(1, kBlocks);
  const MatchResult match = Match(TestKeys(1, kBlocks));
  uint64_t most = 0;
  on_slice_ = [&](const FetchedSlice&) {
    most = std::max(most, memory.used(MemoryItem::kFetchHeaders));
  };
  const Fetched fetched = Fetch(*match.lease);
  EXPECT_TRUE(fetched.failures.empty());
  EXPECT_EQ(fetched.slices.size(), kBlocks * testing::kLayers);
  EXPECT_LE(most, kBound);
  EXPECT_EQ(memory.used(MemoryItem::kFetchHeaders), 0u);
  // Windows of more than one block, each layer by layer.
  EXPECT_EQ(fetched.order[0], std::pair(0u, 0u));
  EXPECT_EQ(fetched.order[1], std::pair(0u, 1u));

  // Fetches at the same time: the last ones are refused, and those that began end.
  std::vector<std::unique_ptr<FetchStream>> streams;
  for (;;) {
    auto stream = engine_->Fetch({.session = session_, .lease = *match.lease, .trace = ""});
    if (!stream.ok()) {
      EXPECT_THAT(stream, StatusIs(StatusCode::kResourceExhausted, HasSubstr("fetch_headers")));
      break;
    }
    streams.push_back(*std::move(stream));
    ASSERT_LT(streams.size(), 100u);
  }
  EXPECT_GT(streams.size(), 2u);
  on_slice_ = nullptr;
  for (const auto& stream : streams) {
    EXPECT_EQ(Drain(*stream).slices.size(), kBlocks * testing::kLayers);
  }
  streams.clear();
  EXPECT_EQ(memory.used(MemoryItem::kFetchHeaders), 0u);
  EXPECT_OK(engine_->Release(session_, {&*match.lease, 1}));
}

// On a polling thread, the deadline of a call has passed.
TEST_F(HostileReadsTest, AWindowIsMadeInPortions) {
  constexpr uint64_t kBlocks = 1500;
  StartWithoutDevice({.host_bytes = 64 << 20});
  StoreChain(1, kBlocks);
  const MatchResult match = Match(TestKeys(1, kBlocks));
  auto stream = engine_->Fetch({.session = session_, .lease = *match.lease, .trace = ""});
  ASSERT_OK(stream);
  EXPECT_THAT((*stream)->Next(TimePoint()),
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("not read yet")));
  const auto first = (*stream)->Next(TimePoint());
  ASSERT_OK(first);
  EXPECT_EQ(Drain(**stream).slices.size() + 1, kBlocks * testing::kLayers);
  stream->reset();
  EXPECT_OK(engine_->Release(session_, {&*match.lease, 1}));
}

// Headers of one block that take long to read.
TEST_F(HostileReadsTest, LongHeadersAreNotReadInAHurry) {
  std::get<NativeLayout>(spec_.layout.form).groups = {
      {.count = 1, .planes = {{"k", kHeads, 32, DType::kF16}}}, {.count = 60'000, .planes = {}}};
  StartWithoutDevice({.host_bytes = 64 << 20});
  StoreChain(1, 2);
  const MatchResult match = Match(TestKeys(1, 2));
  auto stream = engine_->Fetch({.session = session_, .lease = *match.lease, .trace = ""});
  ASSERT_OK(stream);
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT((*stream)->Next(TimePoint()),
                StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("not read yet")));
  }
  size_t slices = 0;
  for (;;) {
    const auto item = (*stream)->Next(TimePoint::max());
    ASSERT_OK(item);
    if (!item->has_value()) break;
    slices += !std::get<FetchedSlice>(**item).data.empty();
  }
  EXPECT_EQ(slices, 2u);
  stream->reset();
  EXPECT_OK(engine_->Release(session_, {&*match.lease, 1}));
}

// It would need more than a quarter of the bound, and could wait for it forever.
TEST_F(HostileReadsTest, BlocksOfTooManyPartsForTheBoundAreRefused) {
  UseOpaque(/*parts=*/1000, /*bytes=*/100);
  StartWithoutDevice(
      {.host_bytes = 64 << 20, .memory = Bounded(MemoryItem::kFetchHeaders, 128 << 10)});
  for (uint64_t n = 1; n <= 3; ++n) ASSERT_OK(StoreOpaque(n));
  const MatchResult match = Match(TestKeys(1, 3));
  const Fetched fetched = Fetch(*match.lease);
  EXPECT_TRUE(fetched.slices.empty());
  ASSERT_EQ(fetched.failures.size(), 3u);
  for (const auto& [block, reason] : fetched.failures) EXPECT_EQ(reason, MissReason::kRefused);
  EXPECT_EQ(account_->used(MemoryItem::kFetchHeaders), 0u);
  EXPECT_OK(engine_->Release(session_, {&*match.lease, 1}));
}

TEST_F(HostileReadsTest, BlocksOfManyPartsWaitTheirTurnAtTheDisk) {
  constexpr uint64_t kBlocks = 4;
  UseOpaque(/*parts=*/1024, /*bytes=*/100);
  StartWithoutDevice({.host_bytes = 64 << 20, .disk_bytes = 64 << 20});
  for (uint64_t n = 1; n <= kBlocks; ++n) ASSERT_OK(StoreOpaque(n));
  Flush();
  CrashAndRestart();
  disk_->LimitReads(300);
  disk_->HoldCallbacks();
  const MatchResult match = Match(TestKeys(1, kBlocks));
  ASSERT_EQ(match.matched_blocks, kBlocks);
  disk_->RunHeld();
  disk_->HoldCallbacks(false);
  EXPECT_LE(disk_->most_reads_held(), 300u);
  EXPECT_GT(disk_->most_reads_held(), 100u);
  EXPECT_EQ(disk_->GetStats().io_errors, 0u);
  const Fetched fetched = Fetch(*match.lease);
  EXPECT_TRUE(fetched.failures.empty());
  EXPECT_EQ(fetched.slices.size(), kBlocks * 1024);
  EXPECT_OK(engine_->Release(session_, {&*match.lease, 1}));
}

// A reader in place gets no more places than it has room for, whatever its blocks hold.
TEST_F(HostileReadsTest, PlacesEndAtTheRoomForThem) {
  UseOpaque(/*parts=*/64, /*bytes=*/100);
  StartWithoutDevice({.host_bytes = 16 << 20});
  for (uint64_t n = 1; n <= 4; ++n) ASSERT_OK(StoreOpaque(n));
  const auto keys = TestKeys(1, 4);
  std::vector<PlacedPart> places;
  const auto match = engine_->in_place()->MatchInPlace(
      {.session = session_, .fingerprint = ns_, .keys = keys, .trace = ""}, 100, &places);
  ASSERT_OK(match);
  EXPECT_EQ(match->matched_blocks, 4u);
  EXPECT_EQ(places.size(), 100u);
  EXPECT_EQ(places.back().block, 1u);
  places.clear();
  ASSERT_OK(engine_->in_place()->Locate(
      {.session = session_, .lease = *match->lease, .block_begin = 1, .max_places = 70}, &places));
  EXPECT_EQ(places.size(), 70u);
  EXPECT_EQ(places.front().block, 1u);
  EXPECT_EQ(places.back().block, 2u);
  EXPECT_OK(engine_->Release(session_, {&*match->lease, 1}));
}

}  // namespace
}  // namespace cairn::cache
