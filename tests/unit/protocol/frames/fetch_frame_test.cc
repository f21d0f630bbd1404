// Writer and reader of FetchFrame against protobuf's own coder, and against each other.

#include <gmock/gmock.h>
#include <google/protobuf/message.h>
#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>

#include <random>

#include "common/status/matchers.h"
#include "protocol/frames/fetch_frame_reader.h"
#include "protocol/frames/fetch_frame_writer.h"
#include "tests/unit/protocol/frames/frame_bytes.h"

namespace cairn::frames {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::_;
using ::testing::HasSubstr;

constexpr uint64_t kHash = 0xfedcba9876543210ull;

// A slice as the node has it: fields, bytes, and what keeps them.
struct TestSlice {
  SliceHeader header;
  std::shared_ptr<const std::string> hold;
  std::span<const std::byte> data() const { return std::as_bytes(std::span(*hold)); }
};

TestSlice MakeSlice(uint32_t block, uint32_t layer, const std::string& bytes) {
  return {.header = {.block = block,
                     .part = {.layer_begin = 3, .layer_end = 300, .head_begin = 0, .head_end = 7},
                     .layer = layer,
                     .codec = format::Codec::kOpaque,
                     .slice_bytes = bytes.size(),
                     .xxh3 = kHash,
                     .tier = v1::TIER_KIND_DISK},
          .hold = std::make_shared<std::string>(bytes)};
}

size_t Add(FetchFrameWriter* writer, const TestSlice& slice, size_t offset = 0) {
  return writer->Add(slice.header, offset, slice.data().subspan(offset), slice.hold);
}

TEST(FetchFrameWriterTest, ProtobufReadsWhatItWrote) {
  FetchFrameWriter writer(1 << 20);
  const std::string large = RandomBytes(100'000, 1), small = RandomBytes(100, 2),
                    middle = RandomBytes(512, 3);
  v1::MatchResponse matched;
  matched.set_matched_blocks(12);
  writer.Add(matched);
  EXPECT_EQ(Add(&writer, MakeSlice(0, 0, large)), large.size());
  writer.Add(FailedBlock{300, v1::MISS_REASON_CORRUPT});
  EXPECT_EQ(Add(&writer, MakeSlice(128, 299, small)), small.size());
  EXPECT_EQ(Add(&writer, MakeSlice(70000, 5, middle)), middle.size());
  EXPECT_EQ(Add(&writer, MakeSlice(1, 1, "")), 0u);
  writer.Add(FailedBlock{0, v1::MISS_REASON_NONE});
  EXPECT_EQ(writer.data_bytes(), large.size() + small.size() + middle.size());
  const auto frame = Parse<v1::FetchFrame>(writer.Take());
  EXPECT_TRUE(writer.empty());
  EXPECT_EQ(writer.data_bytes(), 0u);
  EXPECT_EQ(frame.matched().matched_blocks(), 12u);
  ASSERT_EQ(frame.slices_size(), 4);
  ASSERT_EQ(frame.failed_size(), 2);
  EXPECT_EQ(frame.failed(0).block(), 300u);
  EXPECT_EQ(frame.failed(0).reason(), v1::MISS_REASON_CORRUPT);
  EXPECT_EQ(frame.failed(1).block(), 0u);
  const v1::Slice& first = frame.slices(0);
  EXPECT_EQ(first.data(), large);
  EXPECT_EQ(first.slice_bytes(), large.size());
  EXPECT_EQ(first.xxh3(), kHash);
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

TEST(FetchFrameWriterTest, TheBytesOfASliceAreThese) {
  FetchFrameWriter writer(1 << 20);
  writer.Add(FailedBlock{5, v1::MISS_REASON_CORRUPT});
  TestSlice slice = MakeSlice(300, 4, "abc");
  slice.header.xxh3 = 6;
  Add(&writer, slice, 1);
  EXPECT_EQ(Flatten(writer.Take()), std::string("\x12\x04\x08\x05\x10\x04"
                                                "\x0a\x1c"
                                                "\x08\xac\x02"
                                                "\x12\x07\x08\x03\x10\xac\x02\x20\x07"
                                                "\x18\x04\x20\x01\x28\x03\x30\x06\x38\x01\x48\x02"
                                                "\x42\x02"
                                                "bc",
                                                36));
}

TEST(FetchFrameWriterTest, LargeSlicesComeInPiecesThatAddUp) {
  const std::string bytes = RandomBytes(250'000, 4);
  const TestSlice slice = MakeSlice(0, 0, bytes);
  FetchFrameWriter writer(64 << 10);
  std::string got;
  size_t offset = 0, frames = 0;
  while (offset < bytes.size()) {
    offset += Add(&writer, slice, offset);
    const auto frame = Parse<v1::FetchFrame>(writer.Take());
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

TEST(FetchFrameWriterTest, AFullFrameTakesNoMore) {
  FetchFrameWriter writer(1000);
  const TestSlice slice = MakeSlice(0, 0, RandomBytes(1500, 5));
  EXPECT_EQ(Add(&writer, slice), 1000u);
  EXPECT_TRUE(writer.full());
  EXPECT_EQ(Add(&writer, slice, 1000), 0u);
}

TEST(FetchFrameWriterTest, AFrameOfFailuresIsFullAtSomeTime) {
  FetchFrameWriter writer(1000);
  size_t failures = 0;
  for (; !writer.full() && failures < 10'000; ++failures)
    writer.Add(FailedBlock{1, v1::MISS_REASON_ABSENT});
  EXPECT_EQ(failures, 4096u);
}

TEST(FetchFrameWriterTest, BytesAreHeldUntilTheFrameIsGone) {
  TestSlice slice = MakeSlice(0, 0, RandomBytes(4096, 6));
  const std::weak_ptr<const void> hold = slice.hold;
  FetchFrameWriter writer(1 << 20);
  Add(&writer, slice);
  slice.hold.reset();
  {
    const grpc::ByteBuffer frame = writer.Take();
    EXPECT_FALSE(hold.expired());
  }
  EXPECT_TRUE(hold.expired());
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
    slice->set_xxh3(kHash + i);
    slice->set_offset(i * 777777777ull);
    slice->set_data(RandomBytes(i * 1000, i));
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
    const auto& [header, offset, data] = view.pieces[static_cast<size_t>(i)];
    const v1::Slice& slice = frame.slices(i);
    EXPECT_EQ(header.block, slice.block());
    EXPECT_EQ(header.part.layer_begin, slice.part().layer_begin());
    EXPECT_EQ(header.part.layer_end, slice.part().layer_end());
    EXPECT_EQ(header.part.head_begin, slice.part().head_begin());
    EXPECT_EQ(header.part.head_end, slice.part().head_end());
    EXPECT_EQ(header.layer, slice.layer());
    EXPECT_EQ(static_cast<int>(header.codec), slice.codec());
    EXPECT_EQ(header.slice_bytes, slice.slice_bytes());
    EXPECT_EQ(header.xxh3, slice.xxh3());
    EXPECT_EQ(header.tier, slice.tier());
    EXPECT_EQ(offset, slice.offset());
    EXPECT_EQ(Join(data), slice.data());
  }
  ASSERT_EQ(view.failed.size(), static_cast<size_t>(frame.failed_size()));
  for (int i = 0; i < frame.failed_size(); ++i) {
    EXPECT_EQ(view.failed[static_cast<size_t>(i)].block, frame.failed(i).block());
    EXPECT_EQ(view.failed[static_cast<size_t>(i)].reason, frame.failed(i).reason());
  }
  EXPECT_EQ(view.matched.has_value(), frame.has_matched());
}

TEST(FetchFrameReaderTest, ReadsWhatProtobufWroteHoweverItIsCut) {
  v1::FetchFrame frame = SomeFrame();
  frame.mutable_matched()->set_matched_blocks(3);
  for (const size_t size : {1, 2, 3, 7, 64, 1000, 1 << 20}) {
    grpc::ByteBuffer bytes = Cut(frame.SerializeAsString(), size);
    const auto view = ReadFetchFrame(&bytes);
    ASSERT_OK(view) << size;
    ExpectSame(*view, frame);
    EXPECT_EQ(view->matched->matched_blocks(), 3u);
  }
}

TEST(FetchFrameReaderTest, ReadsWhatTheWriterWrote) {
  FetchFrameWriter writer(1 << 20);
  const TestSlice large = MakeSlice(70000, 5, RandomBytes(100'000, 7));
  const TestSlice small = MakeSlice(0, 3, RandomBytes(20, 8));
  Add(&writer, small);
  writer.Add(FailedBlock{9, v1::MISS_REASON_EVICTED});
  Add(&writer, large, 30);
  grpc::ByteBuffer frame = writer.Take();
  const auto view = ReadFetchFrame(&frame);
  ASSERT_OK(view);
  ExpectSame(*view, Parse<v1::FetchFrame>(frame));
  ASSERT_EQ(view->pieces.size(), 2u);
  EXPECT_EQ(Join(view->pieces[0].data), *small.hold);
  EXPECT_EQ(view->pieces[1].offset, 30u);
  ASSERT_EQ(view->pieces[1].data.size(), 1u);
  EXPECT_EQ(view->pieces[1].data[0].data(), large.data().data() + 30)
      << "no copy between the node's memory and the reader";
}

TEST(FetchFrameReaderTest, BorrowsTheData) {
  for (const size_t size : {100, 1000, 1 << 20}) {
    grpc::ByteBuffer frame = Cut(SomeFrame().SerializeAsString(), size);
    const auto view = ReadFetchFrame(&frame);
    ASSERT_OK(view);
    for (const auto& piece : view->pieces) EXPECT_TRUE(LiesIn(&frame, piece.data)) << size;
  }
}

TEST(FetchFrameReaderTest, SkipsFieldsThatItDoesNotKnow) {
  v1::FetchFrame frame = SomeFrame();
  // Field 99 of every message, as a newer node may send it.
  const auto unknown = [](google::protobuf::Message* m) {
    return m->GetReflection()->MutableUnknownFields(m);
  };
  unknown(&frame)->AddVarint(99, 5);
  unknown(frame.mutable_slices(0))->AddLengthDelimited(99, "xyz");
  unknown(frame.mutable_slices(1))->AddFixed64(98, 1);
  unknown(frame.mutable_slices(2)->mutable_part())->AddVarint(99, 5);
  grpc::ByteBuffer bytes = Cut(frame.SerializeAsString(), 5);
  const auto view = ReadFetchFrame(&bytes);
  ASSERT_OK(view);
  ExpectSame(*view, frame);
}

TEST(FetchFrameReaderTest, ACodecOfTheFutureIsAMissOfThatBlock) {
  v1::FetchFrame frame = SomeFrame();
  frame.mutable_slices(1)->set_codec(static_cast<v1::Codec>(17));
  frame.mutable_slices(2)->set_tier(static_cast<v1::TierKind>(17));
  frame.clear_failed();
  grpc::ByteBuffer bytes = Cut(frame.SerializeAsString(), 1 << 20);
  const auto view = ReadFetchFrame(&bytes);
  ASSERT_OK(view);
  EXPECT_EQ(view->pieces.size(), 4u);
  ASSERT_EQ(view->failed.size(), 1u);
  EXPECT_EQ(view->failed[0].block, 1000u);
  EXPECT_EQ(view->failed[0].reason, v1::MISS_REASON_REFUSED);
}

TEST(FetchFrameReaderTest, AnEmptyFrameIsAFrame) {
  grpc::ByteBuffer frame = Cut("", 1);
  const auto view = ReadFetchFrame(&frame);
  ASSERT_OK(view);
  EXPECT_TRUE(view->pieces.empty());
}

TEST(FetchFrameReaderTest, LengthsBeyondTheirMessageAreDataLoss) {
  // A whole rectangle in a field that claims three bytes more than its slice has.
  const std::string part("\x12\x09\x08\x01\x10\x02\x20\x01", 8);
  for (const std::string& bytes :
       {std::string("\x0a\x08", 2) + part, std::string("\x0a\x7f", 2) + part,
        std::string("\x0a\xff\xff\xff\xff\x0f", 6), std::string("\x12\x04\x08\x01", 4),
        std::string("\x0a\x04\x42\x7f"
                    "ab",
                    6)}) {
    grpc::ByteBuffer frame = Cut(bytes, 2);
    EXPECT_THAT(ReadFetchFrame(&frame),
                StatusIs(StatusCode::kDataLoss, HasSubstr("cairn.v1.FetchFrame")));
  }
}

TEST(FetchFrameReaderTest, TooManySlicesOrFailuresAreDataLoss) {
  v1::FetchFrame slices, failures;
  for (int i = 0; i < 20000; ++i) {
    *slices.add_slices()->mutable_part() = SomeFrame().slices(0).part();
    failures.add_failed();
  }
  for (const v1::FetchFrame& message : {slices, failures}) {
    grpc::ByteBuffer frame = Cut(message.SerializeAsString(), 1000);
    EXPECT_THAT(ReadFetchFrame(&frame), StatusIs(StatusCode::kDataLoss, HasSubstr("16384")));
  }
}

TEST(FetchFrameReaderTest, DamagedFramesAreDataLossAndNeverReadOutside) {
  const std::string bytes = SomeFrame().SerializeAsString();
  std::mt19937 random(1);
  for (size_t i = 0; i < 5000; ++i) {
    std::string damaged = bytes;
    if (i % 2 == 0) damaged.resize(random() % damaged.size());
    for (unsigned n = random() % 4; n > 0 && !damaged.empty(); --n)
      damaged[random() % damaged.size()] = static_cast<char>(random());
    grpc::ByteBuffer frame = Cut(damaged, 1 + random() % 100);
    const auto view = ReadFetchFrame(&frame);
    if (!view.ok()) {
      ASSERT_THAT(view, StatusIs(StatusCode::kDataLoss, _));
      continue;
    }
    for (const auto& piece : view->pieces) ASSERT_TRUE(LiesIn(&frame, piece.data));
  }
}

}  // namespace
}  // namespace cairn::frames
