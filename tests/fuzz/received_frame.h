#pragma once
// Frames as gRPC receives them, for targets that read them.

#include <grpcpp/support/byte_buffer.h>

#include <string>
#include <vector>

#include "protocol/frames/field_reader.h"

namespace cairn::fuzz {

// The bytes in slices of `cut`, each in memory of its own.
inline grpc::ByteBuffer Received(const std::string& bytes, size_t cut) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += cut) slices.emplace_back(bytes.substr(at, cut));
  if (slices.empty()) slices.emplace_back(std::string());
  return grpc::ByteBuffer(slices.data(), slices.size());
}

inline std::string Join(const frames::Chunks& data) {
  std::string joined;
  for (const auto& chunk : data)
    joined.append(reinterpret_cast<const char*>(chunk.data()), chunk.size());
  return joined;
}

}  // namespace cairn::fuzz
