#pragma once
// Messages to and from gRPC's raw frames.

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>

namespace cairn::rpc {

// REQUIRES: what every message of ours is far from: at most 2 GiB.
grpc::ByteBuffer ToFrame(const google::protobuf::MessageLite& message);
// False for what is no such message. The frame stays as it is.
bool FromFrame(const grpc::ByteBuffer& frame, google::protobuf::MessageLite* message);

}  // namespace cairn::rpc
