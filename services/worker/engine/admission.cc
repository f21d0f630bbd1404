#include "services/worker/engine/admission.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "services/worker/engine/spilled_prompt.h"

namespace cairn::worker {

Admission::Admission(Terms terms, RequestQueue& queue, const LookAhead* look_ahead,
                     const Clock& clock, Wakeup& wakeup, Finish finish)
    : terms_(std::move(terms)),
      queue_(queue),
      look_ahead_(look_ahead),
      clock_(clock),
      wakeup_(wakeup),
      finish_(std::move(finish)) {}

Result<std::shared_ptr<Job>> Admission::Admit(const GenerateRequest& request,
                                              PreparedPrompt prompt) {
  if (request.deadline && *request.deadline <= clock_.Now()) {
    return InvalidArgument(
        "field 'deadline': got a time {:.3f} s in the past, expected one to come",
        Seconds(clock_.Now() - *request.deadline));
  }
  CAIRN_RETURN_IF_ERROR(CheckRole(request));
  auto job = std::make_shared<Job>(request, std::move(prompt), clock_, &wakeup_);
  CAIRN_RETURN_IF_ERROR(CheckBudget(*job));
  bool busy = false;
  {
    MutexLock lock(mu_);
    busy = open_ >= terms_.places;
    ++open_;
  }
  // A request that gets a place is matched at once.
  LookAhead::Cached cached;
  if (busy && look_ahead_ != nullptr) {
    cached = look_ahead_->Find(*job);
    job->ExpectPrefill(std::ssize(job->prompt().tokens) -
                       std::ssize(cached.keys) * int64_t{terms_.kv.block_tokens});
  }
  // Blocks that another worker computes are not computed here.
  if (request.await_prefill > Duration(0)) {
    job->ExpectPrefill(std::min<int64_t>(job->claim().prefill_tokens, terms_.kv.block_tokens));
  }
  const Status status = PutIntoQueue(job);
  if (!status.ok()) {
    MutexLock lock(mu_);
    --open_;
    ++totals_.refused;
    none_open_.NotifyAll();
    return status;
  }
  if (cached.below_memory > 0) {
    const uint64_t blocks = look_ahead_->Announce(*job, cached);
    MutexLock lock(mu_);
    totals_.lookahead_blocks += blocks;
  }
  return job;
}

Status Admission::PutIntoQueue(const std::shared_ptr<Job>& job) {
  std::shared_ptr<Job> displaced;
  Status status = queue_.Put(job, &displaced);
  if (status.code() == StatusCode::kResourceExhausted) {
    for (const auto& ended : queue_.TakeEnded()) {
      finish_(*ended, EndedSummary(*ended, clock_.Now()));
    }
    status = queue_.Put(job, &displaced);
  }
  if (displaced != nullptr) {
    finish_(*displaced, Status(StatusCode::kResourceExhausted,
                               "request queue: full, and requests of a tenant with fewer of them "
                               "or of a greater priority have come; try again later"));
  }
  return status;
}

void Admission::Over(const Job& job) {
  queue_.Over(job);
  MutexLock lock(mu_);
  --open_;
  none_open_.NotifyAll();
}

size_t Admission::open() const {
  MutexLock lock(mu_);
  return open_;
}

bool Admission::WaitNone(TimePoint deadline) const {
  MutexLock lock(mu_);
  return none_open_.WaitUntil(mu_, clock_, deadline,
                              [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return open_ == 0; });
}

Admission::Stats Admission::GetStats() const {
  MutexLock lock(mu_);
  return totals_;
}

Status Admission::CheckRole(const GenerateRequest& request) const {
  const auto refuse = [](std::string_view why) {
    return Errorf(StatusCode::kFailedPrecondition, "field 'prefill_only': {}", why);
  };
  if (!request.prefill_only) {
    if (terms_.role == model::WorkerRole::kPrefill) {
      return refuse("got false, but this worker has the role 'prefill'");
    }
    return OkStatus();
  }
  if (terms_.role == model::WorkerRole::kDecode) {
    return refuse("got true, but this worker has the role 'decode'");
  }
  if (!terms_.no_prefill_only.empty()) return refuse("got true, but " + terms_.no_prefill_only);
  return OkStatus();
}

Status Admission::CheckBudget(const Job& job) {
  const KvLayout& kv = terms_.kv;
  const int64_t block = kv.block_tokens;
  const int64_t tokens = std::ssize(job.prompt().tokens);
  const bool spills = job.TokensNeeded() > terms_.pool_tokens;
  const int64_t rows = spills ? SpilledPrompt::RowsAtNode(tokens) : tokens / block * block;
  if (terms_.reading == nullptr || rows == 0 || job.request().prefill_only) return OkStatus();
  const int64_t own_pages = (job.TokensNeeded() - rows + block - 1) / block;
  Status fits =
      terms_.reading->CheckBudget(rows, static_cast<uint64_t>(own_pages) * kv.page_bytes());
  if (fits.ok()) return fits;
  MutexLock lock(mu_);
  ++totals_.near_refused;
  return fits;
}

}  // namespace cairn::worker
