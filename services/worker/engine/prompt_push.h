#pragma once
// What a prompt gives to the cache node.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cairn/common/namespace_spec.h"
#include "services/worker/engine/prompt_work.h"
#include "services/worker/engine/shared_blocks.h"
#include "services/worker/session/push_queue.h"

namespace cairn::worker {

// Over which KV the blocks of a prompt were computed. One key stands for one set of bytes, so this
// decides under which keys they are pushed.
enum class Lineage : uint8_t {
  kExact,    // KV that no codec has changed: the keys that the tokens have.
  kDecoded,  // Blocks that were fetched whole in a lossy form: PrefixSession::KeysOverDecoded.
  // Decoded blocks and computed ones, or decoded ones of a later rung of a ladder. No key says
  // where they met: nothing is pushed.
  kMixed,
  // Not all turned blocks came, or some of them were computed: what stands on them has other bytes
  // than its keys say. Nothing is pushed.
  kTurnedLost,
};

// Of one prompt. Not thread-safe: the engine's thread.
class PromptPush {
 public:
  // Both must outlive it. A prompt that does not use the cache has no keys and pushes nothing.
  PromptPush(const PromptWork& work, const SharedBlocks& shared) : work_(work), shared_(shared) {}
  PromptPush(const PromptPush&) = delete;
  PromptPush& operator=(const PromptPush&) = delete;

  // Of a run that hands over: tells others that it computes those of these blocks that the node
  // does not have, and tells the request so.
  void Announce(std::span<const BlockKey> wanted);
  // Of a run that hands over: pushes the computed blocks before `end`, with their keys of exact
  // lineage.
  void PushNow(std::span<const BlockKey> keys, int64_t end);
  // The node has the first `blocks` blocks.
  void Skip(int64_t blocks) { pushed_ = blocks; }
  // The prompt is over. Pushes its blocks after the first `at_node` ones. Empty keys: nothing.
  void Finish(std::span<const BlockKey> keys, int64_t at_node, Lineage lineage);

 private:
  // The blocks from `first` on whose KV is there, with these keys.
  std::vector<ComputedBlock> Blocks(std::span<const BlockKey> keys, int64_t first,
                                    const std::shared_ptr<const void>& promise) const;
  void Push(std::span<const BlockKey> keys, int64_t first, Lineage lineage);

  const PromptWork& work_;
  const SharedBlocks& shared_;
  std::shared_ptr<const void> promise_;  // To push what was announced.
  int64_t pushed_ = 0;                   // Blocks that need no push any more.
};

}  // namespace cairn::worker
