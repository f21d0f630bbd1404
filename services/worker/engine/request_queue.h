#pragma once
// The bounded queue between callers and the engine's thread, and the channel back.

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"
#include "common/concurrency/wakeup.h"
#include "common/tenants/tenant_accounts.h"
#include "services/worker/engine/prompt.h"
#include "services/worker/engine/request.h"
#include "services/worker/scheduling/prompt_queue.h"
#include "services/worker/scheduling/scheduler.h"

namespace cairn::worker {

// One request on its way. The caller's thread and the engine's thread share it: the caller may
// leave only after the outcome is set, so the engine may write to it until then.
class Job {
 public:
  // `clock` must outlive it. `wakeup`: notified when the caller cancels and when it takes scores;
  // may be null, and must outlive calls of Cancel and Consume.
  Job(const GenerateRequest& request, PreparedPrompt prompt, const Clock& clock,
      Wakeup* wakeup = nullptr)
      : request_(request),
        prompt_(std::move(prompt)),
        clock_(clock),
        wakeup_(wakeup),
        queued_at_(clock.Now()) {
    claim_.priority = request_.priority;
    claim_.prefill_tokens = std::ssize(prompt_.tokens);
    claim_.arrived = queued_at_;
  }

  const GenerateRequest& request() const { return request_; }
  const PreparedPrompt& prompt() const { return prompt_; }
  TimePoint queued_at() const { return queued_at_; }
  // Room for the KV of its prompt and its longest answer, or of what it scores.
  int64_t TokensNeeded() const {
    const size_t scored = request_.score_tokens.size();
    return static_cast<int64_t>(prompt_.tokens.size() + (scored > 0 ? scored : prompt_.max_tokens));
  }
  // The claim that orders its prompt among others. Constant while it waits and runs.
  const PromptClaim& claim() const { return claim_; }
  // Before it is queued: how much of the prompt must be computed, as far as is known.
  void ExpectPrefill(int64_t tokens) { claim_.prefill_tokens = tokens; }
  // Seconds that it would wait, as far as was known when it was queued. 0: not known, or none.
  double expected_wait() const { return expected_wait_; }

  void Cancel() {
    MutexLock lock(mu_);
    left_.store(true, std::memory_order_relaxed);
    changed_.NotifyAll();
    if (wakeup_ != nullptr) wakeup_->Notify();
  }
  // The caller has left, or the deadline has passed: there is no more use in working on it.
  bool cancelled() const { return left() || expired(); }
  bool expired() const {
    return request_.deadline && clock_.Now() >= *request_.deadline && !left();
  }

  // Engine's side. A reader that is slow never holds the engine up: at most max_tokens tokens wait.
  void PutToken(model::TokenId id, std::string text);
  void PutAnnounced();
  // Waits while the reader is kMaxScores behind: logits are large. Returns at once when cancelled.
  void PutScores(size_t first, size_t rows, std::vector<float> logits);
  // True when PutScores would not wait.
  bool HasRoomForScores();
  void Finish(Result<GenerateSummary> outcome);
  // Tokens so far.
  uint64_t generated() const { return generated_.load(std::memory_order_relaxed); }

  // Caller's side: runs the callbacks until the outcome is there.
  Result<GenerateSummary> Consume(const GenerateCallbacks& callbacks);

 private:
  friend class RequestQueue;
  bool left() const { return left_.load(std::memory_order_relaxed); }

  struct Token {
    model::TokenId id;
    std::string text;
  };
  struct Scores {
    size_t first;
    size_t rows;
    std::vector<float> logits;
  };
  static constexpr size_t kMaxScores = 4;

  const GenerateRequest request_;
  const PreparedPrompt prompt_;
  const Clock& clock_;
  Wakeup* const wakeup_;
  const TimePoint queued_at_;
  PromptClaim claim_;
  uint64_t id_ = 0;  // In the queue.
  double expected_wait_ = 0;
  std::atomic<bool> left_{false};
  std::atomic<uint64_t> generated_{0};

  Mutex mu_;
  CondVar changed_;
  std::deque<Token> tokens_ ABSL_GUARDED_BY(mu_);
  std::deque<Scores> scores_ ABSL_GUARDED_BY(mu_);
  bool announced_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<Result<GenerateSummary>> outcome_ ABSL_GUARDED_BY(mu_);
};

// The summary of a request that ended before it began: its caller left, or its deadline passed.
GenerateSummary EndedSummary(const Job& job, TimePoint now);

// The jobs that wait, in the order of a PromptQueue. Each job enters the accounts of its tenant
// with Put and leaves them with Over. Thread-safe.
class RequestQueue {
 public:
  // `accounts`, `clock` and `wakeup` must outlive it. `tenant`: of requests that name none.
  // `wakeup`: notified when a request is put in, and when the queue is closed.
  RequestQueue(const PromptQueue::Options& options, TenantAccounts& accounts, std::string tenant,
               const Clock& clock, Wakeup& wakeup)
      : accounts_(accounts),
        tenant_(std::move(tenant)),
        clock_(clock),
        wakeup_(wakeup),
        prompts_(options, accounts) {}

  // RESOURCE_EXHAUSTED: too many requests wait, or this one would wait too long; says when to try
  // again. UNAVAILABLE after Close. `displaced`: the request that lost its place to this one, or
  // null; the caller finishes it.
  [[nodiscard]] Status Put(const std::shared_ptr<Job>& job, std::shared_ptr<Job>* displaced);

  // The request that goes next, as PromptQueue::Take. Its prefill is charged to its tenant. Null:
  // there is none, or `fits` says that none can run yet. `fits` must not call the queue.
  std::shared_ptr<Job> Take(const std::function<bool(const Job&)>& fits = nullptr);
  // The claim of the request that would go next if there were room. nullopt: none waits.
  std::optional<PromptClaim> FirstClaim() const;
  // A job that was accepted is over.
  void Over(const Job& job);
  // Takes those out that are cancelled or past their deadline, so that they hold no place.
  std::vector<std::shared_ptr<Job>> TakeEnded();
  // The earliest deadline of those that wait. TimePoint::max(): none has any.
  TimePoint FirstDeadline() const;
  // As PromptQueue::SetRunning.
  void SetRunning(std::vector<PromptClaim> running, double tokens_per_second);
  // No new requests. Those that wait can still be taken.
  void Close();
  bool closed() const;
  size_t size() const;
  // The claims of requests that wait, and the seconds of prefill that wait and run.
  std::vector<PromptClaim> Waiting() const;
  double BacklogSeconds() const;
  // Cancels all that wait.
  void CancelAll();

 private:
  Status Refusal(const PromptQueue::Outcome& outcome, const Job& job) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  TenantAccounts& accounts_;
  const std::string tenant_;
  const Clock& clock_;
  Wakeup& wakeup_;
  mutable Mutex mu_;
  PromptQueue prompts_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, std::shared_ptr<Job>> jobs_ ABSL_GUARDED_BY(mu_);  // By id.
  uint64_t next_id_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace cairn::worker
