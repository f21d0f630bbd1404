#pragma once
// Runs a step on the executor again and again until it says that there is nothing to do, one thread
// at a time.

#include <functional>
#include <utility>

#include "common/concurrency/executor.h"
#include "common/concurrency/mutex.h"

namespace cairn::cache {

class Pump {
 public:
  // `step`: starts one piece of work; false when there is none. Must not block on I/O of its own
  // work.
  Pump(Executor* executor, std::function<bool()> step)
      : executor_(executor), step_(std::move(step)) {}

  // Call it when work may have come. Cheap, any thread. If the executor is full, a later Kick (the
  // owner's tick) runs the step.
  void Kick() {
    {
      MutexLock lock(mu_);
      if (running_) {
        again_ = true;
        return;
      }
      if (posted_) return;
      posted_ = true;
    }
    const Status posted = executor_->Post([this] { Run(); });
    if (posted.ok()) return;
    MutexLock lock(mu_);
    posted_ = false;
  }

 private:
  void Run() {
    {
      MutexLock lock(mu_);
      posted_ = false;
      if (running_) {
        again_ = true;
        return;
      }
      running_ = true;
    }
    for (;;) {
      while (step_()) {
      }
      MutexLock lock(mu_);
      if (!again_) {
        running_ = false;
        return;
      }
      again_ = false;
    }
  }

  Executor* const executor_;
  const std::function<bool()> step_;
  Mutex mu_;
  bool posted_ ABSL_GUARDED_BY(mu_) = false;
  bool running_ ABSL_GUARDED_BY(mu_) = false;
  bool again_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace cairn::cache
