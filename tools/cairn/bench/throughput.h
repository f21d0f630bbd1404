#pragma once
// The metrics that transfers have in common.

#include <string>
#include <vector>

#include "tools/cairn/bench/operations.h"
#include "tools/cairn/bench/workload.h"

namespace cairn::cli::bench {

// Sums up the passes of one trial. One thread at a time.
class Throughput {
 public:
  // `cpu_seconds`: processor time of node and clients during the pass.
  void Add(const Operations& pass, uint64_t bytes_per_operation, double cpu_seconds);
  double seconds() const { return seconds_; }
  // throughput, p50, p99, cpu.
  std::vector<Metric> Metrics() const;

 private:
  double seconds_ = 0, bytes_ = 0, cpu_seconds_ = 0;
  std::vector<double> latencies_us_;
};

}  // namespace cairn::cli::bench
