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
#include <memory>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/concurrency/executor.h"
#include "common/concurrency/mutex.h"
#include "common/concurrency/wakeup.h"
#include "services/worker/engine/admission.h"
#include "services/worker/engine/engine_cache.h"
#include "services/worker/engine/engine_parts.h"
#include "services/worker/engine/idle_turns.h"
#include "services/worker/engine/request_queue.h"
#include "services/worker/engine/request_services.h"
#include "services/worker/engine/run_loop.h"
#include "services/worker/engine/worker_engine.h"
#include "services/worker/scheduling/prompt_order.h"
#include "services/worker/scheduling/usage_meter.h"

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
  const model::Model& model() const { return *parts_.model; }

  // Queues a request; Job::Consume gives its answer. Errors: those of Generate that come before the
  // request runs.
  Result<std::shared_ptr<Job>> Submit(const GenerateRequest& request);

  // Refuses new requests. Waits for the accepted ones until `deadline`, then cancels what is left.
  // The driver takes these to their end.
  void Close(TimePoint deadline);
  // After the last step: drops finished turns, and stops the pushes at `deadline`.
  void Finish(TimePoint deadline);

  // Null without a cache. Whoever drives the engine lets somebody push.
  PushQueue* push_queue() { return cache_ != nullptr ? &cache_->push() : nullptr; }
  // The same for blocks that another worker waits for.
  PushQueue* urgent_push_queue() { return cache_ != nullptr ? &cache_->urgent_push() : nullptr; }

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
  struct Running {
    std::shared_ptr<Job> job;
    UsageMeter meter;
    int64_t pages = 0;  // That it takes in its first step. 0: it has had one.
  };
  struct Parked {
    std::unique_ptr<RequestRun> run;
    uint32_t passes = 0;  // As in PromptQueue::Prompt.
  };

  Admission::Terms AdmissionTerms() const;
  RequestServices::Hooks MakeHooks();
  IdleTurns::Parts IdleTurnParts();
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
  // Parks a request so that others find pages for their next tokens.
  void ParkForPages();
  void ParkRun(size_t index);
  // Ends parked requests that are of no use any more.
  void EndParked();
  int64_t PagesFor(int64_t tokens) const;
  // Pages that nobody holds, and that no request needs which has just begun or is spilt.
  int64_t SparePages() const;
  void Start(std::shared_ptr<Job> job);
  void StartAgain(std::unique_ptr<RequestRun> run);
  MeasuredRates Rates() const;
  // Charges its tenant for its use since the last time, while it holds `pages` pages.
  void Charge(Running& one, int64_t pages);
  // Charges what was used to its tenants, and tells the queue what runs.
  void Account();
  void FinishRun(std::unique_ptr<RequestRun> run);
  // When to step again, after a step without work, although nobody has notified the wakeup.
  TimePoint WakeAt() const;
  // Room for `tokens`; gives up what idle turns and waiting pushes hold when the pool is short.
  Status ReserveKv(KvSequence& sequence, int64_t tokens);

  uint32_t context() const { return static_cast<uint32_t>(parts_.options.max_context); }
  uint32_t BlockTokens() const { return static_cast<uint32_t>(parts_.pool->layout().block_tokens); }

  const EngineParts parts_;
  const Clock& clock_;
  // The driver waits on this: new requests, fetched bytes, pushes, readers and callers notify it.
  Wakeup wakeup_;
  std::atomic<bool> cancel_all_{false};
  mutable Mutex mu_;
  WorkerEngine::Stats totals_ ABSL_GUARDED_BY(mu_);
  // The driver's last report: the requests that run, and the rates.
  WorkerEngine::Load load_ ABSL_GUARDED_BY(mu_);

  // Those below refer to those above, and are destroyed before the pool, whose pages they hold.
  const std::unique_ptr<EngineCache> cache_;  // Null without a cache node.
  const PromptOrder order_;
  RequestQueue queue_;
  const std::unique_ptr<const LookAhead> look_ahead_;  // The same.
  Admission admission_;

  // The driver's.
  RequestServices services_;
  RunLoop loop_;
  IdleTurns idle_turns_;
  std::vector<Running> running_;
  std::vector<Parked> parked_;  // Oldest parking first.
};

}  // namespace cairn::worker
