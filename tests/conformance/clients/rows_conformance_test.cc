// The promises of every CacheClient about FetchRows.
#include <map>
#include <random>

#include "cairn/client/paired_match.h"
#include "common/status/matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/conformance/clients/worlds.h"
#include "tests/unit/clients/cpp/parts.h"

namespace cairn::client {
namespace {

using cairn::testing::StatusIs;
using client::testing::Chain;
using client::testing::SliceData;
using client::testing::SmallSpec;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr uint32_t kTokens = 16, kHeads = 6, kRowBytes = 16;  // The sizes of SmallSpec.

// Compares rows with those of the slices that were pushed.
class CheckingRowSink final : public RowSink {
 public:
  CheckingRowSink(const NamespaceSpec& spec, const Chain& chain, std::span<const RowGroup> groups,
                  uint32_t layer)
      : spec_(spec), chain_(chain), groups_(groups), layer_(layer) {}

  Status OnRows(size_t number, const RowsInfo& info, std::span<const std::byte> rows) override {
    ++got[number];
    const RowGroup& group = groups_[number];
    EXPECT_EQ(info.block, group.block);
    EXPECT_EQ(info.head, group.head);
    EXPECT_EQ(info.layer, layer_);
    EXPECT_EQ(info.codec, format::Codec::kRaw);
    std::vector<std::byte> expected;
    for (const PartToPush& part : chain_.parts) {
      if (part.key != chain_.keys[group.block] || group.head < part.rect.head_begin ||
          group.head >= part.rect.head_end) {
        continue;
      }
      const std::vector<std::byte> slice =
          SliceData(spec_, chain_.keys[group.block], layer_, part.rect);
      EXPECT_EQ(info.slice_xxh3, Xxh3(slice));
      const uint32_t heads = part.rect.head_end - part.rect.head_begin;
      for (uint32_t plane = 0; plane < 2; ++plane) {
        for (uint32_t token = 0; token < kTokens; ++token) {
          if ((group.mask[0] >> token & 1) == 0) continue;
          const size_t head = plane * heads + group.head - part.rect.head_begin;
          const auto row =
              slice.begin() + static_cast<ptrdiff_t>((head * kTokens + token) * kRowBytes);
          expected.insert(expected.end(), row, row + kRowBytes);
        }
      }
    }
    EXPECT_TRUE(std::equal(rows.begin(), rows.end(), expected.begin(), expected.end()))
        << "block " << group.block << " head " << group.head << " layer " << layer_;
    return on_rows;
  }
  void OnRowsFailed(size_t group, MissReason reason) override { failed.emplace(group, reason); }

  std::map<size_t, int> got;
  std::multimap<size_t, MissReason> failed;
  Status on_rows;

 private:
  const NamespaceSpec& spec_;
  const Chain& chain_;
  const std::span<const RowGroup> groups_;
  const uint32_t layer_;
};

// Groups with masks of their own.
struct Groups {
  void Add(uint32_t block, uint32_t head, uint64_t mask) {
    masks.push_back(std::make_unique<uint64_t>(mask));
    groups.push_back({block, head, {masks.back().get(), 1}});
  }
  std::vector<std::unique_ptr<uint64_t>> masks;
  std::vector<RowGroup> groups;
};

template <typename WorldType>
class RowsConformance : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(client_->OpenNamespace(spec_, {.deadline = seconds(60)}));
    auto pushed = client_->Push(Fingerprint(spec_), chain_.parts, {.deadline = seconds(60)});
    ASSERT_OK(pushed);
    for (const Status& status : *pushed) ASSERT_OK(status);
    auto match = client_->Match(Fingerprint(spec_), chain_.keys, {.deadline = seconds(60)});
    ASSERT_OK(match);
    ASSERT_EQ(match->matched_blocks, chain_.keys.size());
    lease_ = std::move(match->lease);
  }
  Status Fetch(const Groups& groups, uint32_t layer, RowSink& sink) {
    return client_->FetchRows(lease_, layout_, layer, groups.groups, sink,
                              {.progress = seconds(60)});
  }

  WorldType world_;
  const std::shared_ptr<CacheClient> client_ = world_.Client();
  const NamespaceSpec spec_ = SmallSpec();
  const RowLayout layout_ = *RowLayout::Of(spec_);
  // Two ranks wrote each block.
  const Chain chain_{spec_, 9, {{0, 4, 0, 2}, {0, 4, 2, 6}}};
  Lease lease_;
};

TYPED_TEST_SUITE(RowsConformance, Worlds, WorldNames);

TYPED_TEST(RowsConformance, RowsAreThoseOfTheirSlices) {
  std::mt19937_64 random(7);
  uint64_t rows = 0;
  for (int round = 0; round < 6; ++round) {
    Groups groups;
    for (uint32_t block = 0; block < 9; ++block) {
      for (uint32_t head = 0; head < kHeads; ++head) {
        const uint64_t mask = random() & random() & 0xffff;
        if (mask != 0 && random() % 3 != 0) groups.Add(block, head, mask);
      }
    }
    for (const uint32_t layer : {0u, 1u, 3u}) {
      CheckingRowSink sink(this->spec_, this->chain_, groups.groups, layer);
      ASSERT_OK(this->Fetch(groups, layer, sink));
      EXPECT_TRUE(sink.failed.empty());
      EXPECT_EQ(sink.got.size(), groups.groups.size());
      for (const auto& [group, times] : sink.got) EXPECT_EQ(times, 1);
      for (const RowGroup& group : groups.groups) rows += group.rows();
    }
  }
  const ClientStats stats = this->client_->GetStats();
  EXPECT_EQ(stats.corrupt_rows + stats.corrupt_slices, 0u);
  if (stats.fetched_rows > 0) {  // Not of clients that take them out of whole slices.
    EXPECT_EQ(stats.fetched_rows, rows);
  }
}

TYPED_TEST(RowsConformance, WhatCannotBeIsRefusedByName) {
  const auto expect = [&](const Groups& groups, uint32_t layer, const std::string& field) {
    CheckingRowSink sink(this->spec_, this->chain_, groups.groups, layer);
    EXPECT_THAT(this->Fetch(groups, layer, sink),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr(field)));
    EXPECT_TRUE(sink.got.empty());
  };
  Groups groups;
  expect(groups, 0, "'rows'");
  groups.Add(8, 5, 1);
  expect(groups, 2, "'layer'");  // Without planes.
  expect(groups, 4, "'layer'");
  groups.Add(8, 5, 1);
  expect(groups, 0, "'rows[1]'");  // Twice.
  Groups block;
  block.Add(9, 0, 1);
  expect(block, 0, "'rows[0].block'");
  Groups head;
  head.Add(0, 6, 1);
  expect(head, 0, "'rows[0].head'");
  Groups none;
  none.Add(0, 0, 0);
  expect(none, 0, "'rows[0].mask'");
  Groups after;
  after.Add(0, 0, 1 << 16);
  expect(after, 0, "'rows[0].mask'");
  Groups words;
  words.groups.push_back({0, 0, {}});
  expect(words, 0, "'rows[0].mask'");
}

TYPED_TEST(RowsConformance, AReaderThatEndsTheFetchGetsItsOwnStatus) {
  Groups groups;
  for (uint32_t block = 0; block < 9; ++block) groups.Add(block, 1, 0xff);
  CheckingRowSink sink(this->spec_, this->chain_, groups.groups, 0);
  sink.on_rows = Status(StatusCode::kAborted, "enough");
  EXPECT_THAT(this->Fetch(groups, 0, sink), StatusIs(StatusCode::kAborted, HasSubstr("enough")));
  EXPECT_EQ(sink.got.size(), 1u);
}

TYPED_TEST(RowsConformance, TwoFormsAreLeasedTogether) {
  // The near form has fewer blocks than the far one.
  NamespaceSpec spec = SmallSpec();
  spec.revision = "near";
  const Chain near(spec, 5);
  ASSERT_OK(this->client_->OpenNamespace(spec, {.deadline = seconds(60)}));
  ASSERT_OK(this->client_->Push(Fingerprint(spec), near.parts, {.deadline = seconds(60)}));
  const std::vector<BlockKey> keys = client::testing::KeysFor(spec, 9);
  const NamedBlocks near_blocks = {Fingerprint(spec), keys};
  const NamedBlocks far_blocks = {Fingerprint(this->spec_), this->chain_.keys};
  auto match = MatchBoth(*this->client_, near_blocks, far_blocks, {.deadline = seconds(60)});
  ASSERT_OK(match);
  EXPECT_EQ(match->blocks, 5u);
  EXPECT_EQ(match->miss_reason, MissReason::kAbsent);
  EXPECT_OK(RenewBoth(*this->client_, *match, seconds(60), {.deadline = seconds(60)}));
  // Rows of the far form, under the lease of the pair.
  Groups groups;
  groups.Add(4, 2, 0b1001);
  CheckingRowSink sink(this->spec_, this->chain_, groups.groups, 0);
  ASSERT_OK(this->client_->FetchRows(match->far.lease, this->layout_, 0, groups.groups, sink, {}));
  EXPECT_EQ(sink.got.size(), 1u);
  // One of them ends: the reader is told which.
  match->far.lease.Release();
  EXPECT_THAT(RenewBoth(*this->client_, *match, seconds(60), {.deadline = seconds(60)}),
              StatusIs(StatusCode::kNotFound, HasSubstr("far")));
  // A key that only one of them has is nothing.
  const std::vector<BlockKey> others = client::testing::KeysFor(spec, 9, 1000);
  const auto none =
      MatchBoth(*this->client_, {Fingerprint(spec), others}, far_blocks, {.deadline = seconds(60)});
  ASSERT_OK(none);
  EXPECT_EQ(none->blocks, 0u);
  EXPECT_FALSE(none->near.lease.held() || none->far.lease.held());
  EXPECT_THAT(MatchBoth(*this->client_, {Fingerprint(spec), std::span(keys).first(3)}, far_blocks,
                        {.deadline = seconds(60)})
                  .status(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'keys'")));
}

TYPED_TEST(RowsConformance, WithoutALeaseThereAreNoRows) {
  Groups groups;
  groups.Add(0, 0, 1);
  this->lease_.Release();
  CheckingRowSink sink(this->spec_, this->chain_, groups.groups, 0);
  EXPECT_THAT(this->Fetch(groups, 0, sink),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'lease'")));
}

}  // namespace
}  // namespace cairn::client
