#pragma once
// What a prompt takes from other prompts that begin alike, and gives to them.
//
//   Claim ─► forward pass ─► Unclaim, Publish       others wait for what is claimed,
//                               └─► Adopt           and take what is published
//
// Only computed blocks of exact lineage are shared: each under its key of that lineage.

#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "cairn/common/namespace_spec.h"
#include "services/worker/kv/kv_pool.h"

namespace cairn::worker {

// Blocks that prompts compute in this round, under the names by which they are shared.
using BlockClaims = std::set<BlockKey>;

// Of one prompt. Not thread-safe: the engine's thread.
class SharedBlocks {
 public:
  // `names`: of the prompt's full blocks; empty: nothing is shared. `most_adopted`: blocks that may
  // be taken from others, from the first one on. `claims` are those of all prompts over the
  // sequence's pool. `claims` and `sequence` must outlive it.
  SharedBlocks(BlockClaims& claims, KvSequence& sequence, std::vector<BlockKey> names,
               size_t most_adopted);
  ~SharedBlocks() { Unclaim(); }
  SharedBlocks(const SharedBlocks&) = delete;
  SharedBlocks& operator=(const SharedBlocks&) = delete;

  bool on() const { return !names_.empty(); }
  // The prompt goes over decoded KV: it takes nothing and publishes nothing any more.
  void Stop() { names_.clear(); }

  // Takes the next blocks that others have published; the sequence's length has grown by them.
  // Returns how many there were.
  uint32_t Adopt();
  // Of `count` tokens from the sequence's length on, those before the first block that somebody
  // else has or computes.
  int64_t Unshared(int64_t count) const;
  // The next `tokens` tokens are computed now: others wait for their blocks, until Unclaim.
  void Claim(int64_t tokens);
  void Unclaim();
  // Blocks [begin, end) are computed: others may have them. No effect on lent pages, and none at
  // all if the node took lent memory back, since what was computed over it is computed again.
  void Publish(int64_t begin, int64_t end);

  // Whether the block was taken from another prompt, which computed it.
  bool adopted(size_t block) const { return block < adopted_.size() && adopted_[block]; }

 private:
  BlockClaims& claims_;
  KvSequence& sequence_;
  const int64_t block_tokens_;
  std::vector<BlockKey> names_;
  const size_t most_adopted_;
  std::vector<bool> adopted_;  // By block.
  std::span<const BlockKey> claimed_;
};

}  // namespace cairn::worker
