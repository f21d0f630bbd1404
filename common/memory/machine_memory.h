#pragma once
// How much memory there is for this process. All programs ask here, so that no two of them mean
// something else by "the machine's memory".

#include <cstdint>
#include <string>
#include <string_view>

#include "cairn/common/status.h"

namespace cairn {

// Bytes. UINT64_MAX: unknown, or no limit.
struct MachineMemory {
  uint64_t machine_total = UINT64_MAX;
  uint64_t machine_available = UINT64_MAX;  // MemAvailable.
  // The memory of the NUMA nodes that the process may take memory from (cpuset.mems), if those are
  // not all.
  uint64_t nodes_total = UINT64_MAX;
  uint64_t nodes_available = UINT64_MAX;
  // The least limit of the control groups up to the root: memory.max (version 2, systemd's
  // MemoryMax) or memory.limit_in_bytes (version 1).
  uint64_t group_limit = UINT64_MAX;
  // The least limit - usage, where page cache counts as free.
  uint64_t group_available = UINT64_MAX;

  // The most memory that the process may have, and how much of it is left now.
  uint64_t Total() const;
  uint64_t Available() const;
  // The name of the limit: "the machine", "the control group", "the NUMA nodes of the cpuset".
  std::string_view Limiter() const;
};

// Reads /proc and /sys below `root` ("" except in tests). A file that cannot be read counts as no
// limit.
MachineMemory ReadMachineMemory(const std::string& root = "");

// RESOURCE_EXHAUSTED: `bytes` are more than is available. `what` begins the error and names the
// setting and its value, `advice` ends it: "kv_pool: got 4GiB, expected at most the 650 MiB that
// the control group has left; lower kv_pool".
Status CheckFits(const MachineMemory& memory, uint64_t bytes, const std::string& what,
                 const std::string& advice);

}  // namespace cairn
