#include "services/worker/engine/request_queue.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace cairn::worker {
namespace {

// How often a caller that waits asks whether its client is still there.
constexpr std::chrono::milliseconds kCancelPoll{20};

}  // namespace

void Job::PutToken(model::TokenId id, std::string text) {
  MutexLock lock(mu_);
  tokens_.push_back({id, std::move(text)});
  generated_.fetch_add(1, std::memory_order_relaxed);
  changed_.NotifyAll();
}

void Job::PutAnnounced() {
  MutexLock lock(mu_);
  announced_ = true;
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

bool Job::HasRoomForScores() {
  MutexLock lock(mu_);
  return scores_.size() < kMaxScores || cancelled();
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
    bool announced = false;
    std::optional<Result<GenerateSummary>> outcome;
    {
      MutexLock lock(mu_);
      changed_.WaitUntil(
          mu_, clock_, clock_.Now() + kCancelPoll, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
            return !tokens_.empty() || !scores_.empty() || announced_ || outcome_.has_value();
          });
      tokens.swap(tokens_);
      scores.swap(scores_);
      announced = std::exchange(announced_, false);
      changed_.NotifyAll();
      if (!scores.empty() && wakeup_ != nullptr) wakeup_->Notify();
      outcome = std::move(outcome_);
      outcome_.reset();
    }
    if (announced && !left() && callbacks.on_announced && !callbacks.on_announced()) Cancel();
    for (const Token& token : tokens) {
      if (left()) break;
      if (callbacks.on_token && !callbacks.on_token(token.id, token.text)) Cancel();
    }
    for (const Scores& s : scores) {
      if (left()) break;
      if (callbacks.on_scores && !callbacks.on_scores(s.first, s.rows, s.logits)) Cancel();
    }
    if (outcome) return *std::move(outcome);
    if (!left() && callbacks.cancelled && callbacks.cancelled()) Cancel();
  }
}

GenerateSummary EndedSummary(const Job& job, TimePoint now) {
  GenerateSummary summary;
  summary.prompt_tokens = static_cast<uint32_t>(job.prompt().tokens.size());
  summary.queue_seconds = Seconds(now - job.queued_at());
  summary.finish_reason = "cancelled";
  return summary;
}

Status RequestQueue::Put(const std::shared_ptr<Job>& job, std::shared_ptr<Job>* displaced) {
  MutexLock lock(mu_);
  if (closed_) return Status(StatusCode::kUnavailable, "the worker is shutting down");
  const std::string& tenant = job->request().tenant;
  job->claim_.tenant = accounts_.Enter(tenant.empty() ? tenant_ : tenant);
  job->id_ = next_id_++;
  const PromptQueue::Outcome outcome =
      prompts_.Put({.id = job->id_,
                    .claim = job->claim_,
                    .deadline = job->request().deadline.value_or(TimePoint::max())},
                   clock_.Now());
  job->expected_wait_ = outcome.wait_seconds;
  if (outcome.answer != PromptQueue::Answer::kAccepted) {
    accounts_.Leave(job->claim_.tenant);
    return Refusal(outcome, *job);
  }
  if (outcome.pushed_out) {
    const auto out = jobs_.find(*outcome.pushed_out);
    *displaced = std::move(out->second);
    jobs_.erase(out);
  }
  jobs_.emplace(job->id_, job);
  wakeup_.Notify();
  return OkStatus();
}

Status RequestQueue::Refusal(const PromptQueue::Outcome& outcome, const Job& job) const {
  const auto refuse = [&](const std::string& why) {
    return Errorf(StatusCode::kResourceExhausted, "request queue: {}; try again in {:.1f} s", why,
                  outcome.retry_seconds);
  };
  switch (outcome.answer) {
    case PromptQueue::Answer::kTenantFull:
      return refuse(fmt::format("the tenant's share of {} waiting requests is used up",
                                prompts_.options().tenant_capacity));
    case PromptQueue::Answer::kTooLong:
      return refuse(fmt::format(
          "expected to wait {:.1f} s, expected at most {}", outcome.wait_seconds,
          job.request().deadline ? "queue.max_wait and until the deadline" : "queue.max_wait"));
    case PromptQueue::Answer::kAccepted:
    case PromptQueue::Answer::kFull:
      break;
  }
  return refuse(fmt::format("{} requests wait, expected at most {}", prompts_.size(),
                            prompts_.options().capacity));
}

std::shared_ptr<Job> RequestQueue::Take(const std::function<bool(const Job&)>& fits) {
  MutexLock lock(mu_);
  const auto job_fits = [&](const PromptQueue::Prompt& prompt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !fits || fits(*jobs_.at(prompt.id));
  };
  const auto prompt = prompts_.Take(clock_.Now(), job_fits);
  if (!prompt) return nullptr;
  std::shared_ptr<Job> job = jobs_.extract(prompt->id).mapped();
  accounts_.Charge(job->claim_.tenant, static_cast<double>(job->claim_.prefill_tokens));
  return job;
}

std::optional<PromptClaim> RequestQueue::FirstClaim() const {
  MutexLock lock(mu_);
  const auto prompt = prompts_.First(clock_.Now());
  return prompt ? std::optional(prompt->claim) : std::nullopt;
}

void RequestQueue::Over(const Job& job) { accounts_.Leave(job.claim_.tenant); }

std::vector<std::shared_ptr<Job>> RequestQueue::TakeEnded() {
  MutexLock lock(mu_);
  std::vector<std::shared_ptr<Job>> ended;
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    if (!it->second->cancelled()) {
      ++it;
      continue;
    }
    prompts_.Remove(it->first);
    ended.push_back(std::move(it->second));
    it = jobs_.erase(it);
  }
  return ended;
}

TimePoint RequestQueue::FirstDeadline() const {
  MutexLock lock(mu_);
  TimePoint first = TimePoint::max();
  for (const auto& [id, job] : jobs_) {
    first = std::min(first, job->request().deadline.value_or(TimePoint::max()));
  }
  return first;
}

void RequestQueue::SetRunning(std::vector<PromptClaim> running, double tokens_per_second) {
  MutexLock lock(mu_);
  prompts_.SetRunning(std::move(running), tokens_per_second);
}

void RequestQueue::Close() {
  MutexLock lock(mu_);
  closed_ = true;
  wakeup_.Notify();
}

bool RequestQueue::closed() const {
  MutexLock lock(mu_);
  return closed_;
}

size_t RequestQueue::size() const {
  MutexLock lock(mu_);
  return jobs_.size();
}

std::vector<PromptClaim> RequestQueue::Waiting() const {
  MutexLock lock(mu_);
  std::vector<PromptClaim> claims;
  for (const auto& [id, job] : jobs_) claims.push_back(job->claim_);
  return claims;
}

double RequestQueue::BacklogSeconds() const {
  MutexLock lock(mu_);
  return prompts_.BacklogSeconds();
}

void RequestQueue::CancelAll() {
  MutexLock lock(mu_);
  for (const auto& [id, job] : jobs_) job->Cancel();
}

}  // namespace cairn::worker
