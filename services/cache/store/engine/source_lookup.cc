#include "services/cache/store/engine/source_lookup.h"

#include <algorithm>

#include "common/concurrency/runs_once.h"

namespace cairn::cache {

SourceLookup::~SourceLookup() {
  if (!asked_) reads_.CountMatch(local_, local_.result);
}

void SourceLookup::Find(TimePoint deadline, Done done) {
  asked_ = true;
  const TimePoint now = context_.clock->Now();
  TimePoint limit = now + context_.options.source_lookup_timeout;
  // The caller needs the other half to use the answer.
  if (deadline < limit + context_.options.source_lookup_timeout) {
    limit = now + std::max(Duration(0), deadline - now) / 2;
  }
  const auto self = shared_from_this();
  {
    MutexLock lock(mu_);
    token_.emplace(&context_.in_flight);
    done_ = std::move(done);
    timer_ = timers_.At(limit, [self] {
      self->Finish(Errorf(StatusCode::kDeadlineExceeded, "the source did not answer in time"));
    });
  }
  if (limit <= now) {
    return Finish(Errorf(StatusCode::kDeadlineExceeded, "the caller's deadline has passed"));
  }
  source_.LocateAt(fingerprint_, local_.rest, local_.holders, limit, local_.trace,
                   RunsOnce<Result<Located>>(
                       [self](const Result<Located>& located) { self->Finish(located); },
                       [] { return Errorf(StatusCode::kCancelled, "the source went away"); }));
}

void SourceLookup::Finish(const Result<Located>& located) {
  Done done;
  Timers::Id timer = 0;
  {
    MutexLock lock(mu_);
    if (!done_) return;
    done = std::exchange(done_, nullptr);
    timer = timer_;
  }
  timers_.Cancel(timer);
  done(reads_.Extend(local_, located.ok() ? *located : Located()));
  local_.lease.reset();
  local_.ns.reset();
  MutexLock lock(mu_);
  token_.reset();
}

}  // namespace cairn::cache
