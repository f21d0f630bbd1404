#pragma once
// One thing that `cairn bench` measures.

#include <sys/types.h>

#include <string>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::cli::bench {

struct Metric {
  std::string name;  // "throughput", "p50", ...
  std::string unit;  // "GB/s" (1e9 bytes of payload), "us", "keys/s", ...
  double value = 0;
};

// Not thread-safe.
class Workload {
 public:
  virtual ~Workload() = default;
  // Everything that is not measured: nodes, connections, stored blocks.
  virtual Status Prepare() = 0;
  // About `seconds` of work, timed inside, every byte that was read compared with what was stored.
  // The same metrics in the same order each time.
  virtual Result<std::vector<Metric>> Trial(double seconds) = 0;
  // Processes whose time is ours, not a neighbour's.
  virtual std::vector<pid_t> Children() const { return {}; }
  // The facts that the report's reader must know, as (name, value): the path that was taken, ...
  virtual std::vector<std::pair<std::string, std::string>> Facts() const { return {}; }
};

}  // namespace cairn::cli::bench
