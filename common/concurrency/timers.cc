#include "common/concurrency/timers.h"

#include <pthread.h>

namespace cairn {

Timers::~Timers() { Stop(); }

Timers::Id Timers::At(TimePoint when, std::function<void()> task) {
  Id id;
  {
    MutexLock lock(mu_);
    id = next_id_++;
    const bool earliest = tasks_.empty() || when < tasks_.begin()->first.first;
    tasks_.emplace(Key{when, id}, std::move(task));
    times_.emplace(id, when);
    if (!earliest) return id;
  }
  wake_.NotifyAll();
  return id;
}

bool Timers::Cancel(Id id) {
  std::function<void()> task;  // Destroyed without the lock: it may own what calls back here.
  MutexLock lock(mu_);
  const auto time = times_.find(id);
  if (time == times_.end()) return false;
  const auto it = tasks_.find({time->second, id});
  task = std::move(it->second);
  tasks_.erase(it);
  times_.erase(time);
  return true;
}

size_t Timers::RunDue() {
  for (size_t count = 0;; ++count) {
    std::function<void()> task;
    {
      MutexLock lock(mu_);
      if (tasks_.empty() || tasks_.begin()->first.first > clock_->Now()) return count;
      task = std::move(tasks_.begin()->second);
      times_.erase(tasks_.begin()->first.second);
      tasks_.erase(tasks_.begin());
    }
    task();
  }
}

size_t Timers::pending() const {
  MutexLock lock(mu_);
  return tasks_.size();
}

TimePoint Timers::next() const {
  MutexLock lock(mu_);
  return tasks_.empty() ? TimePoint::max() : tasks_.begin()->first.first;
}

void Timers::Start() {
  thread_ = std::thread([this] { Run(); });
}

void Timers::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void Timers::Run() {
  pthread_setname_np(pthread_self(), "timers");
  for (;;) {
    RunDue();
    MutexLock lock(mu_);
    if (stopping_) return;
    const TimePoint next = tasks_.empty() ? TimePoint::max() : tasks_.begin()->first.first;
    const auto earlier = [this, next]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return stopping_ || (!tasks_.empty() && tasks_.begin()->first.first < next);
    };
    if (next == TimePoint::max()) {
      wake_.Wait(mu_, earlier);
    } else {
      wake_.WaitUntil(mu_, next, earlier);
    }
    if (stopping_) return;
  }
}

}  // namespace cairn
