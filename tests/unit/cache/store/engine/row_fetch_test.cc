// Fetches of rows: which bytes come, what is verified and how often, and what fails.
#include "tests/unit/cache/store/engine/engine_fixture.h"

namespace cairn::cache {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::HasSubstr;
using testing::kHeads;
using testing::kLayers;
using testing::TestKey;
using testing::TestKeys;
using testing::TestPart;

constexpr uint64_t kSliceBytes = 4096;

class RowFetchTest : public testing::EngineTest {
 protected:
  struct Rows {
    std::vector<FetchedRows> groups;
    std::map<uint32_t, MissReason> failures;
  };
  Result<Rows> FetchRows(LeaseId lease, uint32_t layer, const std::vector<RowGroup>& groups) {
    CAIRN_ASSIGN_OR_RETURN(const auto stream, engine_->Fetch({.session = session_,
                                                              .lease = lease,
                                                              .layer_begin = layer,
                                                              .layer_end = layer + 1,
                                                              .rows = groups}));
    Rows rows;
    for (;;) {
      CAIRN_ASSIGN_OR_RETURN(const auto item,
                             stream->Next(clock_.Now() + std::chrono::seconds(10)));
      if (!item) return rows;
      if (const auto* failure = std::get_if<FetchFailure>(&*item)) {
        rows.failures[failure->block] = failure->reason;
      } else {
        rows.groups.push_back(std::get<FetchedRows>(*item));
      }
    }
  }
  // The rows of a block of a chain that begins at 1, in one part or in parts of one head.
  std::vector<std::byte> Expected(const RowGroup& group, uint32_t layer, bool by_head) const {
    format::PartRect rect = Whole();
    if (by_head) {
      rect.head_begin = static_cast<uint16_t>(group.head);
      rect.head_end = static_cast<uint16_t>(group.head + 1);
    }
    const std::vector<std::byte> part = TestPart(spec_.layout, 1 + group.block, rect);
    const auto slice = std::span(part).subspan(format::HeaderBytes(kLayers) +
                                               layer * kSliceBytes / (by_head ? kHeads : 1));
    const uint32_t heads = by_head ? 1 : kHeads;
    std::vector<std::byte> rows;
    for (uint32_t plane = 0; plane < 2; ++plane) {
      for (uint32_t token = 0; token < 16; ++token) {
        if ((group.mask[0] >> token & 1) == 0) continue;
        const size_t at = ((plane * heads + group.head - rect.head_begin) * 16 + token) * 64;
        rows.insert(rows.end(), slice.begin() + static_cast<ptrdiff_t>(at),
                    slice.begin() + static_cast<ptrdiff_t>(at + 64));
      }
    }
    return rows;
  }
  void ExpectRows(const Rows& rows, const std::vector<RowGroup>& groups, uint32_t layer,
                  bool by_head = false) {
    ASSERT_EQ(rows.groups.size(), groups.size());
    for (const FetchedRows& got : rows.groups) {
      const auto group = std::find_if(groups.begin(), groups.end(), [&](const RowGroup& g) {
        return g.block == got.block && g.head == got.head;
      });
      ASSERT_NE(group, groups.end());
      const std::vector<std::byte> expected = Expected(*group, layer, by_head);
      EXPECT_TRUE(std::equal(got.data.begin(), got.data.end(), expected.begin(), expected.end()))
          << "block " << got.block << " head " << got.head;
      EXPECT_EQ(got.xxh3, HashRows(got, group->mask, got.data));
      EXPECT_EQ(got.layer, layer);
    }
  }
  // Changes a byte of the block's slice of a layer, in the host tier.
  void Damage(LeaseId lease, uint32_t block, uint32_t layer) {
    auto stream = engine_->Fetch({.session = session_,
                                  .lease = lease,
                                  .block_begin = block,
                                  .block_end = block + 1,
                                  .layer_begin = layer,
                                  .layer_end = layer + 1,
                                  .reader_verifies = true});
    ASSERT_OK(stream);
    auto item = (*stream)->Next(clock_.Now());
    ASSERT_OK(item);
    const auto data = std::get<FetchedSlice>(**item).data;
    const_cast<std::byte&>(data[100]) ^= std::byte{1};
  }
  uint64_t checked() { return engine_->GetStats().row_checked_bytes; }

  static constexpr uint64_t kFew = 0b1000'0000'0110, kAll = 0xffff, kOne = 1;
  const std::vector<RowGroup> few_ = {
      {0, 1, {&kFew, 1}}, {2, 0, {&kOne, 1}}, {2, 1, {&kAll, 1}}, {5, 0, {&kFew, 1}}};
};

TEST_F(RowFetchTest, OnlyWantedRowsComeAndEachSliceIsHashedOnceALease) {
  StartWithoutDevice();
  StoreChain(1, 6);
  const MatchResult match = Match(TestKeys(1, 6));
  for (const uint32_t layer : {0u, 3u, 0u, 3u}) {
    const auto rows = FetchRows(*match.lease, layer, few_);
    ASSERT_OK(rows);
    ExpectRows(*rows, few_, layer);
    EXPECT_TRUE(rows->failures.empty());
  }
  const EngineStats stats = engine_->GetStats();
  EXPECT_EQ(stats.row_checked_bytes, 2 * 3 * kSliceBytes);
  EXPECT_EQ(stats.fetched_rows, 4 * (3 + 1 + 16 + 3));
  EXPECT_EQ(stats.fetched_bytes, stats.fetched_rows * 2 * 64);
  // Another lease looks again.
  const MatchResult again = Match(TestKeys(1, 6));
  ASSERT_OK(FetchRows(*again.lease, 0, few_));
  EXPECT_EQ(checked(), 3 * 3 * kSliceBytes);
  for (const LeaseId lease : {*match.lease, *again.lease}) {
    ASSERT_OK(engine_->Release(session_, {&lease, 1}));
  }
}

TEST_F(RowFetchTest, PartsOfSeveralWritersGiveTheirHeads) {
  StartWithoutDevice();
  for (uint64_t n = 1; n <= 6; ++n) {
    const auto parent = n == 1 ? std::nullopt : std::optional(n - 1);
    ASSERT_OK(Store(n, parent, format::PartRect{0, kLayers, 0, 1}));
    ASSERT_OK(Store(n, parent, format::PartRect{0, kLayers, 1, 2}));
  }
  const MatchResult match = Match(TestKeys(1, 6));
  const auto rows = FetchRows(*match.lease, 2, few_);
  ASSERT_OK(rows);
  ExpectRows(*rows, few_, 2, /*by_head=*/true);
  ASSERT_OK(engine_->Release(session_, {&*match.lease, 1}));
}

TEST_F(RowFetchTest, RowsOfBlocksOnDiskComeAfterThey) {
  StartWithoutDevice();
  StoreChain(1, 6);
  Flush();
  CrashAndRestart();
  EXPECT_EQ(BlocksIn(TierKind::kHost), 0u);
  const MatchResult match = Match(TestKeys(1, 6));
  ASSERT_EQ(match.matched_blocks, 6u);
  const auto rows = FetchRows(*match.lease, 1, few_);
  ASSERT_OK(rows);
  ExpectRows(*rows, few_, 1);
  ASSERT_OK(engine_->Release(session_, {&*match.lease, 1}));
}

TEST_F(RowFetchTest, ADamagedSliceGivesNoRows) {
  StartWithoutDevice({.disk = false});
  StoreChain(1, 6);
  const MatchResult match = Match(TestKeys(1, 6));
  Damage(*match.lease, 2, 0);
  const auto rows = FetchRows(*match.lease, 0, few_);
  ASSERT_OK(rows);
  EXPECT_THAT(rows->failures, ::testing::ElementsAre(std::pair(2u, MissReason::kCorrupt)));
  EXPECT_EQ(rows->groups.size(), 2u);
  for (const FetchedRows& group : rows->groups) EXPECT_NE(group.block, 2u);
  ASSERT_OK(engine_->Release(session_, {&*match.lease, 1}));
}

TEST_F(RowFetchTest, ADamagedCopyInHostIsReplacedByTheOneOnDisk) {
  StartWithoutDevice();
  StoreChain(1, 6);
  Flush();
  const MatchResult match = Match(TestKeys(1, 6));
  Damage(*match.lease, 2, 0);
  const auto rows = FetchRows(*match.lease, 0, few_);
  ASSERT_OK(rows);
  ExpectRows(*rows, few_, 0);
  ASSERT_OK(engine_->Release(session_, {&*match.lease, 1}));
}

TEST_F(RowFetchTest, ADropUnderTheLeaseEndsIt) {
  StartWithoutDevice();
  StoreChain(1, 6);
  const MatchResult match = Match(TestKeys(1, 6));
  auto stream = engine_->Fetch(
      {.session = session_, .lease = *match.lease, .layer_begin = 0, .layer_end = 1, .rows = few_});
  ASSERT_OK(stream);
  ASSERT_OK(engine_->DropNamespace(ns_));
  // The stream under way gives failures, never other rows.
  for (;;) {
    auto item = (*stream)->Next(clock_.Now());
    ASSERT_OK(item);
    if (!item->has_value()) break;
    EXPECT_TRUE(std::holds_alternative<FetchFailure>(**item));
  }
  EXPECT_THAT(FetchRows(*match.lease, 0, few_).status(),
              StatusIs(StatusCode::kNotFound, HasSubstr("lease")));
}

TEST_F(RowFetchTest, ABumpUnderTheLeaseIsSeen) {
  StartWithoutDevice();
  StoreChain(1, 6);
  const MatchResult match = Match(TestKeys(1, 6));
  ASSERT_OK(engine_->BumpEpoch(ns_));
  EXPECT_THAT(FetchRows(*match.lease, 0, few_).status(),
              StatusIs(StatusCode::kNotFound, HasSubstr("lease")));
}

TEST_F(RowFetchTest, GroupsAreChargedToTheAccount) {
  MemoryAccount::Bounds bounds = MemoryAccount::Unbounded();
  bounds[static_cast<size_t>(MemoryItem::kFetchHeaders)] = 64 << 10;
  StartWithoutDevice({.memory = bounds});
  StoreChain(1, 6);
  const MatchResult match = Match(TestKeys(1, 6));
  EXPECT_OK(FetchRows(*match.lease, 0, few_));
  // More groups than there is memory for cannot be asked of six blocks, but streams can be many.
  std::vector<std::unique_ptr<FetchStream>> streams;
  Status status;
  while (status.ok() && streams.size() < 1000) {
    auto stream = engine_->Fetch({.session = session_,
                                  .lease = *match.lease,
                                  .layer_begin = 0,
                                  .layer_end = 1,
                                  .rows = few_});
    status = stream.status();
    if (status.ok()) streams.push_back(*std::move(stream));
  }
  EXPECT_THAT(status, StatusIs(StatusCode::kResourceExhausted, HasSubstr("fetch_headers")));
  streams.clear();
  EXPECT_OK(FetchRows(*match.lease, 0, few_));
  ASSERT_OK(engine_->Release(session_, {&*match.lease, 1}));
}

}  // namespace
}  // namespace cairn::cache
