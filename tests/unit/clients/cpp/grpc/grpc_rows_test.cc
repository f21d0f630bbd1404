// Rows from a node that may lie: whatever its frames say, a reader gets the rows that it asked for,
// or none.
#include "clients/cpp/src/grpc/grpc_rows.h"

#include <map>

#include "cairn/v1/cache.pb.h"
#include "common/status/matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/clients/cpp/parts.h"

namespace cairn::client {
namespace {

using ::cairn::testing::StatusIs;
using client::testing::SmallSpec;
using ::testing::HasSubstr;

class Sink final : public RowSink {
 public:
  Status OnRows(size_t group, const RowsInfo& info, std::span<const std::byte> rows) override {
    got[group] = info;
    bytes[group].assign(rows.begin(), rows.end());
    return OkStatus();
  }
  void OnRowsFailed(size_t group, MissReason reason) override { failed[group] = reason; }
  std::map<size_t, RowsInfo> got;
  std::map<size_t, std::vector<std::byte>> bytes;
  std::map<size_t, MissReason> failed;
};

class GrpcRowsTest : public ::testing::Test {
 protected:
  // The message of a node for a group, with `rows` rows of 16 bytes in two planes.
  static frames::FetchFrameView::Rows Rows(const RowGroup& asked, std::span<const std::byte> data,
                                           uint32_t layer = 1) {
    const RowsInfo info = {
        .block = asked.block, .layer = layer, .head = asked.head, .slice_xxh3 = 77};
    return {.rows = {.block = asked.block,
                     .head = asked.head,
                     .slice_xxh3 = 77,
                     .xxh3 = HashRows(info, asked.mask, data)},
            .data = {data}};
  }
  Status Take(frames::FetchFrameView::Rows rows) {
    frames::FetchFrameView frame;
    frame.rows.push_back(std::move(rows));
    return fetch_.Take(frame);
  }
  // A lie: the group fails, and nothing was given to the reader.
  void ExpectCorrupt(frames::FetchFrameView::Rows rows) {
    EXPECT_OK(Take(std::move(rows)));
    EXPECT_TRUE(sink_.got.empty());
    EXPECT_EQ(sink_.failed.size(), 1u);
    EXPECT_EQ(sink_.failed.begin()->second, MissReason::kCorrupt);
    EXPECT_EQ(fetch_.counts().corrupt_rows, 1u);
  }

  static constexpr uint64_t kTwo = 0b11, kFour = 0b1111;
  const std::vector<std::byte> two_ = std::vector<std::byte>(2 * 2 * 16, std::byte{2});
  const std::vector<std::byte> four_ = std::vector<std::byte>(4 * 2 * 16, std::byte{4});
  const RowLayout layout_ = *RowLayout::Of(SmallSpec());
  const std::vector<RowGroup> groups_ = {
      {0, 1, {&kTwo, 1}}, {0, 3, {&kFour, 1}}, {4, 1, {&kTwo, 1}}};
  FakeClock clock_;
  Sink sink_;
  const FetchOptions options_;
  GrpcRows fetch_{&clock_, {layout_, 1, groups_}, &sink_, options_, clock_.Now()};
};

TEST_F(GrpcRowsTest, RowsComeInAnyOrderAndInPieces) {
  EXPECT_OK(Take(Rows(groups_[2], two_)));
  auto pieces = Rows(groups_[1], four_);
  pieces.data = {std::span(four_).first(1), std::span(four_).subspan(1, 60),
                 std::span(four_).subspan(61)};
  EXPECT_OK(Take(pieces));
  EXPECT_EQ(fetch_.Rest(), (std::vector<size_t>{0}));
  EXPECT_EQ(sink_.bytes[1], four_);
  EXPECT_EQ(sink_.bytes[2], two_);
  EXPECT_EQ(sink_.got[2].slice_xxh3, 77u);
  EXPECT_EQ(fetch_.counts().rows, 6u);
}

TEST_F(GrpcRowsTest, RowsOfAnotherPlaceAreCorrupt) {
  // The right bytes of another group under this one's name.
  auto other_block = Rows(groups_[2], two_);
  other_block.rows.block = 0;
  ExpectCorrupt(other_block);
}

TEST_F(GrpcRowsTest, RowsOfAnotherLayerAreCorrupt) {
  ExpectCorrupt(Rows(groups_[0], two_, /*layer=*/0));
}

TEST_F(GrpcRowsTest, RowsOfAnotherMaskAreCorrupt) {
  const uint64_t other = 0b101;
  ExpectCorrupt(Rows({0, 1, {&other, 1}}, two_));
}

TEST_F(GrpcRowsTest, RowsOfAnotherVersionAreCorrupt) {
  auto rows = Rows(groups_[0], two_);
  rows.rows.slice_xxh3 = 78;
  ExpectCorrupt(rows);
}

TEST_F(GrpcRowsTest, AWrongNumberOfBytesIsCorruptEvenWithItsHash) {
  ExpectCorrupt(Rows(groups_[0], four_));
}

TEST_F(GrpcRowsTest, ACodecThatIsNotInTheRecipeIsCorrupt) {
  auto rows = Rows(groups_[0], two_);
  rows.rows.codec = format::Codec::kTurbo;
  ExpectCorrupt(rows);
}

TEST_F(GrpcRowsTest, WhatWasNotAskedForOrComesTwiceEndsTheFetch) {
  const uint64_t one = 1;
  EXPECT_THAT(Take(Rows({1, 1, {&one, 1}}, two_)),
              StatusIs(StatusCode::kDataLoss, HasSubstr("block 1 head 1")));
  EXPECT_THAT(Take(Rows({0, 2, {&one, 1}}, two_)),
              StatusIs(StatusCode::kDataLoss, HasSubstr("block 0 head 2")));
  EXPECT_OK(Take(Rows(groups_[0], two_)));
  EXPECT_THAT(Take(Rows(groups_[0], two_)), StatusIs(StatusCode::kDataLoss, HasSubstr("twice")));
}

TEST_F(GrpcRowsTest, AFailedBlockFailsItsGroupsOnce) {
  EXPECT_OK(Take(Rows(groups_[1], four_)));
  frames::FetchFrameView frame;
  frame.failed = {
      {0, v1::MISS_REASON_EVICTED}, {0, v1::MISS_REASON_CORRUPT}, {9, v1::MISS_REASON_CORRUPT}};
  EXPECT_OK(fetch_.Take(frame));
  EXPECT_THAT(sink_.failed, ::testing::ElementsAre(std::pair(0u, MissReason::kEvicted)));
  EXPECT_EQ(fetch_.Rest(), (std::vector<size_t>{2}));
}

TEST_F(GrpcRowsTest, ANodeThatKnowsNoRowsIsToldApart) {
  frames::FetchFrameView frame;
  frame.pieces.emplace_back();
  EXPECT_THAT(fetch_.Take(frame), StatusIs(StatusCode::kUnimplemented, HasSubstr("slices")));
}

}  // namespace
}  // namespace cairn::client
