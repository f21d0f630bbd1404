#pragma once
// A match over several pools of one index (cairn/common/kv/joint_match.h). A plan is made without
// the lock of the index, and the walk goes over it with the lock held. The walk looks at each block
// that the plan names once, and up to three times more at each that it leases: CheckQuestion bounds
// them.

#include <cstdint>
#include <optional>
#include <vector>

#include "cairn/common/kv/joint_match.h"
#include "cairn/common/next_use.h"
#include "common/keys/restorable_lengths.h"
#include "services/cache/store/index/block_index.h"

namespace cairn::cache {

// A question about a prompt, in blocks. As thread-safe as a plain struct.
struct JointPlan {
  // REQUIRES: CheckQuestion.
  JointPlan(const Layout& layout, const JointQuestion& question,
            std::span<const BlockKey> unit_keys);

  struct PoolKeysOfPlan {
    uint32_t pool = 0;
    std::vector<BlockKey> keys;  // Those of all blocks that the prompt fills.
  };
  uint32_t unit_tokens = 1;
  std::vector<BlockNeed> needs;       // One for each pool of the question.
  std::vector<PoolKeysOfPlan> pools;  // The same pools.
  uint32_t step = 1;                  // In units, as `most`.
  uint64_t most = 0;
  bool all = false;
};

struct JointWalk {
  // The blocks that the longest length needs, pool by pool: those of the lease.
  BlockIndex::Walk walk;
  std::vector<BlockKey> keys;  // Theirs.
  JointAnswer answer;
  // The block that the next longer length lacks. nullopt: none, or the prompt has no key for it.
  std::optional<BlockKey> lost;
};

// `touch`: it counts as a use of the blocks in `walk`, and of no others. INVALID_ARGUMENT: a key
// stands there twice among the blocks that would be leased. No chain of hashes has a key twice.
Result<JointWalk> WalkJointly(BlockIndex& index, const JointPlan& plan, uint32_t now, bool touch,
                              NextUse next);

}  // namespace cairn::cache
