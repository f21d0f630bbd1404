#pragma once
// One request on its way through the engine, in steps that can be interleaved with other requests.
//
//   kReserve -> kPrompt (PromptRun: match, fetching, chunk) -> kDecode or kScore -> kFinished
//
// If the recipe selects tokens, the whole prompt is one step (selected_prompt.h).

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "model/model.h"
#include "services/worker/compute/sampler.h"
#include "services/worker/compute/transformer.h"
#include "services/worker/engine/prompt_kv.h"
#include "services/worker/engine/prompt_run.h"
#include "services/worker/engine/request_queue.h"
#include "services/worker/engine/selected_prompt.h"
#include "services/worker/engine/spilled_prompt.h"
#include "services/worker/engine/step.h"
#include "services/worker/engine/stop_text.h"
#include "services/worker/engine/turned_prompt.h"
#include "services/worker/reading/open_context.h"
#include "services/worker/scheduling/scheduler.h"
#include "services/worker/session/parked_kv.h"

namespace cairn::worker {

// What all requests of an engine share. Everything must outlive the runs.
struct RequestParts {
  const Model& model;
  Transformer& transformer;
  KvPool& pool;
  uint64_t pool_bytes = 0;  // As the option kv_pool says.
  const Clock& clock;
  PromptKv& prompt_kv;
  SelectedPrompt* selected_prompt = nullptr;  // If the recipe selects. Null: it does not.
  // If contexts are read by rows. Null: all KV stays in pages.
  const ReadingTerms* reading = nullptr;
  // For prompts that are longer than the context. Null: what is left of them is computed anew.
  const TurnServices* turn = nullptr;
  // For prompts that never fit into the pool. Null: `no_spill` says why there is nothing to spill
  // to.
  const SpillServices* spill = nullptr;
  std::string no_spill = {};
  const std::atomic<bool>& cancel_all;
  // Counts what a spilled prompt came to.
  std::function<void(const SpillStats&)> spilled = nullptr;
  // Gives a sequence room for some tokens. RESOURCE_EXHAUSTED when the pool is too small.
  std::function<Status(KvSequence& sequence, int64_t tokens)> reserve;
  std::function<void()> make_room;  // As in SelectedPrompt::Request.
  // True: a request waits that may run now, beside those that do.
  std::function<bool()> company;
};

// Not thread-safe: the engine's thread. The job's caller may read what it puts into the job.
class RequestRun {
 public:
  enum class State : uint8_t { kReserve, kPrompt, kDecode, kScore, kFinished };

  // The request leaves the queue now. `id`: as in Scheduler::Candidate.
  RequestRun(const RequestParts& parts, std::shared_ptr<Job> job, uint64_t id);
  RequestRun(const RequestRun&) = delete;
  RequestRun& operator=(const RequestRun&) = delete;

  // Does one piece of work. `max_rows`: tokens that a chunk may have. `alone`: there is no other
  // run. Then it may wait where it otherwise says kWaiting, and it fails if there is no room for
  // its KV; otherwise it waits for pages. REQUIRES: the last chunk was given to Computed.
  Step Next(int64_t max_rows, bool alone);
  // The chunk of the last step went through the forward pass with this result.
  void Computed(const Status& status, const Pass& pass);
  // Waits at most 10 ms for fetched bytes or a slow reader, when the last step was kWaiting. False:
  // it waits for neither.
  bool WaitBriefly();

  // Gives all pages back between two steps. The next step gets them again and goes on where the
  // request was: from a copy of its KV, if `keep` says that there is memory for one. Otherwise the
  // prompt is matched again, and the generated tokens are decoded again, given and not sampled. A
  // prompt that is not complete always begins again. REQUIRES: candidate().can_park.
  void Park(bool keep);
  // Of the copy that Park would keep now, and of the one that it has kept.
  size_t parked_bytes() const;
  // What its read policy keeps of its context.
  uint64_t near_bytes() const { return reader_ == nullptr ? 0 : summary_.reading.near_bytes; }
  size_t kept_bytes() const { return parked_ ? parked_->bytes() : 0; }

  ~RequestRun();

  uint64_t id() const { return id_; }
  State state() const { return state_; }
  // How the scheduler sees it.
  Scheduler::Candidate candidate() const;
  const std::shared_ptr<Job>& job() const { return job_; }
  // When finished: the answer, and the KV of prompt and answer. Each can be taken once.
  Result<GenerateSummary> TakeOutcome() { return std::move(outcome_); }
  std::shared_ptr<KvSequence> TakeSequence() { return std::move(sequence_); }

 private:
  bool scoring() const { return !job_->request().score_tokens.empty(); }
  bool stopped() const {
    return job_->cancelled() || parts_.cancel_all.load(std::memory_order_relaxed);
  }
  // Tokens of the prompt that are computed here: with prefill_only the full blocks before its last
  // token.
  std::span<const TokenId> PromptTokens() const;
  PromptKv::Request Wanted();
  Step Reserve(bool alone);
  // Of a prompt that was too long: has its blocks turned back.
  void FindTurned();
  void ComputeSelected();
  // Whether the request can only be computed by spilling; an error says why it cannot be.
  Result<bool> MustSpill() const;
  Step NextSpilled(int64_t max_rows);
  // A pass after the prompt failed, since what was spilt did not come. False: for another reason.
  bool ReturnToSpilled(const Status& status);
  // The prompt's KV is there, or the report says why not.
  void EndPrompt(const PromptKv::Report& report);
  // The prompt's whole blocks leave the pages, and are read by rows from now on.
  Status BeginReading();
  // Of the prompt's first rows, which are read by rows.
  ContextName NameOf(int64_t rows) const;
  // The same for what was spilt to the node, which keeps the rows. If that cannot be, decode steps
  // read all of it.
  Status ReadSpilled();
  void Use(std::unique_ptr<ContextReader> reader);
  // Takes the next token from the logits, and yields the chunk that computes its own.
  Step Decode();
  // Yields the chunk of the first generated token whose KV is not there.
  Step DecodeToken();
  // The prompt's KV is there again, after Park.
  void EndPromptAgain(const Status& status);
  Step Score();
  Step Chunk(std::span<const TokenId> tokens);
  void Finish(Status status);

  const RequestParts& parts_;
  const std::shared_ptr<Job> job_;
  const uint64_t id_;
  const TimePoint start_;
  State state_ = State::kReserve;
  std::shared_ptr<KvSequence> sequence_;
  std::unique_ptr<ContextReader> reader_;  // Null: nothing was read by rows.
  std::vector<float> logits_;
  TurnedBlocks turned_;  // Of a prompt that was too long.
  std::optional<PromptRun> prompt_;
  std::optional<SpilledPrompt> spilled_;  // Instead of prompt_; until the request ends.
  bool returning_ = false;                // After the prompt, spilled_ gets back what was spilt.
  GenerateSummary summary_;
  Result<GenerateSummary> outcome_;

  // kDecode and kScore.
  Sha256 answer_digest_;  // Only with want_logits_digest.
  Sampler sampler_;
  StreamDecoder decoder_;
  StopText stop_text_;
  TokenId token_ = 0;
  size_t scored_ = 0;
  std::vector<float> scores_;
  std::optional<ParkedKv> parked_;
  bool resumed_ = false;     // It was parked: its summary tells of the first time.
  size_t decoded_ = 0;       // Generated tokens whose KV is there, or under way.
  Step pass_;                // The chunk under way.
  int64_t pass_length_ = 0;  // Of the sequence, before it.
  bool repeat_ = false;      // The node took lent memory back under the pass.
};

}  // namespace cairn::worker
