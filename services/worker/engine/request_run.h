#pragma once
// One request on its way through the engine, in steps that can be interleaved with other requests.
//
//   kReserve -> kPrompt (one of the ways of prompt_way.h) -> kDecode or kScore -> kFinished

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "model/model.h"
#include "services/worker/compute/decode_reader.h"
#include "services/worker/compute/transformer.h"
#include "services/worker/engine/answer.h"
#include "services/worker/engine/context_opener.h"
#include "services/worker/engine/prompt_kv.h"
#include "services/worker/engine/prompt_way.h"
#include "services/worker/engine/request_queue.h"
#include "services/worker/engine/spilled_prompt.h"
#include "services/worker/engine/step.h"
#include "services/worker/scheduling/scheduler.h"

namespace cairn::worker {

// The state that all requests of an engine share. Everything must outlive the runs.
struct RequestParts {
  const model::Model& model;
  Transformer& transformer;
  KvPool& pool;
  uint64_t pool_bytes = 0;  // As the option kv_pool says.
  const Clock& clock;
  PromptKv& prompt_kv;
  PromptWays* staged = nullptr;  // If the recipe has a stage. Null: it has none.
  // For prompts that were longer than the context. Null: what is left of them goes the usual way.
  PromptWays* turned = nullptr;
  const ContextOpener* reading = nullptr;  // Null: all KV stays in pages.
  // For prompts that never fit into the pool. Null: `no_spill` says why there is nothing to spill
  // to.
  const SpillServices* spill = nullptr;
  std::string no_spill = {};
  const std::atomic<bool>& cancel_all;
  // Gives a sequence room for some tokens. RESOURCE_EXHAUSTED when the pool is too small.
  std::function<Status(KvSequence& sequence, int64_t tokens)> reserve;
  // True: a request waits that may run now, in addition to those that do.
  std::function<bool()> company;
  // Tokens of an answer that get room at a time. 0: all of it gets room before the request begins.
  int64_t answer_step = 0;
  std::function<int64_t()> spare_pages = nullptr;  // That answers may grow into.

  // Tokens that a request gets room for before it begins.
  int64_t TokensToBegin(const Job& job) const;
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
  // After a step that was kWaiting: when to step again although the engine's Wakeup was not
  // notified.
  TimePoint WakeAt() const;

  // Gives all pages back between two steps. The next step gets them again and goes on where the
  // request was: from a copy of its KV, if `keep` says that there is memory for one. Otherwise the
  // prompt is matched again, and the generated tokens are decoded again, given and not sampled. A
  // prompt that is not complete always begins again. REQUIRES: candidate().can_park.
  void Park(bool keep);
  // The size of the copy that Park would keep now, and of the one that it has kept.
  size_t parked_bytes() const;
  // The memory that its read policy keeps of its context.
  uint64_t near_bytes() const { return reader_ == nullptr ? 0 : summary_.reading.near_bytes; }
  size_t kept_bytes() const { return way_ != nullptr ? way_->kept_bytes() : 0; }

  // Tokens that it gets room for before it begins, or goes on after Park: then for all of them, so
  // that it is not parked again because it lacks a page.
  int64_t TokensToBegin() const {
    return gave_pages_ ? job_->TokensNeeded() : parts_.TokensToBegin(*job_);
  }
  int64_t held_pages() const { return sequence_->page_count(); }
  // It has found no page for its next token.
  bool starved() const { return starved_; }

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
  std::span<const model::TokenId> PromptTokens() const;
  PromptRequest Wanted();
  // Chooses the way to the prompt's KV, with the pages that it needs.
  Step Reserve(bool alone);
  std::unique_ptr<PromptWay> NewStaged();
  std::unique_ptr<PromptWay> NewSpilled();
  std::unique_ptr<PromptWay> NewRun();
  PromptTask Task();
  // Whether the request can only be computed by spilling; an error says why it cannot be.
  Result<bool> MustSpill() const;
  // A step of the way that is not finished: before the prompt's KV is there, or after GoBack.
  Step NextOfWay(int64_t max_rows, bool alone);
  void Note(const PromptReport& report);
  // The prompt's KV is there, or the status says why not.
  void EndPrompt(const Status& status);
  // It is there again, after a pass that failed.
  void EndReturn(const PromptReport& report);
  // The prompt's whole blocks leave the pages, and are read by rows from now on.
  Status BeginReading();
  // The name of the prompt's first rows, which are read by rows.
  ContextToRead ContextOf(int64_t rows) const;
  // The same for what was spilt to the node, which keeps the rows. If that cannot be, decode steps
  // read all of it.
  Status ReadSpilled();
  void Use(OpenedContext context);
  // Takes the next token from the logits, and yields the chunk that computes its own.
  Step Decode(bool alone);
  // Yields the chunk of the first generated token whose KV is not there, or waits for a page.
  Step DecodeToken(bool alone);
  // Room for the next token, and for some more if there is.
  Status MakeRoomForToken(bool alone);
  // The prompt's KV is there again, after Park.
  void EndPromptAgain(const Status& status);
  Step Score();
  Step Chunk(std::span<const model::TokenId> tokens);
  void Finish(Status status);

  const RequestParts& parts_;
  const std::shared_ptr<Job> job_;
  const uint64_t id_;
  const TimePoint start_;
  State state_ = State::kReserve;
  std::shared_ptr<KvSequence> sequence_;
  std::unique_ptr<DecodeReader> reader_;  // Null: nothing was read by rows.
  std::vector<float> logits_;
  // To the prompt's KV. Null: not chosen yet, or the prompt is over.
  std::unique_ptr<PromptWay> way_;
  bool under_way_ = false;      // Its report was not taken: in kPrompt, and after GoBack.
  uint32_t turned_blocks_ = 0;  // As in PromptReport.
  GenerateSummary summary_;
  Result<GenerateSummary> outcome_;

  // kDecode and kScore.
  Answer answer_;
  struct Scores {
    size_t done = 0;          // Tokens.
    std::vector<float> rows;  // Those of the pass under way.
  };
  Scores scores_;
  bool starved_ = false;     // There was no page for the next token.
  bool gave_pages_ = false;  // It was parked.
  bool resumed_ = false;     // It was parked: its summary tells of the first time.
  size_t decoded_ = 0;       // Generated tokens whose KV is there, or under way.
  struct UnderWay {
    Step step;
    int64_t length = 0;   // The length of the sequence before it.
    bool repeat = false;  // The node took lent memory back under it.
  };
  UnderWay pass_;
};

}  // namespace cairn::worker
