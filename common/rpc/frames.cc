#include "common/rpc/frames.h"

#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

namespace cairn::rpc {

grpc::ByteBuffer ToFrame(const google::protobuf::MessageLite& message) {
  grpc_slice bytes = grpc_slice_malloc(message.ByteSizeLong());
  message.SerializeWithCachedSizesToArray(GRPC_SLICE_START_PTR(bytes));
  const grpc::Slice slice(bytes, grpc::Slice::STEAL_REF);
  return grpc::ByteBuffer(&slice, 1);
}

bool FromFrame(const grpc::ByteBuffer& frame, google::protobuf::MessageLite* message) {
  grpc::ByteBuffer bytes(frame);  // Reading empties it.
  grpc::ProtoBufferReader reader(&bytes);
  return reader.status().ok() && message->ParseFromZeroCopyStream(&reader);
}

}  // namespace cairn::rpc
