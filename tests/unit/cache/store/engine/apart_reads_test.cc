// Fetches of few layers, and of rows, from blocks that are not in host: header and slices are read
// from the disk, and not whole blocks. Bytes that were read are verified as ever.

#include "services/cache/store/mover/transfer_budget.h"
#include "tests/unit/cache/store/engine/engine_fixture.h"

namespace cairn::cache::testing {
namespace {

constexpr uint32_t kManyLayers = 32;
constexpr uint64_t kSlice = 32 << 10;  // 1 MiB a block.
constexpr uint64_t kPage = 4096;
constexpr uint32_t kTokens = 64;

class ApartReadsTest : public EngineTest {
 protected:
  // Blocks 1 to `last` on disk, and host full of what others store.
  void StartWithBlocksOnDisk(uint64_t last, bool ranges = true) {
    spec_.layout.block_tokens = kTokens;
    spec_.layout.form = NativeLayout{
        .groups = {{.count = kManyLayers,
                    .planes = {{"k", kHeads, 64, DType::kF16}, {"v", kHeads, 64, DType::kF16}}}},
        .kv_heads = kHeads};
    disk_ = std::make_unique<FakeTier>(FakeTier::Options{
        .capacity_bytes = 1 << 30, .max_extent_bytes = 8 << 20, .reads_ranges = ranges});
    StartWithoutDevice({.host_bytes = 8 << 20});
    StoreChain(1, last);
    Flush();
    FillHost();
    ASSERT_EQ(InHost(1, last), 0u);
  }
  // A lease keeps it full: what is promoted takes no place of leased blocks.
  void FillHost() {
    clock_.Advance(std::chrono::seconds(1));
    for (uint64_t n = 1001; n <= 1008; ++n) {
      // After a restart they are on disk, and the match brings them.
      (void)Store(n, n == 1001 ? std::nullopt : std::optional(n - 1));
      Flush();
    }
    const MatchResult match = Match(TestKeys(1001, 1007));
    ASSERT_TRUE(match.lease);
    full_ = *match.lease;
  }
  uint64_t InHost(uint64_t first, uint64_t last) {
    const auto keys = TestKeys(first, last);
    const auto found = engine_->Exists(ns_, keys);
    return static_cast<uint64_t>(std::count(found->begin(), found->end(), TierKind::kHost));
  }
  uint64_t ReadFromDisk() const { return disk_->GetStats().read_bytes; }
  LeaseId Lease(uint64_t first, uint64_t last) {
    const MatchResult match = Match(TestKeys(first, last));
    EXPECT_EQ(match.matched_blocks, last - first + 1);
    return *match.lease;
  }
  Fetched FetchLayers(LeaseId lease, uint32_t begin, uint32_t end) {
    auto stream = engine_->Fetch(
        {.session = session_, .lease = lease, .layer_begin = begin, .layer_end = end, .trace = ""});
    EXPECT_OK(stream);
    return stream.ok() ? Drain(**stream) : Fetched{};
  }
  // Rows of the first heads of each block, which are then in rows_.
  size_t FetchRows(LeaseId lease, uint32_t layer, uint32_t blocks, uint64_t mask,
                   uint32_t heads = kHeads) {
    std::vector<RowGroup> groups;
    for (uint32_t b = 0; b < blocks; ++b) {
      for (uint32_t h = 0; h < heads; ++h) groups.push_back({b, h, {&mask, 1}});
    }
    rows_.clear();
    auto stream = engine_->Fetch({.session = session_,
                                  .lease = lease,
                                  .layer_begin = layer,
                                  .layer_end = layer + 1,
                                  .trace = "",
                                  .rows = groups});
    EXPECT_OK(stream);
    size_t bytes = 0;
    while (stream.ok()) {
      auto item = (*stream)->Next(clock_.Now() + std::chrono::seconds(10));
      EXPECT_OK(item);
      if (!item.ok() || !item->has_value()) break;
      if (const auto* failure = std::get_if<FetchFailure>(&**item)) {
        failures_[failure->block] = failure->reason;
        continue;
      }
      const auto& rows = std::get<FetchedRows>(**item);
      EXPECT_EQ(rows.xxh3, HashRows(rows, {&mask, 1}, rows.data));
      bytes += rows.data.size();
      rows_[{rows.block, rows.head}].assign(rows.data.begin(), rows.data.end());
    }
    return bytes;
  }
  void Release(LeaseId lease) { ASSERT_OK(engine_->Release(session_, {&lease, 1})); }

  using Rows = std::map<std::pair<uint32_t, uint32_t>, std::vector<std::byte>>;
  // These rows of all those of a block.
  static std::vector<std::byte> Chosen(const std::vector<std::byte>& all, uint64_t mask) {
    std::vector<std::byte> out;
    for (const size_t plane : {size_t{0}, all.size() / 2}) {
      const size_t row_bytes = all.size() / 2 / kTokens;
      for (uint32_t t = 0; t < kTokens; ++t) {
        if ((mask >> t & 1) == 0) continue;
        const auto row = all.begin() + static_cast<ptrdiff_t>(plane + t * row_bytes);
        out.insert(out.end(), row, row + static_cast<ptrdiff_t>(row_bytes));
      }
    }
    return out;
  }

  LeaseId full_ = 0;
  Rows rows_;
  std::map<uint32_t, MissReason> failures_;
};

TEST_F(ApartReadsTest, RowsReadHeaderAndSlice) {
  StartWithBlocksOnDisk(20);
  const LeaseId lease = Lease(1, 20);
  for (const uint32_t layer : {0u, 5u, 31u}) {
    const uint64_t before = ReadFromDisk();
    const size_t asked = FetchRows(lease, layer, 20, UINT64_MAX);
    EXPECT_EQ(asked, 20 * kSlice);
    EXPECT_LE(ReadFromDisk() - before, 3 * asked);
    EXPECT_LE(ReadFromDisk() - before, 20 * (kSlice + 2 * kPage));
  }
  // For one row, too: the hash is that of a slice.
  const uint64_t before = ReadFromDisk();
  FetchRows(lease, 7, 20, 1);
  EXPECT_LE(ReadFromDisk() - before, 20 * (kSlice + 2 * kPage));
  EXPECT_TRUE(failures_.empty());
  Release(lease);
}

// Once a slice was compared, its pages have hashes of their own.
TEST_F(ApartReadsTest, RowsOfASliceThatWasReadTakeTheirPagesAlone) {
  StartWithBlocksOnDisk(20);
  const LeaseId lease = Lease(1, 20);
  EXPECT_EQ(FetchRows(lease, 5, 20, UINT64_MAX), 20 * kSlice);
  const Rows all = rows_;
  for (const uint64_t mask : {uint64_t{1}, uint64_t{0xff} << 8, uint64_t{1} << 63 | 1}) {
    const auto units = static_cast<uint64_t>(2 * std::popcount(mask & 0x80000001'00000001));
    const uint64_t before = ReadFromDisk();
    FetchRows(lease, 5, 20, mask, /*heads=*/1);
    EXPECT_LE(ReadFromDisk() - before, 20 * 3 * std::max<uint64_t>(2, units) * kPage) << mask;
    EXPECT_GT(ReadFromDisk(), before);
    ASSERT_EQ(rows_.size(), 20u);
    for (const auto& [group, rows] : rows_) {
      EXPECT_EQ(rows, Chosen(all.at(group), mask)) << group.first;
    }
  }
  EXPECT_TRUE(failures_.empty());
  // Another lease has compared nothing yet.
  const LeaseId other = Lease(1, 20);
  const uint64_t before = ReadFromDisk();
  FetchRows(other, 5, 20, 1, /*heads=*/1);
  EXPECT_GE(ReadFromDisk() - before, 20 * kSlice);
  Release(other);
  Release(lease);
}

// The budget is charged for what is read.
TEST_F(ApartReadsTest, TheHeaderIsReadOnceForALease) {
  StartWithBlocksOnDisk(20);
  const LeaseId lease = Lease(1, 20);
  FetchRows(lease, 4, 20, UINT64_MAX);
  const uint64_t before = ReadFromDisk();
  FetchRows(lease, 6, 20, UINT64_MAX);
  EXPECT_LE(ReadFromDisk() - before, 20 * (kSlice + kPage));
  Release(lease);
}

TEST_F(ApartReadsTest, DamageOfAPageIsSeenAndTheCopyGoes) {
  StartWithBlocksOnDisk(4);
  const LeaseId lease = Lease(1, 4);
  FetchRows(lease, 5, 4, UINT64_MAX);
  disk_->CorruptReads(1);
  FetchRows(lease, 5, 4, 1, /*heads=*/1);
  EXPECT_EQ(rows_.size(), 3u);
  ASSERT_EQ(failures_.size(), 1u);
  EXPECT_EQ(failures_.begin()->second, MissReason::kCorrupt);
  EXPECT_EQ(engine_->GetStats().corrupt_blocks, 1u);
  Release(lease);
}

TEST_F(ApartReadsTest, SlicesOfOneLayerAreTheSameBytes) {
  StartWithBlocksOnDisk(20);
  const LeaseId lease = Lease(1, 20);
  const uint64_t before = ReadFromDisk();
  for (const uint32_t layer : {3u, 30u}) {
    const Fetched fetched = FetchLayers(lease, layer, layer + 2);
    EXPECT_TRUE(fetched.failures.empty());
    ASSERT_EQ(fetched.slices.size(), 40u);
  }
  EXPECT_LE(ReadFromDisk() - before, 2 * 20 * (2 * kSlice + 2 * kPage));
  on_slice_ = [](const FetchedSlice& slice) { EXPECT_TRUE(IsSliceOf(1 + slice.block, slice)); };
  FetchLayers(lease, 12, 13);
  Release(lease);
}

// The record on disk names the block, and the header names the slices: neither may be another's.
TEST_F(ApartReadsTest, DamageIsSeenAndTheCopyGoes) {
  for (const bool header : {true, false}) {
    StartWithBlocksOnDisk(4);
    const LeaseId lease = Lease(1, 4);
    // The slice table of the block that was written first.
    if (header) {
      ASSERT_TRUE(disk_->CorruptStored({1, 0}, 100));
    }
    on_slice_ = [](const FetchedSlice& slice) { EXPECT_TRUE(IsSliceOf(1 + slice.block, slice)); };
    if (!header) {
      disk_->HoldCallbacks();
      auto stream = engine_->Fetch(
          {.session = session_, .lease = lease, .layer_begin = 9, .layer_end = 10, .trace = ""});
      ASSERT_OK(stream);
      EXPECT_FALSE((*stream)->Next(clock_.Now()).ok());
      disk_->RunHeld();
      EXPECT_FALSE((*stream)->Next(clock_.Now()).ok());
      disk_->CorruptReads(1);
      disk_->RunHeld();
      disk_->HoldCallbacks(false);
      const Fetched fetched = Drain(**stream);
      EXPECT_EQ(fetched.failures.size(), 1u);
      EXPECT_EQ(fetched.slices.size(), 3u);
    } else {
      EXPECT_EQ(FetchLayers(lease, 9, 10).failures.size(), 1u);
    }
    EXPECT_EQ(engine_->GetStats().corrupt_blocks, 1u);
    Release(lease);
    Release(full_);
    TearDown();
    host_.reset();
    disk_.reset();
  }
}

TEST_F(ApartReadsTest, MixedUpExtentsAreSeen) {
  StartWithBlocksOnDisk(2);
  const LeaseId lease = Lease(1, 2);
  ASSERT_TRUE(disk_->MixUpTwo());
  const Fetched fetched = FetchLayers(lease, 4, 5);
  EXPECT_EQ(fetched.failures.size(), 2u);
  EXPECT_TRUE(fetched.slices.empty());
  Release(lease);
}

// After a restart the tier knows no heads: the first read of a block is that of all of it.
TEST_F(ApartReadsTest, WhatWasNotReadSinceTheStartIsReadWholeOnce) {
  StartWithBlocksOnDisk(4);
  CrashAndRestart();
  FillHost();
  const LeaseId lease = Lease(1, 4);
  on_slice_ = [](const FetchedSlice& slice) { EXPECT_TRUE(IsSliceOf(1 + slice.block, slice)); };
  EXPECT_EQ(FetchLayers(lease, 4, 5).slices.size(), 4u);
  const uint64_t before = ReadFromDisk();
  EXPECT_EQ(FetchLayers(lease, 5, 6).slices.size(), 4u);
  EXPECT_LE(ReadFromDisk() - before, 4 * (kSlice + 2 * kPage));
  Release(lease);
}

TEST_F(ApartReadsTest, RowsOfABlockThatWasReadWholeTakeTheirPagesAlone) {
  StartWithBlocksOnDisk(4);
  CrashAndRestart();
  FillHost();
  const LeaseId lease = Lease(1, 4);
  FetchRows(lease, 4, 4, 1, /*heads=*/1);
  const uint64_t before = ReadFromDisk();
  for (const uint32_t layer : {4u, 17u}) {
    FetchRows(lease, layer, 4, uint64_t{1} << 40, /*heads=*/1);
    EXPECT_EQ(rows_.size(), 4u);
  }
  EXPECT_LE(ReadFromDisk() - before, 2 * 4 * 3 * 2 * kPage);
  EXPECT_TRUE(failures_.empty());
  Release(lease);
}

TEST_F(ApartReadsTest, ATierThatReadsNoRangesIsReadWhole) {
  StartWithBlocksOnDisk(4, /*ranges=*/false);
  const LeaseId lease = Lease(1, 4);
  on_slice_ = [](const FetchedSlice& slice) { EXPECT_TRUE(IsSliceOf(1 + slice.block, slice)); };
  EXPECT_EQ(FetchLayers(lease, 4, 5).slices.size(), 4u);
  Release(lease);
}

// A block whose slices are wanted again and again is worth a place in host, if there is one.
TEST_F(ApartReadsTest, WhatIsReadAgainIsPromoted) {
  StartWithBlocksOnDisk(4);
  const LeaseId lease = Lease(1, 4);
  Release(full_);
  EXPECT_EQ(FetchLayers(lease, 4, 5).slices.size(), 4u);
  EXPECT_EQ(InHost(1, 4), 0u);
  EXPECT_EQ(FetchLayers(lease, 4, 5).slices.size(), 4u);
  EXPECT_EQ(InHost(1, 4), 4u);
  const uint64_t before = ReadFromDisk();
  EXPECT_EQ(FetchLayers(lease, 5, 6).slices.size(), 4u);
  EXPECT_EQ(ReadFromDisk(), before);
  Release(lease);
}

TEST_F(ApartReadsTest, ASessionHasAtMostHalfOfTheBudget) {
  Wakeup progress;
  TransferBudget budget(100, &progress);
  auto large = budget.TryTake(80, 1);
  EXPECT_NE(large, nullptr) << "its first";
  EXPECT_EQ(budget.TryTake(1, 1), nullptr);
  EXPECT_FALSE(budget.short_of_room()) << "it waits for itself";
  EXPECT_NE(budget.TryTake(20, 2), nullptr);
  large.reset();
  auto a = budget.TryTake(30, 1), b = budget.TryTake(20, 1);
  EXPECT_NE(b, nullptr);
  EXPECT_EQ(budget.TryTake(1, 1), nullptr);
  EXPECT_NE(budget.TryTake(50, 2), nullptr);
  a.reset();
  EXPECT_NE(budget.TryTake(30, 1), nullptr);
}

}  // namespace
}  // namespace cairn::cache::testing
