#pragma once
// Gets the KV of a prompt: fetches what the cache node has, computes the rest, queues what was
// computed for the push.
//
// A matched prefix is had from both ends where that is sooner: its front is computed, block by
// block, while its tail streams in (session/fetch_plan.h). Then the rest of the prompt is computed,
// layer by layer as the fetch brings them.
//
// Exactness. The forward pass gives the same bytes wherever a prompt is cut at a block boundary,
// and fetched blocks are bytes of the same forward pass, so the KV and the logits do not depend on
// how much was fetched. A fetch that breaks off while the rest is already computed on it discards
// that.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "services/worker/compute/transformer.h"
#include "services/worker/engine/prefill.h"
#include "services/worker/engine/selection_publisher.h"
#include "services/worker/engine/timeline.h"
#include "services/worker/session/prefix_session.h"
#include "services/worker/session/push_queue.h"
#include "services/worker/session/worker_namespace.h"

namespace cairn::worker {

class PromptRun;

// What all prompts share. PromptRun takes one prompt through it. Not thread-safe.
class PromptKv {
 public:
  // All must outlive it. `session` and `push` are both null or both not. `published`: where
  // computed blocks of exact lineage are pushed to beside the session's namespace. `selections`:
  // pushes to those of them that select; may be null. `urgent`: for
  // blocks that another worker waits for; null: `push`.
  PromptKv(Transformer& transformer, const Clock& clock, PrefixSession* session, PushQueue* push,
           std::span<const PublishedNamespace> published = {},
           SelectionPublisher* selections = nullptr, PushQueue* urgent = nullptr);

  struct Request {
    std::span<const TokenId> tokens;
    // Has capacity for the tokens. Empty, or with KV of whole blocks of the prompt computed by the
    // prefill path.
    std::shared_ptr<KvSequence> sequence;
    float* logits = nullptr;  // Of the last token; null when not wanted.
    bool use_cache = true;    // Fetch and push.
    int64_t prefix_end = 0;   // As in GenerateRequest, for published selections.
    // Idle work: one block a chunk so that it can stop soon, pushes go on meanwhile, and the last
    // token need not be computed when the cache has its block.
    bool background = false;
    NextUse next = NextUse::kUnknown;  // Goes with the match.
    std::string trace;
    std::function<bool()> stop;  // Asked between chunks.
    // Asked while a run that was alone waits for fetched bytes. True: another request wants to run.
    // Null: nobody is kept from anything by a step that waits.
    std::function<bool()> company = nullptr;
    // Another worker waits for the blocks (docs/operate/disaggregation.md): they are announced, and
    // each is pushed at once. REQUIRES: use_cache, no logits.
    bool hand_over = false;
    std::function<void()> announced = nullptr;  // Called once they are, or cannot be.
    // How long blocks are waited for that another worker has announced. 0: not at all.
    Duration await{0};
    // Of all full blocks, where those before `turned_blocks` can only be fetched: nothing that this
    // run would compute has their bytes (turned_prompt.h). Empty: the tokens decide.
    std::vector<BlockKey> keys = {};
    uint32_t turned_blocks = 0;
  };

  struct Report {
    Status status;  // CANCELLED when stopped.
    uint32_t fetched_blocks = 0;
    uint32_t computed_tokens = 0;
    uint32_t shared_blocks = 0;  // Taken from other runs, which computed them.
    uint32_t chosen_blocks = 0;  // At the node, but computed, since that was sooner.
    // Of the first full block that was not fetched, chosen ones apart.
    MissReason miss_reason = MissReason::kNone;
    BytesByTier fetched;
    client::Path path = client::Path::kGrpc;  // That the bytes came by.
    double match_seconds = 0;
    double fetch_seconds = 0;
    Timeline timeline;
  };
  // Does all steps of a PromptRun that is alone.
  Report Compute(const Request& request);

  // The cache stores KV in another form than it was computed in.
  bool lossy() const { return session_ != nullptr && session_->codec().lossy(); }
  // The key of the last of these tokens' blocks, all of them whole, of exact lineage. nullopt: no
  // cache node.
  std::optional<BlockKey> ContextKey(std::span<const TokenId> tokens) const;
  // Of the prompts so far; 0: not known.
  double prefill_tokens_per_second() const { return prefiller_.tokens_per_second(); }

  // Call after each forward pass over a sequence with lent pages. OK: what it computed is right, or
  // was made so. ABORTED: the node took lent memory back meanwhile. The pages are computed again
  // and are the sequence's own; the pass must be repeated. Otherwise the error of the prefill.
  Status CheckLoans(std::span<const TokenId> prompt, KvSequence& sequence);

 private:
  friend class PromptRun;

  // The blocks of the run from `first` on that are there, with these keys.
  std::vector<ComputedBlock> Blocks(const PromptRun& run, std::span<const BlockKey> keys,
                                    uint32_t first) const;
  void Push(const PromptRun& run, uint32_t first_computed);

  Transformer& transformer_;
  const Clock& clock_;
  PrefixSession* const session_;
  PushQueue* const push_;
  PushQueue* const urgent_;
  const std::span<const PublishedNamespace> published_;
  SelectionPublisher* const selections_;
  // The run that published selections watch: one at a time. Null: none.
  const PromptRun* watched_ = nullptr;
  // Blocks that runs compute in this round, under the names by which they are shared.
  std::set<BlockKey> claims_;
  Prefiller prefiller_;
  const int64_t block_tokens_;
};

}  // namespace cairn::worker
