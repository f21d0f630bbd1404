#pragma once
// How much near memory a context takes under a read policy, and how a budget is shared out.

#include <algorithm>
#include <cstdint>

#include "cairn/common/status.h"
#include "services/worker/methods/reading/read_policy.h"

namespace cairn::worker {

struct NearMemory {
  int64_t step_rows = 0;       // Rows that a step chooses, per layer and KV head.
  int64_t set_rows = 0;        // Rows of a working set.
  uint64_t index_bytes = 0;    // Copy or index.
  uint64_t set_bytes = 0;      // All working sets.
  uint64_t staging_bytes = 0;  // Rows that arrive.
  uint64_t own_bytes = 0;      // Pages of the tokens behind the context.

  uint64_t total() const { return index_bytes + set_bytes + staging_bytes + own_bytes; }
};

// The limit of the option kv_budget, and how many requests share it evenly.
struct NearBudget {
  uint64_t bytes = 0;  // 0: no limit.
  uint32_t requests = 1;
  uint64_t share() const { return bytes == 0 ? 0 : std::max<uint64_t>(1, bytes / requests); }
};

// Gathers that may be under way at a time: each has memory for a layer's rows of a step.
inline constexpr int kMostGathers = 4;

// `rows`: of the context, at least one. `own_bytes`: see NearMemory. Without a limit, working sets
// are as large as the policy's `set` says. Else they are as large as fits, up to that.
// INVALID_ARGUMENT: a share is less than one step needs; the error names the least kv_budget that
// works.
Result<NearMemory> ShareBudget(const ReadPolicy& policy, const KvLayout& kv, int64_t rows,
                               uint64_t own_bytes, const NearBudget& budget);

}  // namespace cairn::worker
