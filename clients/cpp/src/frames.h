#pragma once
// Small messages to and from raw frames.

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include <string>

namespace cairn::client {

inline grpc::ByteBuffer ToFrame(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

inline bool FromFrame(grpc::ByteBuffer& frame, google::protobuf::MessageLite* message) {
  grpc::ProtoBufferReader reader(&frame);
  return message->ParseFromZeroCopyStream(&reader);
}

}  // namespace cairn::client
