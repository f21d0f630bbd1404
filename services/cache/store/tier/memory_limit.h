#pragma once
// How much memory there is for this process: on the machine and in the control group.

#include <cstdint>
#include <string>

namespace cairn::cache {

struct MemoryLimit {
  uint64_t machine_available = UINT64_MAX;  // MemAvailable.
  // The least memory.max (v2) or limit_in_bytes (v1) up to the root; UINT64_MAX: none.
  uint64_t group_limit = UINT64_MAX;
  // The least limit - usage, where page cache counts as free.
  uint64_t group_available = UINT64_MAX;
  uint64_t Available() const {
    return machine_available < group_available ? machine_available : group_available;
  }
};

// Reads /proc and /sys/fs/cgroup below `root` ("" except in tests). A file that cannot be read
// counts as no limit.
MemoryLimit ReadMemoryLimit(const std::string& root = "");

}  // namespace cairn::cache
