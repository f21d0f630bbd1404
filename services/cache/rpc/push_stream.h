#pragma once
// The stream of one Push call: each frame is copied into its reservations before the next one is read.

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <optional>

#include "services/cache/rpc/call.h"
#include "services/cache/rpc/push_frame.h"

namespace cairn::cache {

// Deletes itself when gRPC is done with it. One reaction runs at a time.
class PushCall final : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  PushCall(RpcContext* rpc, const grpc::CallbackServerContext* context, grpc::ByteBuffer* response);

 private:
  Status Take();
  void OnReadDone(bool ok) override;
  void OnDone() override;

  Call call_;
  grpc::ByteBuffer* const response_;
  grpc::ByteBuffer frame_;
  std::string token_;
  std::optional<SessionId> session_;
  uint64_t bytes_ = 0;
};

}  // namespace cairn::cache
