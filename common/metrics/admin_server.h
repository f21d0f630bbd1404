#pragma once
// The admin port: plain HTTP for probes and scrapes, GET only, nothing that changes anything.
//
//   /livez     200 while the process runs its loop (a watchdog that the owner feeds)
//   /startupz  200 once started
//   /readyz    200 while the node takes requests; 503 with the reason otherwise
//   /metrics   Prometheus text
//
// Liveness depends on the process alone, never on peers or disk: else one outage restarts every
// node at once.

#include <memory>
#include <string>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/metrics/metrics.h"

namespace cairn::metrics {

enum class NodeState { kStarting, kReady, kDraining };

// State behind the probes. Thread-safe.
class Health {
 public:
  // Not alive when `Beat` was not called for `max_silence`.
  Health(const Clock* clock, Duration max_silence);
  ~Health();
  // `reason`: shown by /readyz when not ready.
  void SetState(NodeState state, const std::string& reason);
  NodeState state() const;
  std::string reason() const;
  void Beat();
  bool Alive() const;
  // cairn_node_state{state}: one of three is 1.
  void Export(Registry* registry) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class AdminServer {
 public:
  // `listen`: "host:port", port 0 picks a free one. INVALID_ARGUMENT for an address of another
  // form, UNAVAILABLE when it cannot be bound. `registry` and `health` outlive the server.
  static Result<std::unique_ptr<AdminServer>> Start(const std::string& listen,
                                                    const Registry* registry, const Health* health);
  ~AdminServer();  // Waits for requests under way.
  // "127.0.0.1:7401": with the port that was picked.
  const std::string& address() const;

 private:
  AdminServer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// GET http://address/path without TLS, for health commands and tests. The body of a 200 answer;
// UNAVAILABLE otherwise, with the answer's text.
Result<std::string> HttpGet(const std::string& address, const std::string& path, Duration timeout);

}  // namespace cairn::metrics
