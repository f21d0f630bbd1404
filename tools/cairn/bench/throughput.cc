#include "tools/cairn/bench/throughput.h"

#include "tools/cairn/bench/statistics.h"

namespace cairn::cli::bench {

void Throughput::Add(const Operations& pass, uint64_t bytes_per_operation, double cpu_seconds) {
  seconds_ += pass.seconds;
  bytes_ += static_cast<double>(pass.done) * static_cast<double>(bytes_per_operation);
  cpu_seconds_ += cpu_seconds;
  latencies_us_.insert(latencies_us_.end(), pass.latencies_us.begin(), pass.latencies_us.end());
}

std::vector<Metric> Throughput::Metrics() const {
  const double gigabytes = bytes_ / 1e9;
  return {{"throughput", "GB/s", seconds_ > 0 ? gigabytes / seconds_ : 0},
          {"p50", "us", Percentile(latencies_us_, 0.5)},
          {"p99", "us", Percentile(latencies_us_, 0.99)},
          {"cpu", "core-s/GB", gigabytes > 0 ? cpu_seconds_ / gigabytes : 0}};
}

}  // namespace cairn::cli::bench
