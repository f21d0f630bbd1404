#pragma once
// The stream of one Push call: each frame is copied into its reservations before the next one is read. At the end of the stream what its
// first frame named is committed.

#include <grpcpp/support/byte_buffer.h>

#include <optional>

#include "cairn/v1/cache.pb.h"
#include "services/cache/rpc/call.h"
#include "services/cache/rpc/push_frame.h"

namespace cairn::cache {

// Deletes itself when gRPC is done with it. One reaction runs at a time.
class PushCall final : public CallReactor {
 public:
  PushCall(RpcContext* rpc, std::unique_ptr<RawCall> call);

 private:
  Status Take();
  // Commits what the first frame named, on the executor: it hashes.
  void Commit();
  void Answer(v1::PushResponse response);
  void OnReadDone(bool ok) override;
  void OnDone() override;

  Call call_;
  grpc::ByteBuffer frame_;  // What was read last; in the end the answer.
  std::string token_;
  std::optional<SessionId> session_;
  std::vector<uint64_t> commit_ids_;
  uint64_t bytes_ = 0;
};

}  // namespace cairn::cache
