#pragma once
// The end of a question that asks several members: one answer, at its deadline at the latest.

#include <functional>
#include <utility>

#include "common/concurrency/mutex.h"
#include "common/concurrency/timers.h"

namespace cairn::cache {

// Thread-safe. Whoever calls Begin and gets true gives the answer.
class TimedEnd {
 public:
  // `timers` outlives it.
  explicit TimedEnd(Timers* timers) : timers_(*timers) {}

  // Before anybody can end the question: `late` runs at the deadline, unless it has ended by then.
  void At(TimePoint deadline, std::function<void()> late) {
    MutexLock lock(mu_);
    timer_ = timers_.At(deadline, std::move(late));
  }
  // The question ends now. False: it has ended before.
  bool Begin() {
    Timers::Id timer = 0;
    {
      MutexLock lock(mu_);
      if (std::exchange(over_, true)) return false;
      timer = timer_;
    }
    timers_.Cancel(timer);
    return true;
  }
  bool over() const {
    MutexLock lock(mu_);
    return over_;
  }

 private:
  Timers& timers_;
  mutable Mutex mu_;
  Timers::Id timer_ ABSL_GUARDED_BY(mu_) = 0;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace cairn::cache
