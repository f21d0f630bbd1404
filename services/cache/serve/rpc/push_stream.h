#pragma once
// The stream of one Push call. It copies each frame into its reservations before it reads the next
// one. At the end of the stream it commits the reservations that the first frame named.
//
// The call takes its place among the calls under way with its first frame, so an idle stream costs
// others nothing. A client that sends nothing for longer than rpc.push_stall loses the call.

#include <grpc/grpc.h>
#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <optional>

#include "cairn/v1/cache.pb.h"
#include "common/rpc/call.h"
#include "common/rpc/call_reactor.h"
#include "common/rpc/stream_set.h"
#include "services/cache/serve/rpc/rpc_context.h"

namespace cairn::cache {

// Owns itself from Start until gRPC is done with it. One thread at a time drives it: reactions, and
// Commit. Only Tick comes from aside.
class PushCall final : public rpc::CallReactor {
 public:
  // `all` outlives the server.
  static void Start(RpcContext* rpc, rpc::Method* method, rpc::StreamSet<PushCall>* all,
                    std::unique_ptr<rpc::RawCall> call);
  PushCall(RpcContext* rpc, rpc::Method* method, rpc::StreamSet<PushCall>* all,
           std::unique_ptr<rpc::RawCall> call);
  ~PushCall() override;

  // Ends the call if its client has sent nothing for too long.
  void Tick();

 private:
  void Read();
  Status Take();
  // Commits what the first frame named, on the executor: it hashes.
  void Commit();
  void Answer(v1::PushResponse response);
  void OnReadDone(bool ok) override;
  void OnDone() override;

  RpcContext* const rpc_;
  rpc::StreamSet<PushCall>* const all_;
  rpc::Call call_;
  grpc_call* const grpc_call_;  // A reference of its own: Tick may cancel while gRPC ends the call.
  std::shared_ptr<PushCall> self_;
  grpc::ByteBuffer frame_;  // The frame that was read last; in the end the answer.
  std::string token_;
  std::optional<SessionId> session_;
  std::vector<uint64_t> commit_ids_;
  uint64_t bytes_ = 0;

  Mutex mu_;
  std::optional<TimePoint> reading_since_ ABSL_GUARDED_BY(mu_);
  bool cut_off_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace cairn::cache
