#pragma once
// How the KV of one prompt is obtained, in steps that can be interleaved with other prompts.
//
//   prompt_run        match, fetch, compute: the way of most prompts
//   spilled_prompt    a prompt that never fits into the worker's pages
//   selected_prompt   a prompt of which only selected rows are kept
//   turned_prompt     a prompt that loses its oldest tokens
//   parked_prompt     a copy of the KV that the request had before it gave its pages away
//
// A request takes one way, from the match to the prompt's last token. Some ways stay until the
// request ends, because passes after the prompt need them too.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cairn/client/types.h"
#include "cairn/common/clock.h"
#include "cairn/common/hash.h"
#include "cairn/common/kv/miss_reason.h"
#include "cairn/common/next_use.h"
#include "cairn/common/status.h"
#include "model/tokenizer.h"
#include "services/worker/engine/step.h"
#include "services/worker/engine/timeline.h"
#include "services/worker/kv/earlier_kv.h"
#include "services/worker/kv/kv_pool.h"
#include "services/worker/session/fetched_bytes.h"

namespace cairn::worker {

// A prompt whose KV is wanted.
struct PromptRequest {
  std::span<const model::TokenId> tokens;
  // Has capacity for the tokens, where the way does not say otherwise. Empty, or with KV of whole
  // blocks of the prompt computed by the prefill path.
  std::shared_ptr<KvSequence> sequence;
  float* logits = nullptr;  // The logits of the last token; null when not wanted.
  bool use_cache = true;    // Fetch and push.
  int64_t prefix_end = 0;   // As in GenerateRequest, for published selections.
  // Idle work: one block a chunk so that it can stop soon, pushes go on meanwhile, and the last
  // token need not be computed when the cache has its block.
  bool background = false;
  NextUse next = NextUse::kUnknown;  // Goes with the match.
  std::string trace;
  // Asked between chunks, and while fetched bytes are waited for: whenever the engine's Wakeup is
  // notified, and at `stop_at`.
  std::function<bool()> stop;
  TimePoint stop_at = TimePoint::max();  // The request's deadline: `stop` says true from then on.
  // Asked while a run that was alone waits for fetched bytes. True: another request wants to run.
  // Null: nobody is kept from anything by a step that waits.
  std::function<bool()> company = nullptr;
  // Another worker waits for the blocks (docs/operate/disaggregation.md): they are announced, and
  // each is pushed at once. REQUIRES: use_cache, no logits.
  bool hand_over = false;
  std::function<void()> announced = nullptr;  // Called once they are, or cannot be.
  // How long blocks are waited for that another worker has announced. 0: not at all.
  Duration await{0};
  // The keys of all full blocks, where those before `turned_blocks` can only be fetched: nothing
  // that this run would compute has their bytes. Empty: the tokens decide.
  std::vector<BlockKey> keys = {};
  uint32_t turned_blocks = 0;
};

// The outcome.
struct PromptReport {
  Status status;  // CANCELLED when stopped.
  uint32_t fetched_blocks = 0;
  uint32_t computed_tokens = 0;
  uint32_t shared_blocks = 0;  // Taken from other runs, which computed them.
  uint32_t chosen_blocks = 0;  // At the node, but computed, because that was faster.
  // The reason for the first full block that was not fetched, not counting chosen ones.
  MissReason miss_reason = MissReason::kNone;
  BytesByTier fetched;
  client::Path path = client::Path::kGrpc;  // That the bytes came by.
  double match_seconds = 0;
  double fetch_seconds = 0;
  uint32_t selected_tokens = 0;  // Tokens of which rows are forgotten, from the first one.
  uint64_t kept_rows = 0;        // The rows of these tokens that are kept: all layers and KV heads.
  uint32_t turned_blocks = 0;    // As in PromptRequest.
  // After PromptWay::GoBack: tokens after the prompt are lost, too.
  bool lost_answer = false;
  Timeline timeline;
};

// Not thread-safe: the engine's thread. Destroying it stops what is under way, and waits until
// nothing writes to the sequence's pages any more.
class PromptWay {
 public:
  PromptWay() = default;
  virtual ~PromptWay() = default;
  PromptWay(const PromptWay&) = delete;
  PromptWay& operator=(const PromptWay&) = delete;

  // Does one piece of work. `max_rows`: tokens that a chunk may have. `alone`: no other run waits
  // to be stepped, so a step may wait for fetched bytes. REQUIRES: the last chunk was given to
  // Computed.
  virtual Step Next(int64_t max_rows, bool alone) = 0;
  // The chunk of the last step went through the forward pass with this result.
  virtual void Computed(const Status& status, const Pass& pass) = 0;
  // After a step that was kWaiting: when to step again although the engine's Wakeup was not
  // notified.
  virtual TimePoint WakeAt() const { return TimePoint::max(); }

  // The prompt's KV is there, or the report says why not: Next has nothing more to do.
  virtual bool finished() const = 0;
  // REQUIRES: finished. Once each time that it finishes.
  virtual PromptReport TakeReport() = 0;

  // False: nothing was asked of the node or computed. A request that is stopped then ends here.
  virtual bool begun() const { return true; }
  // Another worker computes the blocks that are missing now.
  virtual bool awaits() const { return false; }
  // Memory for a copy of KV.
  virtual size_t kept_bytes() const { return 0; }

  // After the prompt. ---------------------------------------------------------------------------
  // True: the request cannot do without it before it ends. It cannot be parked either.
  virtual bool stays() const { return false; }
  // KV before the sequence's first page, which passes read. Null: there is none.
  virtual EarlierKv* earlier() { return nullptr; }
  // A pass after the prompt failed with `status`. False: for another reason than earlier().
  // True: it is no longer finished. When it is again, and its report is OK, the pass can be
  // repeated.
  virtual bool GoBack(const Status& /*status*/) { return false; }
  // The part of earlier() that was read so far, and how. nullopt: nothing is read after the report.
  struct Read {
    BytesByTier bytes;
    client::Path path = client::Path::kGrpc;
  };
  virtual std::optional<Read> read() const { return std::nullopt; }
};

// The parts that another way than the usual one is made from.
struct PromptTask {
  PromptRequest request;  // The sequence is empty.
  int64_t capacity = 0;   // Tokens that the sequence needs room for when the prompt is computed.
  // With drop_oldest, of a prompt that was too long: all of it, and how many tokens are dropped
  // after its first block.
  std::span<const model::TokenId> whole = {};
  int64_t dropped = 0;
  // Makes the usual way.
  std::function<std::unique_ptr<PromptWay>(PromptRequest)> usual;
};

// Makes the ways of an engine's prompts, and has what these share. Not thread-safe.
class PromptWays {
 public:
  PromptWays() = default;
  virtual ~PromptWays() = default;
  PromptWays(const PromptWays&) = delete;
  PromptWays& operator=(const PromptWays&) = delete;

  // The way must not outlive this.
  virtual std::unique_ptr<PromptWay> New(PromptTask task) = 0;
};

}  // namespace cairn::worker
