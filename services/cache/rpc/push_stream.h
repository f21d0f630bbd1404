#pragma once
// The stream of one Push call. It copies each frame into its reservations before it reads the next
// one. At the end of the stream it commits the reservations that the first frame named.

#include <grpcpp/support/byte_buffer.h>

#include <optional>

#include "cairn/v1/cache.pb.h"
#include "common/rpc/call.h"
#include "common/rpc/call_reactor.h"
#include "services/cache/rpc/rpc_context.h"

namespace cairn::cache {

// Deletes itself when gRPC is done with it. One thread at a time drives it: reactions, and Commit.
class PushCall final : public rpc::CallReactor {
 public:
  PushCall(RpcContext* rpc, rpc::Method* method, std::unique_ptr<rpc::RawCall> call);

 private:
  Status Take();
  // Commits what the first frame named, on the executor: it hashes.
  void Commit();
  void Answer(v1::PushResponse response);
  void OnReadDone(bool ok) override;
  void OnDone() override;

  RpcContext* const rpc_;
  rpc::Call call_;
  grpc::ByteBuffer frame_;  // What was read last; in the end the answer.
  std::string token_;
  std::optional<SessionId> session_;
  std::vector<uint64_t> commit_ids_;
  uint64_t bytes_ = 0;
};

}  // namespace cairn::cache
