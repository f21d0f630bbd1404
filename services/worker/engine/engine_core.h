#pragma once
// The worker's engine without its threads: callers put requests in, and whoever drives the engine
// takes them forward.
//
//   callers:  Generate = Submit, then read the Job until it is finished
//   driver:   Step: requests that may start -> one round of RunLoop -> a finished turn when idle
//   pushes:   push_queue()
//
// WorkerEngine drives it with threads, a test from its own thread.

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/concurrency/executor.h"
#include "common/concurrency/mutex.h"
#include "services/worker/engine/engine_parts.h"
#include "services/worker/engine/prompt_kv.h"
#include "services/worker/engine/request_queue.h"
#include "services/worker/engine/run_loop.h"
#include "services/worker/engine/selected_prompt.h"
#include "services/worker/engine/selection_publisher.h"
#include "services/worker/engine/worker_engine.h"
#include "services/worker/scheduling/prompt_order.h"

namespace cairn::worker {

// Thread-safe for callers. One thread drives it: it alone calls Step and Run.
class EngineCore {
 public:
  // `executor`: as in PrefixSession::Dependencies. Must outlive the core. Null: only without a
  // cache.
  EngineCore(EngineParts parts, Executor* executor);
  EngineCore(const EngineCore&) = delete;
  EngineCore& operator=(const EngineCore&) = delete;

  // Callers. ------------------------------------------------------------------------------------
  // As in WorkerEngine.
  Result<GenerateSummary> Generate(const GenerateRequest& request,
                                   const GenerateCallbacks& callbacks);
  bool WaitIdle(Duration timeout);
  WorkerEngine::Info GetInfo() const;
  WorkerEngine::Stats GetStats() const;
  WorkerEngine::Load GetLoad() const;
  const MemoryAccount::Bounds& memory_bounds() const { return parts_.memory; }
  void MeasureMemory(MemoryAccount* account) const;
  const Model& model() const { return *parts_.model; }

  // Queues a request; Job::Consume gives its answer. Errors: those of Generate that come before the
  // request runs.
  Result<std::shared_ptr<Job>> Submit(const GenerateRequest& request);

  // Refuses new requests. Waits for the accepted ones until `deadline`, then cancels what is left.
  // The driver takes these to their end.
  void Close(TimePoint deadline);
  // After the last step: drops finished turns, and stops the pushes at `deadline`.
  void Finish(TimePoint deadline);

  // Null without a cache. Whoever drives the engine lets somebody push.
  PushQueue* push_queue() { return push_ ? &*push_ : nullptr; }
  // The same for blocks that another worker waits for.
  PushQueue* urgent_push_queue() { return urgent_push_ ? &*urgent_push_ : nullptr; }

  // The driver. ---------------------------------------------------------------------------------
  enum class Progress : uint8_t {
    kWorked,  // Step again.
    // All requests that may step wait, for fetched bytes or for a reader; or a finished turn waits
    // for its request's blocks to be pushed.
    kWaiting,
    kIdle,      // There is nothing to do before the next request.
    kFinished,  // Closed, and all requests are finished.
  };
  // Does one piece of work: a round of the running requests, or a finished turn. Never waits for a
  // request. With a scheduler of one request at a time it may wait for fetched bytes.
  Progress Step();
  // Steps and waits by turns, until kFinished.
  void Run();

 private:
  // A turn that is over, to be prefilled in idle time.
  struct IdleTurn {
    std::vector<TokenId> tokens;  // Whole blocks.
    // The finished request's KV, cut to the blocks that the prefill path computed; may be null.
    std::shared_ptr<KvSequence> sequence;
    std::string trace;
  };

  struct Running {
    std::shared_ptr<Job> job;
    uint64_t charged_tokens = 0;  // Generated ones.
    bool reserved = false;        // It has its pages, or has had a step to take them.
  };

  void ConnectCache(Executor& executor);
  // A node that is away is not waited for again: the client opens them once it is there.
  void OpenPublished();
  // The blocks at the beginning of a prompt that the node has now.
  struct Cached {
    std::vector<BlockKey> keys;
    size_t below_memory = 0;  // How many of them lie in a tier slower than memory.
  };
  // For the order of prompts and for LookAhead. Asks the node once and promises nothing.
  Cached FindCached(const Job& job);
  // Asks the node to have the blocks in memory when the request starts. The node bounds what such
  // hints may hold and evict, and counts it to the namespace.
  void LookAhead(const Job& job, const Cached& cached);
  void FinishJob(Job& job, Result<GenerateSummary> outcome);

  // The driver's.
  // Ends requests that wait and are of no use any more, and lets others run, as far as the
  // scheduler allows.
  void StartJobs();
  // Lets one request run, if there are a place and pages: one that was parked, or the first of the
  // queue if it is more urgent.
  bool StartOne();
  // Parks a request that is less urgent than the first of the queue.
  bool ParkOne();
  // Ends parked requests that are of no use any more.
  void EndParked();
  // Of its prompt and the longest answer.
  int64_t PagesFor(const Job& job) const;
  // Charges its tenant what was generated since the last time.
  void ChargeGenerated(Running& one);
  // Charges what was generated to its tenants, and tells the queue what runs.
  void Account();
  void FinishRun(std::unique_ptr<RequestRun> run);
  void Keep(const Job& job, const GenerateSummary& summary, std::shared_ptr<KvSequence> sequence);
  Progress RunIdleTurn();
  // Blocks of requests are on their way to the node.
  bool Pushing() const;
  void PrefillIdleTurn(IdleTurn turn);
  // Why prompts that do not fit into the pool cannot be spilt. Empty: they can.
  std::string WhyNoSpill() const;
  // FAILED_PRECONDITION: not a request for this worker.
  Status CheckRole(const GenerateRequest& request) const;
  // INVALID_ARGUMENT: the near memory is too small to read its context by rows.
  Status CheckBudget(const Job& job) const;
  // Room for `tokens`; gives up what idle turns and waiting pushes hold when the pool is short.
  Status ReserveKv(KvSequence& sequence, int64_t tokens);

  uint32_t context() const { return static_cast<uint32_t>(parts_.options.max_context); }
  uint32_t BlockTokens() const { return static_cast<uint32_t>(parts_.pool->layout().block_tokens); }

  const EngineParts parts_;
  const Clock& clock_;

  // Destroyed before the pool: both refer to pages.
  std::optional<PrefixSession> session_;
  std::optional<PushQueue> push_;
  std::optional<PushQueue> urgent_push_;  // Never paused, and not at a low priority.
  std::optional<PushQueue> spill_push_;   // The driver's, which waits for it.
  std::optional<SpillServices> spill_;    // If the recipe keeps every bit.
  std::optional<TurnServices> turn_;      // The same.

  const PromptOrder order_;
  RequestQueue queue_;

  // The driver's.
  std::optional<SelectionPublisher> selection_publisher_;
  std::optional<PromptKv> prompt_kv_;
  std::optional<SelectedPrompt> selected_prompt_;  // Where the recipe selects, in its place.
  std::optional<RequestParts> request_parts_;
  std::optional<RunLoop> loop_;
  std::vector<Running> running_;
  std::vector<std::unique_ptr<RequestRun>> parked_;  // Oldest parking first.

  mutable Mutex mu_;
  CondVar changed_;
  std::deque<IdleTurn> idle_ ABSL_GUARDED_BY(mu_);
  bool idle_running_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t open_requests_ ABSL_GUARDED_BY(mu_) = 0;  // Accepted and not finished.
  WorkerEngine::Stats totals_ ABSL_GUARDED_BY(mu_);
  // What the driver saw last: what runs, and the rates.
  WorkerEngine::Load load_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> cancel_all_{false};
};

}  // namespace cairn::worker
