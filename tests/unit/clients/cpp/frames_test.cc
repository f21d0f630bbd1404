// The hand-written codecs of FetchFrame and PushFrame against protobuf's own.

#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/message.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <random>

#include "cairn/v1/cache.pb.h"
#include "clients/cpp/src/fetch_frame.h"
#include "clients/cpp/src/push_frame.h"
#include "clients/cpp/wire/limits.h"
#include "services/common/status/matchers.h"

namespace cairn::client {
namespace {

using ::cairn::testing::StatusIs;
using ::google::protobuf::io::ArrayInputStream;
using ::testing::_;
using ::testing::ElementsAre;
using ::testing::Pair;

std::string Text(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::string out(n, '\0');
  for (char& c : out) c = static_cast<char>(random());
  return out;
}

v1::FetchFrame SomeFrame() {
  v1::FetchFrame frame;
  for (uint32_t i = 0; i < 5; ++i) {
    v1::Slice* slice = frame.add_slices();
    slice->set_block(i * 1000);
    slice->mutable_part()->set_layer_begin(i);
    slice->mutable_part()->set_layer_end(i + 300);
    slice->mutable_part()->set_head_end(7);
    slice->set_layer(i + 1);
    slice->set_codec(i % 2 == 0 ? v1::CODEC_RAW : v1::CODEC_OPAQUE);
    slice->set_slice_bytes(1ull << (10 * i));
    slice->set_xxh3(0xfedcba9876543210ull + i);
    slice->set_offset(i * 777777777ull);
    slice->set_data(Text(i * 1000, i));
    slice->set_tier(v1::TIER_KIND_DISK);
  }
  v1::BlockFailed* failed = frame.add_failed();
  failed->set_block(70000);
  failed->set_reason(v1::MISS_REASON_CORRUPT);
  return frame;
}

void ExpectSame(const FetchFrameView& view, const v1::FetchFrame& frame) {
  ASSERT_EQ(view.pieces.size(), static_cast<size_t>(frame.slices_size()));
  for (int i = 0; i < frame.slices_size(); ++i) {
    const SlicePiece& piece = view.pieces[static_cast<size_t>(i)];
    const v1::Slice& slice = frame.slices(i);
    EXPECT_EQ(piece.slice.block, slice.block());
    EXPECT_EQ(piece.slice.part.layer_begin, slice.part().layer_begin());
    EXPECT_EQ(piece.slice.part.layer_end, slice.part().layer_end());
    EXPECT_EQ(piece.slice.part.head_end, slice.part().head_end());
    EXPECT_EQ(piece.slice.layer, slice.layer());
    EXPECT_EQ(static_cast<int>(piece.slice.codec), slice.codec());
    EXPECT_EQ(piece.slice.slice_bytes, slice.slice_bytes());
    EXPECT_EQ(piece.slice.xxh3, slice.xxh3());
    EXPECT_EQ(piece.offset, slice.offset());
    EXPECT_EQ(piece.slice.tier, TierKind::kDisk);
    std::string data;
    for (const auto& chunk : piece.chunks)
      data.append(reinterpret_cast<const char*>(chunk.data()), chunk.size());
    EXPECT_EQ(data, slice.data());
  }
}

TEST(FetchFrameTest, ReadsWhatProtobufWroteInChunksOfAnySize) {
  const v1::FetchFrame frame = SomeFrame();
  const std::string bytes = frame.SerializeAsString();
  for (const int chunk : {1, 2, 3, 7, 64, 1000, 1 << 20}) {
    ArrayInputStream in(bytes.data(), static_cast<int>(bytes.size()), chunk);
    const Result<FetchFrameView> view = ParseFetchFrame(&in);
    ASSERT_OK(view) << chunk;
    ExpectSame(*view, frame);
    EXPECT_THAT(view->failed, ElementsAre(Pair(70000u, MissReason::kCorrupt)));
  }
}

TEST(FetchFrameTest, BorrowsTheData) {
  const std::string bytes = SomeFrame().SerializeAsString();
  ArrayInputStream in(bytes.data(), static_cast<int>(bytes.size()));
  const Result<FetchFrameView> view = ParseFetchFrame(&in);
  ASSERT_OK(view);
  const auto* const begin = reinterpret_cast<const std::byte*>(bytes.data());
  ASSERT_EQ(view->pieces[4].chunks.size(), 1u);
  EXPECT_GE(view->pieces[4].chunks[0].data(), begin);
  EXPECT_LE(view->pieces[4].chunks[0].data() + 4000, begin + bytes.size());
}

TEST(FetchFrameTest, SkipsFieldsThatItDoesNotKnow) {
  v1::FetchFrame frame = SomeFrame();
  // Field 99 of every message, as a newer node may send it.
  const auto unknown = [](google::protobuf::Message* m) {
    return m->GetReflection()->MutableUnknownFields(m);
  };
  unknown(&frame)->AddVarint(99, 5);
  unknown(frame.mutable_slices(0))->AddLengthDelimited(99, "xyz");
  unknown(frame.mutable_slices(1))->AddFixed64(98, 1);
  unknown(frame.mutable_slices(2)->mutable_part())->AddVarint(99, 5);
  const std::string bytes = frame.SerializeAsString();
  ArrayInputStream in(bytes.data(), static_cast<int>(bytes.size()), 5);
  const Result<FetchFrameView> view = ParseFetchFrame(&in);
  ASSERT_OK(view);
  ExpectSame(*view, frame);
}

TEST(FetchFrameTest, ACodecOfTheFutureIsAMissOfThatBlock) {
  v1::FetchFrame frame = SomeFrame();
  frame.mutable_slices(1)->set_codec(static_cast<v1::Codec>(17));
  frame.mutable_slices(2)->set_tier(static_cast<v1::TierKind>(17));
  frame.clear_failed();
  const std::string bytes = frame.SerializeAsString();
  ArrayInputStream in(bytes.data(), static_cast<int>(bytes.size()));
  const Result<FetchFrameView> view = ParseFetchFrame(&in);
  ASSERT_OK(view);
  EXPECT_EQ(view->pieces.size(), 4u);
  EXPECT_THAT(view->failed, ElementsAre(Pair(1000u, MissReason::kRefused)));
}

TEST(FetchFrameTest, DamagedFramesAreDataLossAndNeverReadOutside) {
  const std::string bytes = SomeFrame().SerializeAsString();
  std::mt19937 random(1);
  for (size_t i = 0; i < 20000; ++i) {
    // Exact size on the heap, so that a sanitizer sees every byte read outside.
    std::vector<char> damaged(bytes.begin(), bytes.end());
    if (i % 2 == 0) damaged.resize(random() % damaged.size());
    for (unsigned n = random() % 4; n > 0 && !damaged.empty(); --n)
      damaged[random() % damaged.size()] = static_cast<char>(random());
    ArrayInputStream in(damaged.data(), static_cast<int>(damaged.size()),
                        1 + static_cast<int>(random() % 100));
    const Result<FetchFrameView> view = ParseFetchFrame(&in);
    if (!view.ok()) {
      ASSERT_THAT(view, StatusIs(StatusCode::kDataLoss, _));
      continue;
    }
    for (const SlicePiece& piece : view->pieces) {
      for (const auto& chunk : piece.chunks) {
        ASSERT_GE(reinterpret_cast<const char*>(chunk.data()), damaged.data());
        ASSERT_LE(reinterpret_cast<const char*>(chunk.data()) + chunk.size(),
                  damaged.data() + damaged.size());
      }
    }
  }
  ArrayInputStream empty(nullptr, 0);
  EXPECT_OK(ParseFetchFrame(&empty));
}

v1::PushFrame Parse(grpc::ByteBuffer frame) {
  grpc::ProtoBufferReader reader(&frame);
  v1::PushFrame out;
  EXPECT_TRUE(out.ParseFromZeroCopyStream(&reader));
  return out;
}

TEST(PushFrameTest, ProtobufReadsWhatItWrites) {
  const std::string data = Text(10000, 3);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data));
  for (const uint32_t limit : {0u, 1u, 5000u, 1u << 30}) {
    for (const bool hold : {false, true}) {
      PushFrameWriter writer("0123456789abcdef", {}, limit);
      std::shared_ptr<const void> keep = hold ? std::make_shared<int>(1) : nullptr;
      std::string got[2];
      size_t frames = 0;
      const auto take = [&] {
        grpc::ByteBuffer frame = writer.Take();
        EXPECT_LE(
            frame.Length(),
            std::max<size_t>(
                limit == 0 ? wire::kFrameBytes : std::min<size_t>(limit, wire::kFrameBytes), 4096));
        const v1::PushFrame parsed = Parse(std::move(frame));
        EXPECT_EQ(parsed.session_id(), frames++ == 0 ? "0123456789abcdef" : "");
        for (const auto& piece : parsed.pieces()) {
          std::string& to = got[piece.reservation_id() == 7 ? 0 : 1];
          EXPECT_EQ(piece.offset(), to.size());
          to += piece.data();
        }
      };
      for (const uint64_t reservation : {uint64_t{7}, UINT64_MAX}) {
        for (size_t at = 0; at < bytes.size();) {
          if (writer.full()) take();
          at += writer.Add(reservation, at, bytes.subspan(at), keep);
        }
      }
      take();
      EXPECT_EQ(got[0], data);
      EXPECT_EQ(got[1], data);
      if (hold) {
        EXPECT_EQ(keep.use_count(), 1) << "sent frames let go of the bytes";
      }
    }
  }
}

TEST(PushFrameTest, RefersToHeldBytesAndCopiesOthers) {
  std::string data = Text(10000, 3);
  const auto hold = std::make_shared<int>(1);
  PushFrameWriter held("s", {}, 0), copied("s", {}, 0);
  held.Add(1, 0, std::as_bytes(std::span(data)), hold);
  copied.Add(1, 0, std::as_bytes(std::span(data)), nullptr);
  EXPECT_EQ(hold.use_count(), 2);
  const std::string before = data;
  data[5] = static_cast<char>(data[5] + 1);
  EXPECT_EQ(Parse(held.Take()).pieces(0).data(), data);
  EXPECT_EQ(Parse(copied.Take()).pieces(0).data(), before);
}

}  // namespace
}  // namespace cairn::client
