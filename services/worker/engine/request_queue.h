#pragma once
// The bounded queue between callers and the engine's thread, and the channel back.

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"
#include "services/worker/engine/prompt.h"
#include "services/worker/engine/request.h"
#include "services/worker/scheduling/scheduler.h"

namespace cairn::worker {

// One request on its way. The caller's thread and the engine's thread share it: the caller may
// leave only after the outcome is set, so the engine may write to it until then.
class Job {
 public:
  // `clock` must outlive it.
  Job(const GenerateRequest& request, PreparedPrompt prompt, const Clock& clock)
      : request_(request), prompt_(std::move(prompt)), clock_(clock), queued_at_(clock.Now()) {}

  const GenerateRequest& request() const { return request_; }
  const PreparedPrompt& prompt() const { return prompt_; }
  TimePoint queued_at() const { return queued_at_; }
  // What orders its prompt among others.
  PromptClaim claim() const {
    return {.prefill_tokens = std::ssize(prompt_.tokens), .arrived = queued_at_};
  }

  void Cancel() {
    MutexLock lock(mu_);
    cancelled_.store(true, std::memory_order_relaxed);
    changed_.NotifyAll();
  }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

  // Engine's side. A reader that is slow never holds the engine up: at most max_tokens tokens wait.
  void PutToken(TokenId id, std::string text);
  // Waits while the reader is kMaxScores behind: logits are large. Returns at once when cancelled.
  void PutScores(size_t first, size_t rows, std::vector<float> logits);
  // True when PutScores would not wait. Waits at most `wait` for that.
  bool HasRoomForScores(Duration wait = Duration(0));
  void Finish(Result<GenerateSummary> outcome);

  // Caller's side: runs the callbacks until the outcome is there.
  Result<GenerateSummary> Consume(const GenerateCallbacks& callbacks);

 private:
  struct Token {
    TokenId id;
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
  const TimePoint queued_at_;
  std::atomic<bool> cancelled_{false};

  Mutex mu_;
  CondVar changed_;
  std::deque<Token> tokens_ ABSL_GUARDED_BY(mu_);
  std::deque<Scores> scores_ ABSL_GUARDED_BY(mu_);
  std::optional<Result<GenerateSummary>> outcome_ ABSL_GUARDED_BY(mu_);
};

// What is said about a request that was cancelled before it began.
GenerateSummary CancelledSummary(const Job& job, TimePoint now);

// Thread-safe.
class RequestQueue {
 public:
  // `clock` must outlive it.
  RequestQueue(size_t capacity, const Clock& clock) : capacity_(capacity), clock_(clock) {}

  // RESOURCE_EXHAUSTED when `capacity` requests wait, UNAVAILABLE after Close.
  [[nodiscard]] Status Put(std::shared_ptr<Job> job);

  // The oldest request. Null: there is none.
  std::shared_ptr<Job> Take();
  // Waits until there is a request, or the queue is closed.
  void WaitForJob();

  // Takes those out that are cancelled, so that they hold no place.
  std::vector<std::shared_ptr<Job>> TakeCancelled();
  // No new requests. Those that wait can still be taken.
  void Close();
  bool closed() const;
  size_t size() const;
  // Cancels all that wait.
  void CancelAll();

 private:
  const size_t capacity_;
  const Clock& clock_;
  mutable Mutex mu_;
  CondVar changed_;
  std::deque<std::shared_ptr<Job>> jobs_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace cairn::worker
