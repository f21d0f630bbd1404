#include "clients/cpp/src/slice_assembler.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "cairn/common/hash.h"
#include "common/status/matchers.h"

namespace cairn::client {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

std::vector<std::byte> Data(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> out(n);
  for (std::byte& b : out) b = static_cast<std::byte>(random());
  return out;
}

class RecordingSink final : public FetchSink {
 public:
  std::span<std::byte> Destination(const SliceInfo& slice) override {
    if (!give_destination) return {};
    destination.resize(slice.slice_bytes + extra);
    return destination;
  }
  Status OnSlice(const SliceInfo& slice, std::span<const std::byte> data) override {
    slices[{slice.block, slice.layer}] = std::vector<std::byte>(data.begin(), data.end());
    in_place = data.data() == destination.data();
    return answer;
  }
  void OnBlockFailed(uint32_t block, MissReason reason) override {
    failed.emplace_back(block, reason);
  }

  bool give_destination = false;
  size_t extra = 0;
  bool in_place = false;
  Status answer;
  std::vector<std::byte> destination;
  std::map<std::pair<uint32_t, uint32_t>, std::vector<std::byte>> slices;
  std::vector<std::pair<uint32_t, MissReason>> failed;
};

SlicePiece Piece(uint32_t block, uint32_t layer, std::span<const std::byte> whole, uint64_t offset,
                 uint64_t length) {
  SlicePiece piece;
  piece.slice = {.block = block,
                 .part = {0, 4, 0, 2},
                 .layer = layer,
                 .slice_bytes = whole.size(),
                 .xxh3 = Xxh3(whole)};
  piece.offset = offset;
  piece.chunks.push_back(whole.subspan(offset, length));
  return piece;
}

class SliceAssemblerTest : public ::testing::Test {
 protected:
  RecordingSink sink_;
  SliceAssembler assembler_{&sink_,
                            {.blocks = 4, .max_slice_bytes = 1 << 20, .max_open_bytes = 4096}};
  const std::vector<std::byte> data_ = Data(1000, 1);
};

TEST_F(SliceAssemblerTest, GivesAWholeSliceThrough) {
  ASSERT_OK(assembler_.Take(Piece(1, 2, data_, 0, 1000)));
  EXPECT_THAT(sink_.slices, ElementsAre(Pair(std::pair(1u, 2u), data_)));
  EXPECT_EQ(assembler_.counts().slices, 1u);
  EXPECT_EQ(assembler_.counts().bytes[0], 1000u);
}

TEST_F(SliceAssemblerTest, CopiesOnceIntoTheSinksPlace) {
  sink_.give_destination = true;
  ASSERT_OK(assembler_.Take(Piece(1, 2, data_, 0, 1000)));
  EXPECT_TRUE(sink_.in_place);
  EXPECT_EQ(sink_.destination, data_);
}

TEST_F(SliceAssemblerTest, PutsPiecesOfSeveralSlicesTogetherInAnyOrder) {
  struct Cut {
    uint32_t layer;
    uint64_t offset;
  };
  std::vector<Cut> cuts;
  for (uint32_t layer = 0; layer < 4; ++layer) {
    for (uint64_t at = 0; at < 1000; at += 100) cuts.push_back({layer, at});
  }
  std::shuffle(cuts.begin(), cuts.end(), std::mt19937(5));
  for (const Cut& cut : cuts)
    ASSERT_OK(assembler_.Take(Piece(0, cut.layer, data_, cut.offset, 100)));
  EXPECT_EQ(sink_.slices.size(), 4u);
  for (const auto& [key, bytes] : sink_.slices) EXPECT_EQ(bytes, data_);
  EXPECT_EQ(assembler_.open_slices(), 0u);
  EXPECT_THAT(sink_.failed, IsEmpty());
}

TEST_F(SliceAssemblerTest, PiecesGoStraightIntoTheSinksPlace) {
  sink_.give_destination = true;
  ASSERT_OK(assembler_.Take(Piece(0, 0, data_, 400, 600)));
  EXPECT_THAT(sink_.slices, IsEmpty());
  ASSERT_OK(assembler_.Take(Piece(0, 0, data_, 0, 400)));
  EXPECT_TRUE(sink_.in_place);
  EXPECT_EQ(sink_.destination, data_);
}

TEST_F(SliceAssemblerTest, APieceMayLieInSeveralPlaces) {
  SlicePiece piece = Piece(0, 0, data_, 0, 1000);
  const std::span<const std::byte> all(data_);
  piece.chunks = {all.first(1), all.subspan(1, 600), {}, all.subspan(601)};
  ASSERT_OK(assembler_.Take(piece));
  EXPECT_EQ((sink_.slices[{0, 0}]), data_);
}

TEST_F(SliceAssemblerTest, ALayerWithoutKvIsAnEmptySlice) {
  SlicePiece piece = Piece(0, 1, {}, 0, 0);
  ASSERT_OK(assembler_.Take(piece));
  piece.chunks.clear();
  piece.slice.layer = 2;
  ASSERT_OK(assembler_.Take(piece));
  EXPECT_EQ(sink_.slices.size(), 2u);
  piece.slice.xxh3 ^= 1;
  piece.slice.block = 1;
  ASSERT_OK(assembler_.Take(piece));
  EXPECT_THAT(sink_.failed, ElementsAre(Pair(1u, MissReason::kCorrupt)));
}

TEST_F(SliceAssemblerTest, EveryFlippedBitIsNoticed) {
  for (size_t bit = 0; bit < data_.size() * 8; bit += 37) {
    RecordingSink sink;
    SliceAssembler assembler(&sink, {.blocks = 1});
    std::vector<std::byte> damaged = data_;
    damaged[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    SlicePiece piece = Piece(0, 0, damaged, 0, 1000);
    piece.slice.xxh3 = Xxh3(data_);
    ASSERT_OK(assembler.Take(piece));
    ASSERT_THAT(sink.slices, IsEmpty());
    ASSERT_THAT(sink.failed, ElementsAre(Pair(0u, MissReason::kCorrupt)));
    ASSERT_EQ(assembler.counts().corrupt, 1u);
  }
}

TEST_F(SliceAssemblerTest, ABlockFailsOnceAndItsOtherSlicesStillCome) {
  assembler_.Fail(2, MissReason::kEvicted);
  SlicePiece corrupt = Piece(2, 0, data_, 0, 1000);
  corrupt.slice.xxh3 ^= 1;
  ASSERT_OK(assembler_.Take(corrupt));
  ASSERT_OK(assembler_.Take(Piece(2, 1, data_, 0, 1000)));
  assembler_.Fail(99, MissReason::kEvicted);
  EXPECT_THAT(sink_.failed, ElementsAre(Pair(2u, MissReason::kEvicted)));
  EXPECT_EQ(sink_.slices.size(), 1u);
}

TEST_F(SliceAssemblerTest, OverlappingPiecesAreCorruptNotAHole) {
  ASSERT_OK(assembler_.Take(Piece(0, 0, data_, 0, 600)));
  ASSERT_OK(assembler_.Take(Piece(0, 0, data_, 100, 600)));
  EXPECT_THAT(sink_.slices, IsEmpty());
  EXPECT_THAT(sink_.failed, ElementsAre(Pair(0u, MissReason::kCorrupt)));
}

TEST_F(SliceAssemblerTest, DoesNotTrustTheNodesNumbers) {
  const auto refused = [&](SlicePiece piece, const std::string& why) {
    EXPECT_THAT(assembler_.Take(piece), StatusIs(StatusCode::kDataLoss, HasSubstr(why)));
  };
  refused(Piece(4, 0, data_, 0, 1000), "block 4, the lease has 4");
  refused(Piece(0, 4, data_, 0, 1000), "layer 4");
  SlicePiece piece = Piece(0, 0, data_, 0, 1000);
  piece.slice.slice_bytes = (1 << 20) + 1;
  refused(piece, "at most");
  piece = Piece(0, 0, data_, 500, 500);
  piece.offset = 501;
  refused(piece, "piece");
  piece.offset = UINT64_MAX;
  refused(piece, "piece");
  const std::vector<std::byte> large = Data(5000, 2);
  refused(Piece(0, 0, large, 0, 10), "unfinished");
  ASSERT_OK(assembler_.Take(Piece(0, 1, data_, 0, 10)));
  piece = Piece(0, 1, data_, 10, 10);
  piece.slice.slice_bytes = 999;
  refused(piece, "changed its size");
  EXPECT_THAT(sink_.slices, IsEmpty());
}

TEST_F(SliceAssemblerTest, UnfinishedSlicesAreBoundedAndTheirRoomComesBack) {
  for (uint32_t layer = 0; layer < 4; ++layer)
    ASSERT_OK(assembler_.Take(Piece(0, layer, data_, 0, 10)));
  EXPECT_EQ(assembler_.open_slices(), 4u);
  EXPECT_THAT(assembler_.Take(Piece(1, 0, data_, 0, 10)),
              StatusIs(StatusCode::kDataLoss, HasSubstr("unfinished")));
  ASSERT_OK(assembler_.Take(Piece(0, 0, data_, 10, 990)));
  ASSERT_OK(assembler_.Take(Piece(1, 0, data_, 0, 10)));
}

TEST_F(SliceAssemblerTest, TheSinkCanEndTheFetch) {
  sink_.answer = Errorf(StatusCode::kFailedPrecondition, "pool is full");
  EXPECT_THAT(assembler_.Take(Piece(0, 0, data_, 0, 1000)),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("pool")));
  sink_.give_destination = true;
  sink_.extra = 1;
  EXPECT_THAT(assembler_.Take(Piece(0, 1, data_, 0, 1000)),
              StatusIs(StatusCode::kInternal, HasSubstr("destination")));
}

}  // namespace
}  // namespace cairn::client
