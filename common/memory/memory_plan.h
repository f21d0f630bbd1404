#pragma once
// Whether what a process may take fits, found out before it takes any.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "cairn/common/status.h"
#include "common/memory/machine_memory.h"

namespace cairn {

// An item of a process's memory. An item that nobody has set gives way where the rest does not fit,
// but not below `least`.
struct PlannedMemory {
  std::string_view setting;  // Or a word for what has none: "process".
  uint64_t bytes = 0;
  uint64_t least = UINT64_MAX;  // As much as `bytes` at most.
};

// Makes the items fit: into `limit` bytes, the value of the setting memory.limit (0: no limit), and
// into what `machine` has left. Each gives way by the same part of what it can.
// RESOURCE_EXHAUSTED names all items: even the least that they may be is too much.
Status FitMemory(std::span<PlannedMemory> items, uint64_t limit, const MachineMemory& machine);

// "index 256 + token_cache 64 + process 100 = 420 MiB", without items that take nothing. Each
// number is rounded up.
std::string DescribeMemory(std::span<const PlannedMemory> items);

}  // namespace cairn
