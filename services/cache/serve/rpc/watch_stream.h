#pragma once
// The stream of one Watch call. Holds no thread: the engine's queue is looked into at each tick,
// and after each event sent.

#include <atomic>

#include "cairn/v1/cache.pb.h"
#include "common/rpc/call.h"
#include "common/rpc/pushed_stream.h"
#include "common/rpc/rights_watch.h"
#include "common/rpc/stream_set.h"
#include "services/cache/serve/rpc/rpc_context.h"

namespace cairn::cache {

// The ticker, gRPC and the executor call it from any thread; one at a time pumps.
class WatchStream final : public rpc::PushedStream {
 public:
  // The streams that are open, and the places that they share. Both outlive the server.
  struct All {
    rpc::StreamSet<WatchStream>* open;
    Gate* places;
  };
  static void Open(RpcContext* rpc, rpc::Method* method, const All& all,
                   std::unique_ptr<rpc::RawCall> call, const grpc::ByteBuffer& request);
  WatchStream(RpcContext* rpc, rpc::Method* method, const All& all,
              std::unique_ptr<rpc::RawCall> call)
      : PushedStream(std::move(call)), rpc_(rpc), all_(all), call_(rpc, method, &context()) {}

  // Ends the stream when the policy gives its caller other rights than those with which it began.
  void Tick();

 private:
  Status Begin(const grpc::ByteBuffer& request);
  // Whether the caller may see what it asks for.
  Status CheckSight(const v1::WatchRequest& request,
                    const std::optional<Digest>& fingerprint) const;
  void Pump();
  // Sends the next event if there is one and the stream is idle; false when there is nothing to
  // send.
  bool Step();
  // On the executor: a poller that finds an ended write each time it looks reads no request. 64
  // snapshots kept it from that for seconds. Where the executor is full, the next tick goes on.
  void OnIdle() override;
  void OnOver(const grpc::Status& status) override;

  RpcContext* const rpc_;
  const All all_;
  Gate::Pass place_;
  rpc::Call call_;
  std::weak_ptr<WatchStream> me_;  // Constant after Open.
  bool open_ = false;
  rpc::RightsWatch rights_;  // The ticker's.
  std::unique_ptr<EventQueue> queue_;
  std::atomic<bool> pumping_{false};
  // Owned by the caller that holds pumping_.
  std::vector<CacheEvent> batch_;
  size_t next_ = 0;
};

}  // namespace cairn::cache
