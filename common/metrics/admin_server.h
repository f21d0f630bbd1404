#pragma once
// The admin port: plain HTTP for probes and scrapes. It has only GET, and no request changes
// anything.
//
//   /livez     200 while the process runs its loop (a watchdog that the owner feeds), and no thread
//              that it watches is stuck; 503 with the reason otherwise
//   /startupz  200 once started
//   /readyz    200 while the node takes requests, with what it has to do without; 503 with the
//              reason otherwise
//   /metrics   Prometheus text
//
// Liveness depends on the process alone, never on peers or the disk. Otherwise one outage would
// restart every node at once.
//
// Slow clients do not keep the probes out. The port is a server of its own (common/http/server.h),
// with one thread that never blocks: another thread makes the text of /metrics. A connection gets
// one answer, and one that says nothing, or has its answer, gives its place to a newcomer.

#include <functional>
#include <memory>
#include <string>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/metrics/metrics.h"

namespace cairn::metrics {

enum class NodeState { kStarting, kReady, kDraining };

// The state that the probes report. Thread-safe.
class Health {
 public:
  // The process counts as not alive when `Beat` was not called for `max_silence`, or when a thread
  // that it watches has worked on one thing for that long.
  Health(const Clock* clock, Duration max_silence);
  ~Health();
  // `reason`: /readyz shows it. Why the process is not ready, or what it does without.
  void SetState(NodeState state, const std::string& reason);
  NodeState state() const;
  std::string reason() const;
  void Beat();
  // A thread that must never work on one thing for longer than `max_silence`, such as one that
  // polls for calls. `busy_for`: how long it has worked on what it works on now, 0 when it waits.
  // Called by probes, on any thread, until the last of them has ended; must not block or call this
  // object.
  void Watch(std::string what, std::function<Duration()> busy_for);
  // Why the process does not count as alive, for people; "" if it does.
  std::string Silent() const;
  bool Alive() const { return Silent().empty(); }
  // cairn_node_state{state}: exactly one of the three values is 1.
  void Export(Registry* registry) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Thread-safe.
class AdminServer {
 public:
  // How many scrapes are made or sent at a time. One more takes the place of one whose reader does
  // not take it, or gets 503.
  static constexpr size_t kScrapes = 8;
  struct Options {
    std::string listen;              // host:port, where port 0 picks a free one.
    uint32_t max_connections = 256;  // File descriptors.
    Duration request_timeout = std::chrono::seconds(2);
  };

  // INVALID_ARGUMENT: the address has another form. UNAVAILABLE: it cannot be bound. `registry` and
  // `health` must outlive the server.
  static Result<std::unique_ptr<AdminServer>> Start(const Options& options,
                                                    const Registry* registry, const Health* health);
  ~AdminServer();  // Waits for the scrape that is being made.
  // The address with the port that was picked, for example "127.0.0.1:7401".
  const std::string& address() const;

 private:
  AdminServer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct HttpAnswer {
  int status = 0;
  std::string body;  // At most 16 MiB.
};
// GET http://address/path without TLS, for health commands and tests. UNAVAILABLE: nobody answers.
// INVALID_ARGUMENT: the address is not host:port.
Result<HttpAnswer> HttpAsk(const std::string& address, const std::string& path, Duration timeout);
// The body of a 200 answer. UNAVAILABLE, with the text of the answer, for any other status, too.
Result<std::string> HttpGet(const std::string& address, const std::string& path, Duration timeout);

}  // namespace cairn::metrics
