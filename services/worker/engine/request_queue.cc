#include "services/worker/engine/request_queue.h"

#include <algorithm>
#include <chrono>

namespace cairn::worker {
namespace {

// How often a caller that waits asks whether its client is still there.
constexpr std::chrono::milliseconds kCancelPoll{20};

}  // namespace

void Job::PutToken(TokenId id, std::string text) {
  MutexLock lock(mu_);
  tokens_.push_back({id, std::move(text)});
  changed_.NotifyAll();
}

void Job::PutScores(size_t first, size_t rows, std::vector<float> logits) {
  MutexLock lock(mu_);
  changed_.Wait(mu_, clock_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return scores_.size() < kMaxScores || cancelled();
  });
  if (cancelled()) return;
  scores_.push_back({first, rows, std::move(logits)});
  changed_.NotifyAll();
}

bool Job::HasRoomForScores(Duration wait) {
  MutexLock lock(mu_);
  return changed_.WaitUntil(mu_, clock_, clock_.Now() + wait,
                            [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
                              return scores_.size() < kMaxScores || cancelled();
                            });
}

void Job::Finish(Result<GenerateSummary> outcome) {
  MutexLock lock(mu_);
  outcome_ = std::move(outcome);
  changed_.NotifyAll();
}

Result<GenerateSummary> Job::Consume(const GenerateCallbacks& callbacks) {
  while (true) {
    std::deque<Token> tokens;
    std::deque<Scores> scores;
    std::optional<Result<GenerateSummary>> outcome;
    {
      MutexLock lock(mu_);
      changed_.WaitUntil(mu_, clock_, clock_.Now() + kCancelPoll,
                         [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
                           return !tokens_.empty() || !scores_.empty() || outcome_.has_value();
                         });
      tokens.swap(tokens_);
      scores.swap(scores_);
      changed_.NotifyAll();
      outcome = std::move(outcome_);
      outcome_.reset();
    }
    for (const Token& token : tokens) {
      if (cancelled()) break;
      if (callbacks.on_token && !callbacks.on_token(token.id, token.text)) Cancel();
    }
    for (const Scores& s : scores) {
      if (cancelled()) break;
      if (callbacks.on_scores && !callbacks.on_scores(s.first, s.rows, s.logits)) Cancel();
    }
    if (outcome) return *std::move(outcome);
    if (!cancelled() && callbacks.cancelled && callbacks.cancelled()) Cancel();
  }
}

GenerateSummary CancelledSummary(const Job& job, TimePoint now) {
  GenerateSummary summary;
  summary.prompt_tokens = static_cast<uint32_t>(job.prompt().tokens.size());
  summary.queue_seconds = Seconds(now - job.queued_at());
  summary.finish_reason = "cancelled";
  return summary;
}

Status RequestQueue::Put(std::shared_ptr<Job> job) {
  MutexLock lock(mu_);
  if (closed_) return Status(StatusCode::kUnavailable, "the worker is shutting down");
  if (jobs_.size() >= capacity_) {
    return Errorf(StatusCode::kResourceExhausted,
                  "request queue: {} requests wait, expected at most {}", jobs_.size(), capacity_);
  }
  jobs_.push_back(std::move(job));
  changed_.NotifyAll();
  return OkStatus();
}

void RequestQueue::WaitForJob() {
  MutexLock lock(mu_);
  changed_.Wait(mu_, clock_,
                [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !jobs_.empty() || closed_; });
}

std::shared_ptr<Job> RequestQueue::Take() {
  MutexLock lock(mu_);
  if (jobs_.empty()) return nullptr;
  std::shared_ptr<Job> job = std::move(jobs_.front());
  jobs_.pop_front();
  return job;
}

std::vector<std::shared_ptr<Job>> RequestQueue::TakeCancelled() {
  MutexLock lock(mu_);
  const auto first = std::stable_partition(jobs_.begin(), jobs_.end(),
                                           [](const auto& job) { return !job->cancelled(); });
  std::vector<std::shared_ptr<Job>> cancelled(std::make_move_iterator(first),
                                              std::make_move_iterator(jobs_.end()));
  jobs_.erase(first, jobs_.end());
  return cancelled;
}

void RequestQueue::Close() {
  MutexLock lock(mu_);
  closed_ = true;
  changed_.NotifyAll();
}

bool RequestQueue::closed() const {
  MutexLock lock(mu_);
  return closed_;
}

size_t RequestQueue::size() const {
  MutexLock lock(mu_);
  return jobs_.size();
}

void RequestQueue::CancelAll() {
  MutexLock lock(mu_);
  for (const auto& job : jobs_) job->Cancel();
}

}  // namespace cairn::worker
