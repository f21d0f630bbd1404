#pragma once
// The answer of a match that asked a source. It comes on any thread, and the session takes it on
// its own thread. Thread-safe.

#include <optional>
#include <utility>

#include "common/concurrency/mutex.h"
#include "services/cache/store/engine/cache_engine.h"

namespace cairn::cache {

class LateMatch {
 public:
  // `engine` outlives the answer.
  LateMatch(CacheEngine* engine, SessionId session) : engine_(*engine), session_(session) {}

  void Set(Result<MatchResult> match) {
    {
      MutexLock lock(mu_);
      if (!abandoned_) {
        match_ = std::move(match);
        return;
      }
    }
    Release(match);
  }
  // nullopt: it has not come yet, or was taken.
  std::optional<Result<MatchResult>> Take() {
    MutexLock lock(mu_);
    return std::exchange(match_, std::nullopt);
  }
  // Nobody will take it: its lease is released when it comes.
  void Abandon() {
    std::optional<Result<MatchResult>> match;
    {
      MutexLock lock(mu_);
      abandoned_ = true;
      match = std::exchange(match_, std::nullopt);
    }
    if (match) Release(*match);
  }

 private:
  void Release(const Result<MatchResult>& match) {
    if (!match.ok() || !match->lease) return;
    const LeaseId lease = *match->lease;
    (void)engine_.Release(session_, {&lease, 1});
  }

  CacheEngine& engine_;
  const SessionId session_;
  Mutex mu_;
  std::optional<Result<MatchResult>> match_ ABSL_GUARDED_BY(mu_);
  bool abandoned_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace cairn::cache
