#pragma once
// The operating system's figures about this process.

#include <cstdint>

namespace cairn::metrics {

struct ProcessStats {
  double cpu_seconds = 0;
  uint64_t resident_bytes = 0;
  uint64_t open_fds = 0;
  double start_time_seconds = 0;  // Since 1970.
};

ProcessStats ReadProcessStats();

}  // namespace cairn::metrics
