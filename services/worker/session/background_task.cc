#include "services/worker/session/background_task.h"

#include "common/concurrency/mutex.h"

namespace cairn::worker {

// Shared with the task, which lets go of the mutex after the end was seen.
struct BackgroundTask::State {
  Mutex mu;
  CondVar changed;
  bool done ABSL_GUARDED_BY(mu) = false;
};

BackgroundTask::BackgroundTask(Executor& executor, const Clock& clock, Wakeup& wakeup,
                               const std::function<void()>& work)
    : clock_(clock), state_(std::make_shared<State>()) {
  const auto run = [state = state_, &wakeup, work] {
    work();
    MutexLock lock(state->mu);
    state->done = true;
    state->changed.NotifyAll();
    // With the lock held: whoever sees the end may destroy the wakeup.
    wakeup.Notify();
  };
  if (!executor.Post(run).ok()) run();
}

BackgroundTask::~BackgroundTask() {
  State& state = *state_;
  MutexLock lock(state.mu);
  state.changed.Wait(state.mu, clock_,
                     [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mu) { return state.done; });
}

bool BackgroundTask::done() const {
  MutexLock lock(state_->mu);
  return state_->done;
}

}  // namespace cairn::worker
