#pragma once
// How much near memory a context takes under a read policy, and how a budget is shared out.

#include <cstdint>

#include "cairn/common/status.h"
#include "services/worker/reading/read_policy.h"

namespace cairn::worker {

struct NearMemory {
  int64_t step_rows = 0;       // That a step chooses, per layer and KV head.
  int64_t set_rows = 0;        // Of a working set.
  uint64_t index_bytes = 0;    // Copy or index.
  uint64_t set_bytes = 0;      // All working sets.
  uint64_t staging_bytes = 0;  // Rows that arrive.
  uint64_t own_bytes = 0;      // Pages of the tokens behind the context.

  uint64_t total() const { return index_bytes + set_bytes + staging_bytes + own_bytes; }
};

// Gathers that may be under way at a time: each has memory for a layer's rows of a step.
inline constexpr int kMostGathers = 4;

// `rows`: of the context, at least one. `own_bytes`: see NearMemory. `budget` 0: no limit; working
// sets are as large as the policy's `set` says. Else they are as large as fits, up to that.
// INVALID_ARGUMENT: less than one step needs, with the least budget that works.
Result<NearMemory> ShareBudget(const ReadPolicy& policy, const KvLayout& kv, int64_t rows,
                               uint64_t own_bytes, uint64_t budget);

}  // namespace cairn::worker
