#pragma once
// The stream of one OpenSession call: the session lives as long as it does.

#include "cairn/v1/cache.pb.h"
#include "common/rpc/call.h"
#include "common/rpc/pushed_stream.h"
#include "common/rpc/stream_set.h"
#include "services/cache/rpc/rpc_context.h"

namespace cairn::cache {

// The ticker calls Tick, from one thread; gRPC does the rest.
class SessionStream final : public rpc::PushedStream {
 public:
  // Opens the engine's session and sends the first message; a refusal ends the stream.
  static void Open(RpcContext* rpc, rpc::Method* method, rpc::StreamSet<SessionStream>* set,
                   std::unique_ptr<rpc::RawCall> call, const grpc::ByteBuffer& request);
  SessionStream(RpcContext* rpc, rpc::Method* method, rpc::StreamSet<SessionStream>* set,
                std::unique_ptr<rpc::RawCall> call)
      : PushedStream(std::move(call)), rpc_(rpc), set_(set), call_(rpc, method, &context()) {}

  // Sends a heartbeat when one is due, or when the node began to drain.
  void Tick();

 private:
  Status Begin(const grpc::ByteBuffer& request);
  v1::SessionEvent Event(bool draining) const;
  void OnOver(const grpc::Status& status) override;

  RpcContext* const rpc_;
  rpc::StreamSet<SessionStream>* const set_;
  rpc::Call call_;
  std::optional<SessionId> session_;  // Constant after Begin, as is token_.
  SessionToken token_{};
  LocalServer* local_ = nullptr;  // That knows local_token_; nullptr: none does.
  LocalToken local_token_{};
  // Owned by the ticker's thread.
  TimePoint last_beat_;
  bool told_draining_ = false;
};

}  // namespace cairn::cache
