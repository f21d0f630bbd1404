#include "common/link/lone_thread.h"

#include <pthread.h>

#include <utility>

namespace cairn::link {

struct LoneThread::State {
  Mutex mu;
  CondVar changed;
  std::deque<std::function<void()>> tasks ABSL_GUARDED_BY(mu);
  bool ending ABSL_GUARDED_BY(mu) = false;
};

LoneThread::LoneThread(const char* name) : state_(std::make_shared<State>()) {
  // Detached: nobody may wait for a thread that hangs in a library.
  std::thread([state = state_, name = std::string(name).substr(0, 15)] {
    pthread_setname_np(pthread_self(), name.c_str());
    for (;;) {
      std::function<void()> task;
      {
        MutexLock lock(state->mu);
        // Clang does not see that `state` is one object in both.
        state->changed.Wait(state->mu, [&state]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          return state->ending || !state->tasks.empty();
        });
        if (state->ending) return;
        task = std::move(state->tasks.front());
        state->tasks.pop_front();
      }
      task();
    }
  }).detach();
}

LoneThread::~LoneThread() {
  std::deque<std::function<void()>> dropped;
  {
    MutexLock lock(state_->mu);
    state_->ending = true;
    dropped.swap(state_->tasks);
  }
  state_->changed.NotifyAll();
}

Status LoneThread::Post(std::function<void()> task) {
  {
    MutexLock lock(state_->mu);
    if (state_->tasks.size() >= kMostTasks) {
      return Errorf(StatusCode::kResourceExhausted, "tasks of a link: got more than {}, which wait",
                    kMostTasks);
    }
    state_->tasks.push_back(std::move(task));
  }
  state_->changed.NotifyAll();
  return OkStatus();
}

}  // namespace cairn::link
