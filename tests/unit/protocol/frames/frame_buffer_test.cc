#include "protocol/frames/frame_buffer.h"

#include <gtest/gtest.h>

#include "tests/unit/protocol/frames/frame_bytes.h"

namespace cairn::frames {
namespace {

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(FrameBufferTest, FieldsAndDataComeInTheOrderInWhichTheyWereAdded) {
  const std::string large = RandomBytes(5000, 1), small = RandomBytes(10, 2);
  const auto hold = std::make_shared<int>();
  FrameBuffer buffer;
  EXPECT_TRUE(buffer.empty());
  *buffer.fields() += "a";
  buffer.AddData(BytesOf(large), hold);
  *buffer.fields() += "b";
  buffer.AddData(BytesOf(small), hold);
  buffer.AddData({}, hold);
  *buffer.fields() += "c";
  buffer.AddData(BytesOf(large), nullptr);
  EXPECT_FALSE(buffer.empty());
  EXPECT_EQ(Flatten(buffer.Take()), "a" + large + "b" + small + "c" + large);
  EXPECT_TRUE(buffer.empty());
}

TEST(FrameBufferTest, AnEmptyFrameIsAFrame) {
  FrameBuffer buffer;
  const grpc::ByteBuffer frame = buffer.Take();
  EXPECT_TRUE(frame.Valid());
  EXPECT_EQ(frame.Length(), 0u);
}

TEST(FrameBufferTest, BorrowsHeldBytesAndCopiesOthers) {
  std::string data = RandomBytes(10'000, 3);
  const std::string before = data;
  FrameBuffer borrows, copies;
  borrows.AddData(BytesOf(data), std::make_shared<int>());
  copies.AddData(BytesOf(data), nullptr);
  data[5] = static_cast<char>(data[5] + 1);
  EXPECT_EQ(Flatten(borrows.Take()), data);
  EXPECT_EQ(Flatten(copies.Take()), before);
}

TEST(FrameBufferTest, HoldsAndShareGoWithTheFrame) {
  const std::string data = RandomBytes(4096, 4);
  auto first = std::make_shared<int>(), second = std::make_shared<int>(),
       share = std::make_shared<int>();
  FrameBuffer buffer;
  buffer.AddData(BytesOf(data), first);
  buffer.AddData(BytesOf(data), second);
  buffer.AddData(BytesOf(data), second);
  grpc::ByteBuffer frame = buffer.Take(share);
  EXPECT_EQ(first.use_count(), 2);
  EXPECT_EQ(second.use_count(), 2) << "neighbours have one in common";
  EXPECT_EQ(share.use_count(), 2);
  frame.Clear();
  EXPECT_EQ(first.use_count(), 1);
  EXPECT_EQ(second.use_count(), 1);
  EXPECT_EQ(share.use_count(), 1);
}

TEST(FrameBufferTest, AFrameThatBorrowsNothingKeepsNoShare) {
  auto share = std::make_shared<int>();
  FrameBuffer buffer;
  *buffer.fields() += "a";
  const grpc::ByteBuffer frame = buffer.Take(share);
  EXPECT_EQ(share.use_count(), 1);
}

TEST(FrameBufferTest, ABufferThatNobodyTookReleasesWhatItHolds) {
  const std::string data = RandomBytes(4096, 5);
  auto hold = std::make_shared<int>();
  {
    FrameBuffer buffer;
    buffer.AddData(BytesOf(data), hold);
  }
  EXPECT_EQ(hold.use_count(), 1);
}

}  // namespace
}  // namespace cairn::frames
