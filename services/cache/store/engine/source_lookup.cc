#include "services/cache/store/engine/source_lookup.h"

#include <algorithm>

namespace cairn::cache {

// Shared by the copies of the source's callback: a source that destroys it has no answer.
struct SourceLookup::Answer {
  explicit Answer(std::shared_ptr<SourceLookup> lookup_in) : lookup(std::move(lookup_in)) {}
  ~Answer() { lookup->Finish(Errorf(StatusCode::kCancelled, "the source went away")); }
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;
  const std::shared_ptr<SourceLookup> lookup;
};

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
  source_.LocateAt(fingerprint_, local_.rest, local_.holders, limit,
                   [answer = std::make_shared<Answer>(self)](const Result<Located>& located) {
                     answer->lookup->Finish(located);
                   });
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
