#pragma once
// Gets the KV of a prompt: fetches what the cache node has, computes the rest, queues what was
// computed for the push.
//
// Exactness. The forward pass gives the same bytes wherever a prompt is cut at a block boundary, and
// fetched blocks are bytes of the same forward pass, so the KV and the logits do not depend on how
// much was fetched. A fetch that breaks off while the first chunk is already computed on it discards
// that chunk.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "services/common/clock/clock.h"
#include "services/common/status/status.h"
#include "services/worker/engine/transformer.h"
#include "services/worker/generate/prefill.h"
#include "services/worker/session/prefix_session.h"
#include "services/worker/session/push_queue.h"

namespace cairn::worker {

// Not thread-safe.
class PromptKv {
 public:
  // All must outlive it. `session` and `push` are both null or both not.
  PromptKv(Transformer& transformer, const Clock& clock, PrefixSession* session, PushQueue* push);

  struct Request {
    std::span<const TokenId> tokens;
    // Has capacity for the tokens. Empty, or with KV of whole blocks of the prompt computed by the
    // prefill path.
    std::shared_ptr<KvSequence> sequence;
    float* logits = nullptr;  // Of the last token; null when not wanted.
    bool use_cache = true;    // Fetch and push.
    // Idle work: one block a chunk so that it can stop soon, pushes go on meanwhile, and the last
    // token need not be computed when the cache has its block.
    bool background = false;
    std::string trace;
    std::function<bool()> stop;  // Asked between chunks.
  };

  struct Report {
    Status status;  // CANCELLED when stopped.
    uint32_t fetched_blocks = 0;
    uint32_t computed_tokens = 0;
    MissReason miss_reason = MissReason::kNone;  // Of the first full block not fetched.
    BytesByTier fetched;
    double match_seconds = 0;
    double fetch_seconds = 0;
  };
  Report Compute(const Request& request);

 private:
  void FetchAndPrefill(const Request& request, std::span<const BlockKey> keys, Report* report);
  // Computes from the sequence's length to the end of the prompt, if anything is left.
  Status Prefill(const Request& request, const std::function<Status(int)>& before_layer);
  void Push(const Request& request, std::span<const BlockKey> keys, uint32_t first_computed);

  Transformer& transformer_;
  PrefixSession* const session_;
  PushQueue* const push_;
  Prefiller prefiller_;
  const int64_t block_tokens_;
};

}  // namespace cairn::worker
