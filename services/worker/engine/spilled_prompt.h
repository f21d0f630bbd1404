#pragma once
// A prompt whose KV never fits into the worker's pages: it is computed chunk by chunk, and what
// does not fit is spilt to the cache node as it goes. Later chunks, and decode, read it back layer
// by layer (session/spilled_kv.h), so the largest context is that of the node's tiers.
//
//   kMatch ─► kChunk ─► forward pass ─► kChunk ... ─► kFinished
//              ▲ │  │                                    │
//              │ │  └── a pass failed, since what was spilt did not come ──► kReturn: ask the node
//              │ │                                                           what it has, and go on
//              │ ▼ no room                                                   from there
//            kSpilling: the full blocks are pushed and leased in the background (block_spill.h).
//                       Then their pages are given back.
//
// kMatch and kReturn ask the node in the background, too: tokens of other requests go on meanwhile.
//
// The part of the prompt's beginning that the node has is not fetched: it counts as spilt.
//
// Exactness: the sums are those of a sequence with all its pages (kernels/attention.h), and only
// blocks of exact lineage are spilt, with the recipe raw. So KV and answer are, to the last bit,
// those of a worker with room.
//
// Sources of the schedule: LayerKV (Xiong et al. 2024), which offloads the KV of prefill layer by
// layer; FlexGen (Sheng et al. 2023, section 4), which goes through blocks within a layer.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "services/worker/compute/transformer.h"
#include "services/worker/engine/prompt_way.h"
#include "services/worker/session/background_task.h"
#include "services/worker/session/block_spill.h"
#include "services/worker/session/prefix_session.h"
#include "services/worker/session/push_queue.h"
#include "services/worker/session/push_turn.h"
#include "services/worker/session/spilled_kv.h"

namespace cairn::worker {

// The services that spilling needs. Everything outlives the prompts.
struct SpillServices {
  client::CacheClient& client;
  PrefixSession& session;  // The session of a namespace with the recipe raw.
  Executor& executor;
  PushQueue& push;  // Spills drive it, nobody else.
  PushTurn& turn;
  Wakeup& wakeup;
  // For what need not be spilt. Null: it is not pushed.
  PushQueue* background = nullptr;
  SpilledKv::Options options = {};
  // How long a node that does not answer is asked again.
  Duration patience = std::chrono::seconds(5);
  // Decode reads the prompt by rows, which stay at the node: when the prompt is complete, all whole
  // units leave the pages.
  bool read_by_rows = false;
  // Counts what each prompt came to, when its request ends. May be null.
  std::function<void(const SpillStats&)> count = nullptr;
};

// Not thread-safe.
class SpilledPrompt final : public PromptWay {
 public:
  // `answer_tokens`: that need room in pages after the prompt. The request's sequence is empty; it
  // needs no capacity. `reserve`: as RequestParts. All must outlive it.
  SpilledPrompt(const SpillServices& services, const Transformer& transformer, const Clock& clock,
                const std::function<Status(KvSequence&, int64_t)>& reserve, PromptRequest request,
                int64_t answer_tokens);
  ~SpilledPrompt() override;

  // Tokens that must find room in the pool at the same time, at least.
  static int64_t LeastTokens(int64_t block_tokens, int64_t answer_tokens) {
    return EarlierKv::kUnitTokens + block_tokens + answer_tokens;
  }

  // How many tokens of a prompt of `prompt_tokens` end up at the node if it is read by rows.
  static int64_t RowsAtNode(int64_t prompt_tokens) {
    return prompt_tokens / EarlierKv::kUnitTokens * EarlierKv::kUnitTokens;
  }

  Step Next(int64_t max_rows, bool alone) override;
  void Computed(const Status& status, const Pass& pass) override;
  TimePoint WakeAt() const override { return ask_again_.value_or(TimePoint::max()); }
  bool finished() const override { return state_ == State::kFinished; }
  PromptReport TakeReport() override { return report_; }

  bool stays() const override { return true; }
  EarlierKv* earlier() override { return kv_.tokens() > 0 ? &kv_ : nullptr; }
  bool GoBack(const Status& status) override;
  std::optional<Read> read() const override;

 private:
  enum class State : uint8_t { kMatch, kChunk, kSpilling, kReturn, kFinished };

  // The node's answer about the prompt's first blocks.
  struct Held {
    Status status;
    double seconds = 0;
  };
  // The question for it, in the background.
  struct Asking {
    Held held;  // The task's, until it is done.
    std::optional<BackgroundTask> task;
  };

  // A status that says that what was spilt did not come, or not in time.
  static bool IsMiss(const Status& status);
  // Leases the first blocks of the prompt: SpilledKv::Hold. nullopt: the node has not answered yet;
  // call it again with the same number.
  std::optional<Held> Hold(size_t blocks);
  Step Match();
  Step NextChunk(int64_t max_rows);
  // The prompt is complete: room for the answer.
  Step EndChunks();
  Step Return();
  // There is no room: waits for a node that may take what it did not take now, or ends.
  Step WaitOrEnd(const Status& room);
  // Whether the node, which does not do its part, is asked again. If so, not before ask_again_.
  bool Patient();
  // There is no room in pages for tokens up to `end` before a spill.
  bool MustSpill(int64_t end);
  // Room in pages for tokens up to `end`, of what others can do without if need be.
  // RESOURCE_EXHAUSTED names the least that works.
  Status MakeRoom(int64_t end);
  // Begins to spill all whole units.
  Step BeginSpill();
  Step NextSpilling();
  // Gives back the pages of what the node has now. RESOURCE_EXHAUSTED: the node is too small.
  Status EndSpill(const BlockSpill::Outcome& outcome);
  // Where the whole units in pages end.
  int64_t SpillEnd() const;
  Status CannotSpill(const std::string& why) const;
  // Forgets KV after what the node has.
  void BackTo(int64_t tokens);
  void End(const Status& status);
  void PushRest();
  ComputedBlock BlockOf(int64_t block) const;

  const SpillServices& services_;
  const Transformer& transformer_;
  const Clock& clock_;
  const std::function<Status(KvSequence&, int64_t)>& reserve_;
  const PromptRequest request_;
  KvSequence& sequence_;
  const int64_t total_;  // Tokens of the prompt.
  const int64_t answer_tokens_;
  const int64_t block_tokens_;
  const std::vector<BlockKey> keys_;  // The keys of all full blocks.
  SpilledKv kv_;

  State state_ = State::kMatch;
  int64_t chunk_tokens_ = 0;
  bool prompt_done_ = false;                // Once: what comes after is a return.
  std::optional<TimePoint> failing_since_;  // Since when the node fails without progress.
  std::optional<TimePoint> ask_again_;      // Nothing is asked of the node before.
  int failures_ = 0;                        // Since the last progress.
  bool node_too_small_ = false;             // Asking again would change nothing.
  bool rows_asked_ = false;                 // EndChunks has spilt what is read by rows.
  bool spills_rows_ = false;                // kSpilling: for that.
  std::unique_ptr<BlockSpill> spill_;       // kSpilling.
  std::unique_ptr<Asking> asking_;          // In kMatch and kReturn, while the node is asked.
  PromptReport report_;
  SpillStats stats_;
};

}  // namespace cairn::worker
