#pragma once
// Which requests come in: what this worker serves, and whether it has a place for one more.
//
//   Admit ─► refused: not for this worker, or the queue is full, or it would wait too long
//         ─► waits in the queue; counts as open until Over

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"
#include "common/concurrency/wakeup.h"
#include "services/worker/engine/context_opener.h"
#include "services/worker/engine/look_ahead.h"
#include "services/worker/engine/request_queue.h"
#include "services/worker/engine/worker_engine.h"

namespace cairn::worker {

// Thread-safe.
class Admission {
 public:
  struct Terms {
    model::WorkerRole role = model::WorkerRole::kBoth;
    // Why a request with prefill_only is refused whatever the role is. Empty: it is not.
    std::string no_prefill_only = {};
    KvLayout kv = {};
    int64_t pool_tokens = 0;                 // That have room in all pages together.
    const ContextOpener* reading = nullptr;  // Null: contexts are not read by rows.
    size_t places = 1;                       // Requests that run at the same time.
  };
  // Ends a request that never ran.
  using Finish = std::function<void(Job&, Result<GenerateSummary>)>;

  // `look_ahead`: null without a cache node. `wakeup`: of the engine, for Job. All must outlive it.
  // `finish` must call Over; it is called by the thread of Admit.
  Admission(Terms terms, RequestQueue& queue, const LookAhead* look_ahead, const Clock& clock,
            Wakeup& wakeup, Finish finish);

  // Queues a request. INVALID_ARGUMENT: its deadline has passed, or the near memory is too small to
  // read its context by rows. FAILED_PRECONDITION: it is not for a worker of this role. Otherwise
  // as RequestQueue::Put. May end other requests: those that are of no use any more, and one that
  // lost its place to this one.
  Result<std::shared_ptr<Job>> Admit(const GenerateRequest& request, PreparedPrompt prompt);
  // A request that was admitted is finished.
  void Over(const Job& job);

  size_t open() const;
  // Waits until no request is open. False: not before the deadline.
  bool WaitNone(TimePoint deadline) const;

  struct Stats {
    uint64_t refused = 0;           // By the queue.
    uint64_t near_refused = 0;      // Because the near memory is too small.
    uint64_t lookahead_blocks = 0;  // That the node was asked to bring to memory, and brings.
  };
  Stats GetStats() const;

 private:
  Status CheckRole(const GenerateRequest& request) const;
  // Counts what it refuses.
  Status CheckBudget(const Job& job);
  Status PutIntoQueue(const std::shared_ptr<Job>& job);

  const Terms terms_;
  RequestQueue& queue_;
  const LookAhead* const look_ahead_;
  const Clock& clock_;
  Wakeup& wakeup_;
  const Finish finish_;
  mutable Mutex mu_;
  mutable CondVar none_open_;
  size_t open_ ABSL_GUARDED_BY(mu_) = 0;  // Admitted, or about to be, and not over.
  Stats totals_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::worker
