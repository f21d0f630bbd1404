#pragma once
// Bytes of frames, and frames of bytes, for tests.

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "protocol/frames/field_reader.h"

namespace cairn::frames {

inline std::string RandomBytes(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::string bytes(size, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

// The bytes cut into slices of `size`, as a network may deliver them.
inline grpc::ByteBuffer Cut(const std::string& bytes, size_t size) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += size) slices.emplace_back(bytes.substr(at, size));
  if (slices.empty()) slices.emplace_back(std::string());
  return grpc::ByteBuffer(slices.data(), slices.size());
}

inline std::string Flatten(const grpc::ByteBuffer& frame) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(frame.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices)
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

inline std::string Join(const Chunks& data) {
  std::string bytes;
  for (const auto& chunk : data)
    bytes.append(reinterpret_cast<const char*>(chunk.data()), chunk.size());
  return bytes;
}

// The frame as protobuf's own reader understands it.
template <typename Message>
Message Parse(const grpc::ByteBuffer& frame) {
  Message message;
  EXPECT_TRUE(message.ParseFromString(Flatten(frame)));
  return message;
}

// Whether every chunk lies in one of the frame's slices: nothing was copied.
inline bool LiesIn(grpc::ByteBuffer* frame, const Chunks& data) {
  grpc::ProtoBufferReader reader(frame);
  const void* at = nullptr;
  int size = 0;
  size_t found = 0;
  while (reader.Next(&at, &size)) {
    const auto* const begin = static_cast<const std::byte*>(at);
    for (const auto& chunk : data) {
      found += chunk.data() >= begin && chunk.data() + chunk.size() <= begin + size ? 1 : 0;
    }
  }
  return found == data.size();
}

}  // namespace cairn::frames
