#pragma once
// The worker's gRPC server. Its header knows no gRPC, so that main does not either.

#include <chrono>
#include <memory>
#include <string>

#include "cairn/common/status.h"
#include "common/auth/access.h"
#include "common/metrics/metrics.h"
#include "common/net/tls.h"
#include "common/rpc/request_bytes.h"
#include "common/tracing/tracer.h"
#include "services/worker/engine/worker_engine.h"
#include "services/worker/rpc/worker_metrics.h"

namespace cairn::worker {

// Start, BeginDrain, Shutdown and the destructor are called on one thread; Tick may be called on
// another meanwhile.
class Server {
 public:
  struct Options {
    std::string listen;  // host:port, port 0 picks one; or unix:/path.
    net::TlsOptions tls;
    uint32_t max_requests = 17;  // Requests that may be inside: running and waiting ones.
    // Bytes of the requests of all calls under way, as they were decoded, and again of the messages
    // that gRPC receives (setting rpc.requests).
    uint64_t request_bytes = 256 << 20;
    auth::Access* access = nullptr;     // nullptr: no policy. Outlives the server.
    std::string tenant = "default";     // The tenant of requests that name none.
    tracing::Tracer* tracer = nullptr;  // nullptr: nobody wants spans. Outlives the server.
  };

  // `engine`, `metrics` and `registry`, which gets the numbers of the calls, must outlive the
  // server. UNAVAILABLE when the address cannot be bound.
  static Result<std::unique_ptr<Server>> Start(const Options& options, WorkerEngine& engine,
                                               const WorkerMetrics& metrics,
                                               metrics::Registry* registry);
  ~Server();  // Shutdown(0).

  // With the port that was picked.
  const std::string& address() const;
  // Tells watchers of the health service what has changed; every 100 ms or so.
  void Tick();
  // As rpc::CallServer::BusyFor. Any thread.
  Duration BusyFor() const;
  // The bytes of requests that were decoded and are under way.
  const rpc::RequestBytes& requests() const;
  // Health says NOT_SERVING from now on.
  void BeginDrain();
  // No new calls; ends those that are still there after `grace`. Idempotent.
  void Shutdown(std::chrono::milliseconds grace);

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::worker
