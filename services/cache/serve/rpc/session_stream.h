#pragma once
// The stream of one OpenSession call: the session lives as long as it does.

#include <atomic>

#include "cairn/v1/cache.pb.h"
#include "common/concurrency/mutex.h"
#include "common/rpc/call.h"
#include "common/rpc/pushed_stream.h"
#include "common/rpc/rights_watch.h"
#include "common/rpc/stream_set.h"
#include "services/cache/serve/rpc/rpc_context.h"
#include "services/cache/store/state/memory_account.h"

namespace cairn::cache {

// Any thread may call Tick: the ticker does, and so does the thread that drains the node. gRPC does
// the rest.
class SessionStream final : public rpc::PushedStream {
 public:
  // The streams that are open, and the places that they share. Both outlive the server.
  struct All {
    rpc::StreamSet<SessionStream>* open;
    Gate* places;
  };
  // Opens the engine's session and sends the first message; a refusal ends the stream.
  static void Open(RpcContext* rpc, rpc::Method* method, const All& all,
                   std::unique_ptr<rpc::RawCall> call, const grpc::ByteBuffer& request);
  SessionStream(RpcContext* rpc, rpc::Method* method, const All& all,
                std::unique_ptr<rpc::RawCall> call)
      : PushedStream(std::move(call)), rpc_(rpc), all_(all), call_(rpc, method, &context()) {}

  // Sends a heartbeat when one is due, or when the node began to drain. Ends the session when the
  // policy gives its caller other rights than those with which it was opened.
  void Tick();

 private:
  Status Begin(const grpc::ByteBuffer& request);
  // The tenant for the engine.
  Result<std::string> TenantOf(const v1::OpenSessionRequest& request) const;
  v1::SessionEvent Event(bool draining) const;
  // Takes the session away from its clients. Once.
  void Close();
  void OnOver(const grpc::Status& status) override;

  RpcContext* const rpc_;
  const All all_;
  Gate::Pass place_;
  MemoryCharge memory_;
  rpc::Call call_;
  std::optional<SessionId> session_;  // Constant after Begin, as is token_.
  SessionToken token_{};
  LocalServer* local_ = nullptr;  // The server that knows local_token_; nullptr: none does.
  LocalToken local_token_{};
  // Held while a message goes to gRPC, so that of two ticks at once only one tells the client.
  Mutex beat_mu_;
  rpc::RightsWatch rights_ ABSL_GUARDED_BY(beat_mu_);
  TimePoint last_beat_ ABSL_GUARDED_BY(beat_mu_);
  bool told_draining_ ABSL_GUARDED_BY(beat_mu_) = false;
  std::optional<TimePoint> revoked_ ABSL_GUARDED_BY(beat_mu_);
  std::atomic<bool> closed_{false};
};

}  // namespace cairn::cache
