#pragma once
// The worker's gRPC server. Its header knows no gRPC, so that main does not either.

#include <chrono>
#include <memory>
#include <string>

#include "cairn/common/status.h"
#include "common/net/tls.h"
#include "services/worker/engine/worker_engine.h"
#include "services/worker/rpc/worker_metrics.h"

namespace cairn::worker {

// Calls come on gRPC's threads; Start, Shutdown and the destructor on one thread.
class Server {
 public:
  struct Options {
    std::string listen;  // host:port, port 0 picks one; or unix:/path.
    net::TlsOptions tls;
    uint32_t max_requests = 17;  // That may be inside: running and waiting ones.
  };

  // `engine` and `metrics` must outlive the server. UNAVAILABLE when the address cannot be bound.
  static Result<std::unique_ptr<Server>> Start(const Options& options, WorkerEngine& engine,
                                               const WorkerMetrics& metrics);
  ~Server();  // Shutdown(0).

  // With the port that was picked.
  const std::string& address() const;
  // No new calls; ends those that are still there after `grace`. Idempotent.
  void Shutdown(std::chrono::milliseconds grace);

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::worker
