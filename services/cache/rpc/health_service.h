#pragma once
// grpc.health.v1.Health: whether the node takes calls. gRPC's own is built on its callback API (see call_server.h).

#include <atomic>
#include <memory>

#include "services/cache/rpc/call.h"
#include "services/cache/rpc/stream_set.h"

namespace cairn::cache {

class HealthWatch;

// NOT_SERVING from the moment when `rpc->draining` is set. Thread-safe.
class HealthService {
 public:
  // `rpc` outlives the server.
  explicit HealthService(const RpcContext* rpc) : rpc_(rpc) {}
  // Before the server starts, which ends before this object.
  void AddTo(CallServer* server);
  // Tells watches what has changed; every 100 ms or so.
  void Tick();
  // Ends watches with UNAVAILABLE.
  void EndStreams();

 private:
  const RpcContext* const rpc_;
  StreamSet<HealthWatch> watches_;
  std::atomic<bool> ended_{false};
};

}  // namespace cairn::cache
