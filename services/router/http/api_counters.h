#pragma once
// The counters of the edge.

#include <cstdint>
#include <map>
#include <string_view>
#include <utility>

#include "common/concurrency/mutex.h"

namespace cairn::router {

enum class Route { kCompletions, kChat, kModels, kHealth, kQuery, kOther };
std::string_view Name(Route route);  // Label values: "completions", "chat", ...

// The counters of the edge.
struct ApiStats {
  std::map<std::pair<Route, int>, uint64_t> answers;  // By route and status code.
  uint64_t open_streams = 0;                          // Now.
  uint64_t streams = 0;                               // Streams that began.
  uint64_t failed_streams = 0;                        // Streams that ended with an error event.
  uint64_t aborted_calls = 0;  // The client went before its answer was complete.
};

// Thread-safe.
class ApiCounters {
 public:
  void Answered(Route route, int status) {
    MutexLock lock(mu_);
    ++stats_.answers[{route, status}];
  }
  void StreamBegan(Route route) {
    MutexLock lock(mu_);
    ++stats_.answers[{route, 200}];
    ++stats_.streams;
    ++stats_.open_streams;
  }
  void StreamEnded(bool failed) {
    MutexLock lock(mu_);
    --stats_.open_streams;
    if (failed) ++stats_.failed_streams;
  }
  void Aborted() {
    MutexLock lock(mu_);
    ++stats_.aborted_calls;
  }
  ApiStats Get() const {
    MutexLock lock(mu_);
    return stats_;
  }

 private:
  mutable Mutex mu_;
  ApiStats stats_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::router
