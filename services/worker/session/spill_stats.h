#pragma once
// The statistics of prompts that spill their KV. Totals.

#include <cstdint>

#include "services/worker/session/fetched_bytes.h"

namespace cairn::worker {

// The cost of reading it back.
struct SpillReadStats {
  BytesByTier bytes;
  uint64_t windows = 0;
  uint64_t late_windows = 0;  // Windows that attention had to wait for.
  double wait_seconds = 0;

  SpillReadStats& operator+=(const SpillReadStats& other) {
    bytes += other.bytes;
    windows += other.windows;
    late_windows += other.late_windows;
    wait_seconds += other.wait_seconds;
    return *this;
  }
};

struct SpillStats {
  uint64_t prompts = 0;
  uint64_t spilled_tokens = 0;   // Tokens whose pages were given back.
  uint64_t repeated_passes = 0;  // Passes that failed, since what was spilt did not come.
  uint64_t lost_tokens = 0;      // Spilt, and computed again, since the node had them no more.
  SpillReadStats read;

  SpillStats& operator+=(const SpillStats& other) {
    prompts += other.prompts;
    spilled_tokens += other.spilled_tokens;
    repeated_passes += other.repeated_passes;
    lost_tokens += other.lost_tokens;
    read += other.read;
    return *this;
  }
};

}  // namespace cairn::worker
