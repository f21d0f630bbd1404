#pragma once
// Messages to and from gRPC's raw frames.

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>

namespace cairn::rpc {

// REQUIRES: at most 2 GiB. Every message of ours is far below that.
grpc::ByteBuffer ToFrame(const google::protobuf::MessageLite& message);
// False: the frame is not such a message. The frame is not changed.
bool FromFrame(const grpc::ByteBuffer& frame, google::protobuf::MessageLite* message);

}  // namespace cairn::rpc
