// The hand-made wire formats against protobuf's own.

#include <gmock/gmock.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <gtest/gtest.h>

#include <random>

#include "cairn/v1/cache.pb.h"
#include "services/cache/rpc/fetch_frame.h"
#include "services/cache/rpc/push_frame.h"
#include "services/common/status/matchers.h"

namespace cairn::cache {
namespace {

using cairn::testing::StatusIs;
using ::testing::HasSubstr;

std::string Random(size_t size, uint32_t seed) {
  std::mt19937 rng(seed);
  std::string bytes(size, 0);
  for (char& c : bytes) c = static_cast<char>(rng());
  return bytes;
}

FetchedSlice MakeSlice(uint32_t block, uint32_t layer, const std::string& bytes) {
  auto hold = std::make_shared<std::string>(bytes);
  FetchedSlice slice;
  slice.block = block;
  slice.part = {.layer_begin = 3, .layer_end = 300, .head_begin = 0, .head_end = 7};
  slice.layer = layer;
  slice.codec = format::Codec::kOpaque;
  slice.xxh3 = 0xfedcba9876543210ull;
  slice.data = std::as_bytes(std::span(*hold));
  slice.tier = TierKind::kDisk;
  slice.hold = hold;
  return slice;
}

v1::FetchFrame Decode(grpc::ByteBuffer buffer) {
  v1::FetchFrame frame;
  EXPECT_TRUE(grpc::SerializationTraits<v1::FetchFrame>::Deserialize(&buffer, &frame).ok());
  return frame;
}

TEST(FetchFrameTest, ProtobufReadsWhatTheBuilderWrote) {
  FetchFrameBuilder builder(1 << 20);
  const std::string large = Random(100'000, 1), small = Random(100, 2), middle = Random(512, 3);
  EXPECT_EQ(builder.Add(MakeSlice(0, 0, large), 0), large.size());
  builder.Add(FetchFailure{300, MissReason::kCorrupt});
  EXPECT_EQ(builder.Add(MakeSlice(128, 299, small), 0), small.size());
  EXPECT_EQ(builder.Add(MakeSlice(70000, 5, middle), 0), middle.size());
  EXPECT_EQ(builder.Add(MakeSlice(1, 1, ""), 0), 0u);
  builder.Add(FetchFailure{0, MissReason::kNone});
  EXPECT_EQ(builder.data_bytes(), large.size() + small.size() + middle.size());
  const v1::FetchFrame frame = Decode(builder.Take());
  EXPECT_TRUE(builder.empty());
  ASSERT_EQ(frame.slices_size(), 4);
  ASSERT_EQ(frame.failed_size(), 2);
  EXPECT_EQ(frame.failed(0).block(), 300u);
  EXPECT_EQ(frame.failed(0).reason(), v1::MISS_REASON_CORRUPT);
  EXPECT_EQ(frame.failed(1).block(), 0u);
  const v1::Slice& first = frame.slices(0);
  EXPECT_EQ(first.data(), large);
  EXPECT_EQ(first.slice_bytes(), large.size());
  EXPECT_EQ(first.xxh3(), 0xfedcba9876543210ull);
  EXPECT_EQ(first.codec(), v1::CODEC_OPAQUE);
  EXPECT_EQ(first.tier(), v1::TIER_KIND_DISK);
  EXPECT_EQ(first.part().layer_begin(), 3u);
  EXPECT_EQ(first.part().layer_end(), 300u);
  EXPECT_EQ(first.part().head_begin(), 0u);
  EXPECT_EQ(first.part().head_end(), 7u);
  EXPECT_EQ(frame.slices(1).data(), small);
  EXPECT_EQ(frame.slices(1).block(), 128u);
  EXPECT_EQ(frame.slices(1).layer(), 299u);
  EXPECT_EQ(frame.slices(2).block(), 70000u);
  EXPECT_EQ(frame.slices(2).data(), middle);
  EXPECT_EQ(frame.slices(3).data(), "");
}

TEST(FetchFrameTest, LargeSlicesComeInPiecesThatAddUp) {
  const std::string bytes = Random(250'000, 4);
  const FetchedSlice slice = MakeSlice(0, 0, bytes);
  FetchFrameBuilder builder(64 << 10);
  std::string got;
  size_t offset = 0, frames = 0;
  while (offset < bytes.size()) {
    offset += builder.Add(slice, offset);
    const v1::FetchFrame frame = Decode(builder.Take());
    ASSERT_EQ(frame.slices_size(), 1);
    EXPECT_EQ(frame.slices(0).offset(), got.size());
    EXPECT_EQ(frame.slices(0).slice_bytes(), bytes.size());
    EXPECT_LE(frame.slices(0).data().size(), 64u << 10);
    got += frame.slices(0).data();
    ++frames;
  }
  EXPECT_EQ(got, bytes);
  EXPECT_EQ(frames, 4u);
}

TEST(FetchFrameTest, AFullFrameTakesNoMore) {
  FetchFrameBuilder builder(1000);
  const FetchedSlice slice = MakeSlice(0, 0, Random(1500, 5));
  EXPECT_EQ(builder.Add(slice, 0), 1000u);
  EXPECT_TRUE(builder.full());
  EXPECT_EQ(builder.Add(slice, 1000), 0u);
}

TEST(FetchFrameTest, BytesAreHeldUntilTheFrameIsGone) {
  FetchedSlice slice = MakeSlice(0, 0, Random(4096, 6));
  std::weak_ptr<const void> hold = slice.hold;
  FetchFrameBuilder builder(1 << 20);
  builder.Add(slice, 0);
  slice = FetchedSlice();
  {
    const grpc::ByteBuffer frame = builder.Take();
    EXPECT_FALSE(hold.expired());
  }
  EXPECT_TRUE(hold.expired());
}

grpc::ByteBuffer Encode(const v1::PushFrame& frame) {
  grpc::ByteBuffer buffer;
  bool own = false;
  EXPECT_TRUE(grpc::SerializationTraits<v1::PushFrame>::Serialize(frame, &buffer, &own).ok());
  return buffer;
}

// The bytes cut into slices of `size`, as a network delivers them.
grpc::ByteBuffer Cut(const std::string& bytes, size_t size) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += size) slices.emplace_back(bytes.substr(at, size));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string Join(const PushFrameView::Piece& piece) {
  std::string bytes;
  for (const auto span : piece.data)
    bytes.append(reinterpret_cast<const char*>(span.data()), span.size());
  return bytes;
}

TEST(PushFrameTest, ReadsWhatProtobufWroteHoweverItIsCut) {
  v1::PushFrame frame;
  frame.set_session_id(Random(16, 7));
  for (uint32_t i = 0; i < 5; ++i) {
    auto* piece = frame.add_pieces();
    piece->set_reservation_id(i * 1000 + 1);
    piece->set_offset(i * 0x100000000ull);
    piece->set_data(Random(i * 5000, i));
  }
  const std::string bytes = frame.SerializeAsString();
  for (const size_t size : {1ul, 7ul, 4096ul, bytes.size()}) {
    const auto view = PushFrameView::Parse(Cut(bytes, size));
    ASSERT_OK(view);
    EXPECT_EQ((*view)->session_id(), frame.session_id());
    ASSERT_EQ((*view)->pieces().size(), 5u);
    for (int i = 0; i < 5; ++i) {
      const auto& piece = (*view)->pieces()[static_cast<size_t>(i)];
      EXPECT_EQ(piece.reservation_id, frame.pieces(i).reservation_id());
      EXPECT_EQ(piece.offset, frame.pieces(i).offset());
      EXPECT_EQ(piece.bytes, frame.pieces(i).data().size());
      EXPECT_EQ(Join(piece), frame.pieces(i).data());
    }
  }
}

TEST(PushFrameTest, SkipsUnknownFieldsAndTakesAnyOrder) {
  // Piece: data, unknown field 15, offset, reservation; frame: unknown field 9 before it.
  const std::string piece = std::string(
                                "\x1a\x03"
                                "abc",
                                5) +
                            std::string("\x7a\x02zz", 4) + std::string("\x10\x05\x08\x07", 4);
  const std::string bytes =
      std::string("\x48\x01", 2) + "\x12" + static_cast<char>(piece.size()) + piece;
  const auto view = PushFrameView::Parse(Cut(bytes, 3));
  ASSERT_OK(view);
  ASSERT_EQ((*view)->pieces().size(), 1u);
  EXPECT_EQ((*view)->pieces()[0].reservation_id, 7u);
  EXPECT_EQ((*view)->pieces()[0].offset, 5u);
  EXPECT_EQ(Join((*view)->pieces()[0]), "abc");
}

TEST(PushFrameTest, EveryTruncationIsAnErrorOrAShorterFrameAndNeverACrash) {
  v1::PushFrame frame;
  frame.set_session_id(std::string(16, 's'));
  for (int i = 0; i < 3; ++i) {
    auto* piece = frame.add_pieces();
    piece->set_reservation_id(1);
    piece->set_data(std::string(200, 'd'));
  }
  const std::string bytes = frame.SerializeAsString();
  for (size_t length = 0; length < bytes.size(); ++length) {
    const auto view = PushFrameView::Parse(Cut(bytes.substr(0, length), 64));
    v1::PushFrame reference;
    EXPECT_EQ(view.ok(), reference.ParseFromString(bytes.substr(0, length))) << length;
  }
}

TEST(PushFrameTest, FlippedBytesNeverCrashAndAgreeWithProtobuf) {
  v1::PushFrame frame;
  frame.set_session_id(std::string(16, 's'));
  auto* piece = frame.add_pieces();
  piece->set_reservation_id(300);
  piece->set_offset(70000);
  piece->set_data(std::string(50, 'd'));
  const std::string bytes = frame.SerializeAsString();
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
      const auto view = PushFrameView::Parse(Cut(changed, 16));
      v1::PushFrame reference;
      if (view.ok() && reference.ParseFromString(changed)) {
        ASSERT_EQ((*view)->pieces().size(), static_cast<size_t>(reference.pieces_size()));
        for (int i = 0; i < reference.pieces_size(); ++i) {
          EXPECT_EQ(Join((*view)->pieces()[static_cast<size_t>(i)]), reference.pieces(i).data());
        }
      }
    }
  }
}

TEST(PushFrameTest, TooManyPiecesAreRefused) {
  v1::PushFrame frame;
  for (int i = 0; i < 20000; ++i) frame.add_pieces();
  EXPECT_THAT(PushFrameView::Parse(Encode(frame)),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("pieces")));
}

TEST(PushFrameTest, NestedLengthsBeyondTheFrameAreRefused) {
  for (const std::string& bytes :
       {std::string("\x12\xff\xff\xff\xff\x0f", 6),
        std::string("\x12\x04\x1a\x7f"
                    "ab",
                    6),
        std::string("\x0a\xff\xff\xff\xff\x07", 6), std::string("\x12\x7f", 2)}) {
    EXPECT_THAT(PushFrameView::Parse(Cut(bytes, 2)),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("push frame")));
  }
}

}  // namespace
}  // namespace cairn::cache
