#pragma once
// grpc.health.v1.Health: whether the process takes calls. gRPC's own is built on its callback API
// (see call_server.h).

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "common/lifecycle/lifecycle.h"
#include "common/rpc/call_server.h"
#include "common/rpc/context.h"
#include "common/rpc/stream_set.h"

namespace cairn::rpc {

class HealthWatch;

// Answers NOT_SERVING as soon as `context->draining` is set. Thread-safe.
class HealthService {
 public:
  // Watches that may be open, at most half of what the others leave of them over one connection.
  static constexpr size_t kMaxWatches = 1024;

  // `services`: the full names of those that may be asked about. `context` must outlive the server.
  HealthService(const Context* context, std::vector<std::string> services);
  // Before the server starts, which ends before this object.
  void AddTo(CallServer* server);
  // Tells watches what has changed; every 100 ms or so.
  void Tick();
  // Ends watches with UNAVAILABLE.
  void EndStreams();

 private:
  bool Knows(const std::string& service) const;

  const Context* const context_;
  const std::vector<std::string> services_;
  Gate places_{kMaxWatches};
  StreamSet<HealthWatch> watches_;
  std::atomic<bool> ended_{false};
};

}  // namespace cairn::rpc
