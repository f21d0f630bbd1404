#pragma once
// Workers that DNS names, such as those of a headless Service: dns:[http://]NAME:PORT for all
// addresses of a name, dns:[http://]_SERVICE._tcp.NAME for the targets of its SRV records.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cairn/common/status.h"
#include "services/router/registry/named_worker.h"

namespace cairn::router {

struct WorkerName {
  std::string scheme = {};  // "http://", "https://", or empty for workers of Cairn.
  std::string name = {};
  uint16_t port = 0;  // 0: SRV records have it.
};

// INVALID_ARGUMENT names the setting `workers`. REQUIRES: IsWorkerName(worker).
Result<WorkerName> ParseWorkerName(const std::string& worker);

// Asks for the names of `workers` every second, on threads of its own. Nobody leaves because a name
// server does not answer, or answers with nothing. Its destructor waits for a callback that runs.
class WorkerFollower {
 public:
  // All workers as they are named now, and those that have addresses of their own. One at a time.
  using OnWorkers = std::function<void(const std::vector<NamedWorker>& workers)>;
  // REQUIRES: all names were parsed before. UNAVAILABLE: there is no resolver.
  static Result<std::unique_ptr<WorkerFollower>> Start(const std::vector<std::string>& workers,
                                                       OnWorkers on_workers);
  ~WorkerFollower();

 private:
  struct State;
  explicit WorkerFollower(std::unique_ptr<State> state);
  const std::unique_ptr<State> state_;
};

}  // namespace cairn::router
