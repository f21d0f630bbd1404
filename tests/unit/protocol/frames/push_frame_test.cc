// Writer and reader of PushFrame against protobuf's own coder, and against each other.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cairn/v1/cache.pb.h"
#include "common/status/matchers.h"
#include "protocol/frames/push_frame_reader.h"
#include "protocol/frames/push_frame_writer.h"
#include "protocol/wire/message_limits.h"
#include "tests/unit/protocol/frames/frame_bytes.h"

namespace cairn::frames {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PushFrameWriterTest, ProtobufReadsWhatItWrote) {
  const std::string data = RandomBytes(10000, 3);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data));
  for (const uint32_t limit : {0u, 1u, 5000u, 1u << 30}) {
    const size_t limit_now =
        limit == 0 ? wire::kFrameBytes
                   : std::clamp<size_t>(limit, 4096, static_cast<size_t>(wire::kFrameBytes));
    for (const bool hold : {false, true}) {
      PushFrameWriter writer("0123456789abcdef", {}, limit);
      std::shared_ptr<const void> keep = hold ? std::make_shared<int>(1) : nullptr;
      std::string got[2];
      size_t frames = 0;
      const auto take = [&] {
        const grpc::ByteBuffer frame = writer.Take();
        EXPECT_LE(frame.Length(), limit_now);
        const auto parsed = Parse<v1::PushFrame>(frame);
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
        EXPECT_EQ(keep.use_count(), 1) << "sent frames release the bytes";
      }
    }
  }
}

TEST(PushFrameWriterTest, TheBytesOfAFrameAreThese) {
  const uint64_t commit[] = {7, 300};
  const std::string data = "abc";
  PushFrameWriter writer("s", commit, 0);
  writer.Add(300, 0, std::as_bytes(std::span(data)), nullptr);
  EXPECT_EQ(Flatten(writer.Take()), std::string("\x0a\x01"
                                                "s"
                                                "\x1a\x03\x07\xac\x02"
                                                "\x12\x0a\x08\xac\x02\x10\x00\x1a\x03"
                                                "abc",
                                                20));
}

TEST(PushFrameReaderTest, ReadsWhatTheWriterWrote) {
  const std::string data = RandomBytes(100'000, 4);
  const auto bytes = std::as_bytes(std::span(data));
  const uint64_t commit[] = {7, UINT64_MAX};
  PushFrameWriter writer("0123456789abcdef", commit, 0);
  writer.Add(7, 0, bytes.first(100), nullptr);
  writer.Add(UINT64_MAX, 1ull << 40, bytes, std::make_shared<int>());
  grpc::ByteBuffer frame = writer.Take();
  const auto view = ReadPushFrame(&frame);
  ASSERT_OK(view);
  EXPECT_EQ(view->session_id, "0123456789abcdef");
  EXPECT_THAT(view->commit_ids, ElementsAre(7, UINT64_MAX));
  ASSERT_EQ(view->pieces.size(), 2u);
  EXPECT_EQ(view->pieces[0].reservation_id, 7u);
  EXPECT_EQ(view->pieces[0].offset, 0u);
  EXPECT_EQ(Join(view->pieces[0].data), data.substr(0, 100));
  EXPECT_EQ(view->pieces[1].reservation_id, UINT64_MAX);
  EXPECT_EQ(view->pieces[1].offset, 1ull << 40);
  EXPECT_EQ(view->pieces[1].bytes, data.size());
  ASSERT_EQ(view->pieces[1].data.size(), 1u);
  EXPECT_EQ(view->pieces[1].data[0].data(), bytes.data())
      << "no copy between the caller's memory and the reader";
}

TEST(PushFrameReaderTest, ReadsWhatProtobufWroteHoweverItIsCut) {
  v1::PushFrame frame;
  frame.set_session_id(RandomBytes(16, 7));
  for (uint32_t i = 0; i < 5; ++i) {
    auto* piece = frame.add_pieces();
    piece->set_reservation_id(i * 1000 + 1);
    piece->set_offset(i * 0x100000000ull);
    piece->set_data(RandomBytes(i * 5000, i));
  }
  const std::string bytes = frame.SerializeAsString();
  for (const size_t size : {1ul, 7ul, 4096ul, bytes.size()}) {
    grpc::ByteBuffer cut = Cut(bytes, size);
    const auto view = ReadPushFrame(&cut);
    ASSERT_OK(view);
    EXPECT_EQ(view->session_id, frame.session_id());
    ASSERT_EQ(view->pieces.size(), 5u);
    for (int i = 0; i < 5; ++i) {
      const auto& piece = view->pieces[static_cast<size_t>(i)];
      EXPECT_EQ(piece.reservation_id, frame.pieces(i).reservation_id());
      EXPECT_EQ(piece.offset, frame.pieces(i).offset());
      EXPECT_EQ(piece.bytes, frame.pieces(i).data().size());
      EXPECT_EQ(Join(piece.data), frame.pieces(i).data());
      EXPECT_TRUE(LiesIn(&cut, piece.data));
    }
  }
}

TEST(PushFrameReaderTest, SkipsUnknownFieldsAndTakesAnyOrder) {
  // Piece: data, unknown field 15, offset, reservation; frame: unknown field 9 before it.
  const std::string piece = std::string(
                                "\x1a\x03"
                                "abc",
                                5) +
                            std::string("\x7a\x02zz", 4) + std::string("\x10\x05\x08\x07", 4);
  const std::string bytes =
      std::string("\x48\x01", 2) + "\x12" + static_cast<char>(piece.size()) + piece;
  grpc::ByteBuffer frame = Cut(bytes, 3);
  const auto view = ReadPushFrame(&frame);
  ASSERT_OK(view);
  ASSERT_EQ(view->pieces.size(), 1u);
  EXPECT_EQ(view->pieces[0].reservation_id, 7u);
  EXPECT_EQ(view->pieces[0].offset, 5u);
  EXPECT_EQ(Join(view->pieces[0].data), "abc");
}

TEST(PushFrameReaderTest, TakesIdsPackedAndSingle) {
  grpc::ByteBuffer frame = Cut(std::string("\x1a\x02\x01\x02\x18\x03\x1a\x01\x04", 9), 2);
  const auto view = ReadPushFrame(&frame);
  ASSERT_OK(view);
  EXPECT_THAT(view->commit_ids, ElementsAre(1, 2, 3, 4));
}

TEST(PushFrameReaderTest, EveryTruncationIsAnErrorOrAShorterFrameAndNeverACrash) {
  v1::PushFrame frame;
  frame.set_session_id(std::string(16, 's'));
  for (int i = 0; i < 3; ++i) {
    auto* piece = frame.add_pieces();
    piece->set_reservation_id(1);
    piece->set_data(std::string(200, 'd'));
  }
  const std::string bytes = frame.SerializeAsString();
  for (size_t length = 0; length < bytes.size(); ++length) {
    grpc::ByteBuffer cut = Cut(bytes.substr(0, length), 64);
    v1::PushFrame reference;
    EXPECT_EQ(ReadPushFrame(&cut).ok(), reference.ParseFromString(bytes.substr(0, length)))
        << length;
  }
}

TEST(PushFrameReaderTest, FlippedBytesNeverCrashAndAgreeWithProtobuf) {
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
      grpc::ByteBuffer cut = Cut(changed, 16);
      const auto view = ReadPushFrame(&cut);
      v1::PushFrame reference;
      if (!view.ok() || !reference.ParseFromString(changed)) continue;
      ASSERT_EQ(view->pieces.size(), static_cast<size_t>(reference.pieces_size()));
      for (int i = 0; i < reference.pieces_size(); ++i) {
        EXPECT_EQ(Join(view->pieces[static_cast<size_t>(i)].data), reference.pieces(i).data());
      }
    }
  }
}

TEST(PushFrameReaderTest, TooManyPiecesOrIdsAreRefused) {
  v1::PushFrame pieces, ids;
  for (int i = 0; i < 20000; ++i) pieces.add_pieces();
  for (int i = 0; i < 4097; ++i) ids.add_commit_ids(1);
  grpc::ByteBuffer many_pieces = Cut(pieces.SerializeAsString(), 1000);
  EXPECT_THAT(ReadPushFrame(&many_pieces),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("pieces")));
  grpc::ByteBuffer many_ids = Cut(ids.SerializeAsString(), 1000);
  EXPECT_THAT(ReadPushFrame(&many_ids),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("commit_ids")));
}

TEST(PushFrameReaderTest, NestedLengthsBeyondTheFrameAreRefused) {
  for (const std::string& bytes :
       {std::string("\x12\xff\xff\xff\xff\x0f", 6),
        std::string("\x12\x04\x1a\x7f"
                    "ab",
                    6),
        std::string("\x0a\xff\xff\xff\xff\x07", 6), std::string("\x12\x7f", 2)}) {
    grpc::ByteBuffer frame = Cut(bytes, 2);
    EXPECT_THAT(ReadPushFrame(&frame),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("push frame")));
  }
}

}  // namespace
}  // namespace cairn::frames
