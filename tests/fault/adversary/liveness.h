#pragma once
// Asks /livez as a kubelet does, all the time.

#include <atomic>
#include <string>
#include <thread>

#include "common/concurrency/mutex.h"
#include "tests/fault/adversary/tested_server.h"

namespace cairn::fault {

// Thread-safe.
class Liveness {
 public:
  explicit Liveness(const TestedServer* server);
  ~Liveness();

  struct Window {
    uint64_t probes = 0;
    uint64_t red = 0;  // Another answer than 200, or none within the chart's patience of 3 s.
    double slowest_ms = 0;
    std::string last_error = {};
  };
  Window TakeWindow();

 private:
  void Run();

  const TestedServer& server_;
  std::atomic<bool> done_{false};
  mutable Mutex mu_;
  Window window_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace cairn::fault
