#include "clients/python/src/pending_match.h"

#include <chrono>
#include <span>
#include <utility>

namespace cairn::python {

void PendingMatch::Run(client::CacheClient& client) {
  const TimePoint begin = std::chrono::steady_clock::now();
  Answer answer{client.Match(question_.fingerprint, question_.keys, question_.match), OkStatus(),
                std::chrono::steady_clock::now() - begin};
  if (answer.match.ok() && answer.match->matched_blocks > 0 && question_.needed_in) {
    const auto matched = std::span(question_.keys).first(answer.match->matched_blocks);
    // A caller that waits for the answer waits for the hint too, and has given both of them one
    // deadline.
    answer.hint = client
                      .Prefetch(question_.fingerprint, matched, *question_.needed_in,
                                {.deadline = question_.match.deadline - answer.time,
                                 .trace = question_.match.trace})
                      .status();
  }
  Finish(std::move(answer));
}

void PendingMatch::Refuse(const Status& status) { Finish({status, OkStatus(), {}}); }

void PendingMatch::Finish(Answer answer) {
  const MutexLock lock(mu_);
  answer_.emplace(std::move(answer));
  done_.store(true, std::memory_order_release);
  finished_.NotifyAll();
}

Result<bool> PendingMatch::Wait(TimePoint until) {
  if (Done()) return true;
  if (getpid() != process_) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "the match belongs to process {}, and this is its fork {}", process_, getpid());
  }
  const MutexLock lock(mu_);
  return finished_.WaitUntil(mu_, until,
                             [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return Done(); });
}

}  // namespace cairn::python
