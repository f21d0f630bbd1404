#pragma once
// What a request would cost, found out in its frame before anything is decoded. An element of a
// repeated field takes two bytes of a frame and fifty times that in memory, so whoever only wants
// to refuse a request must not build it first.

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>

#include "cairn/common/status.h"

namespace cairn::rpc {

// How many elements a repeated field may have, in all messages of a frame together.
struct FieldBound {
  std::string_view field;  // "cairn.v1.NativeLayout.groups".
  uint64_t most = 0;
};

// Constant after construction: any thread.
class FrameBounds {
 public:
  // Fields that a message does not have, as a newer client sends them. Protobuf keeps them.
  static constexpr uint64_t kMostUnknown = 1024;

  FrameBounds() = default;
  // Messages that the program does not have are left out.
  explicit FrameBounds(std::span<const FieldBound> bounds);

  // Reads the frame of a message of this type, as far as the first field that comes too often, and
  // takes no memory for what is in it. Returns about how many bytes the message takes when it is
  // decoded. INVALID_ARGUMENT: the frame is no such message, or a field has too many elements,
  // which the error names.
  Result<uint64_t> Measure(const grpc::ByteBuffer& frame,
                           const google::protobuf::Message& type) const;

 private:
  std::unordered_map<const google::protobuf::FieldDescriptor*, uint64_t> most_;
};

}  // namespace cairn::rpc
