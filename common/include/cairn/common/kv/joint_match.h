#pragma once
// A match over several pools: which lengths of a prompt can be restored, of which every pool has
// what it needs.
//
//   kind of layers    at length n it needs                       tail_tokens         proof_blocks
//   full attention    all blocks before n                        0                   0
//   window of W       the blocks of the last W - 1 tokens        W - 1               0
//   state             the one block that ends at n               1                   0
//   a draft's layers  as its kind, and one block after n         as its kind         1
//
// So a restorable length is a multiple of the block length of every pool in the question. The
// lengths are a set: a missing state may forbid 512 and allow 1024.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cairn/common/namespace_spec.h"
#include "cairn/common/status.h"

namespace cairn {

// The needs of a caller for one pool.
struct PoolNeed {
  uint32_t pool = 0;  // Its number in the layout.
  // The blocks of this many tokens before a length must be there. 0: every block.
  uint32_t tail_tokens = 0;
  // This many blocks after a length must be there, too. They are not leased.
  uint32_t proof_blocks = 0;
};
inline constexpr uint32_t kMaxProofBlocks = 16;

struct JointQuestion {
  std::vector<PoolNeed> pools = {};  // Without one, this is no joint match.
  // Only multiples of this many tokens are of use. 0: of the layout's unit.
  uint32_t step_tokens = 0;
  // Only lengths up to this many tokens are of use. 0: as long as the keys.
  uint64_t most_tokens = 0;
  // The caller wants every restorable length, and not only the longest.
  bool all = false;

  bool asked() const { return !pools.empty(); }
};

// Consecutive blocks of one pool.
struct PoolRun {
  uint32_t pool = 0;
  uint32_t first_block = 0;  // Counted from the prompt's first.
  uint32_t blocks = 0;       // At least 1.
  bool operator==(const PoolRun&) const = default;
};

struct JointAnswer {
  uint64_t restorable_tokens = 0;  // The longest length. 0: none.
  // The blocks that this length needs, one run for each pool of the question in its order, except
  // those that need nothing. The blocks of the lease are these, numbered from 0 on.
  std::vector<PoolRun> pool_runs = {};
  // The pool that has not enough for the next longer length. nullopt: no pool is in its way.
  std::optional<uint32_t> limiting_pool = std::nullopt;
  // With `all`: bit t % 8 of byte t / 8 says whether (t + 1) * step tokens are restorable.
  std::string restorable = {};
  bool Restorable(uint64_t tokens, uint32_t step_tokens) const {
    if (step_tokens == 0 || tokens == 0 || tokens % step_tokens != 0) return false;
    const uint64_t bit = tokens / step_tokens - 1;
    return bit / 8 < restorable.size() &&
           ((static_cast<unsigned char>(restorable[bit / 8]) >> (bit % 8)) & 1u) != 0;
  }
};

// INVALID_ARGUMENT, which names the field, its value and what was expected. `unit_keys`: how many
// keys come with the question, one for each unit of the layout.
Status CheckQuestion(const Layout& layout, const JointQuestion& question, size_t unit_keys);

}  // namespace cairn
