#include "common/concurrency/executor.h"

#include <pthread.h>

#include "common/concurrency/thread_priority.h"

namespace cairn {

ThreadPool::ThreadPool(Options options) : options_(std::move(options)) {
  CAIRN_CHECK(options_.threads > 0);
  for (size_t i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { Run(); });
}

ThreadPool::~ThreadPool() { Stop(); }

Status ThreadPool::Post(std::function<void()> task) {
  {
    MutexLock lock(mu_);
    if (stopping_) return Errorf(StatusCode::kUnavailable, "{}: stopped", options_.name);
    if (queue_.size() >= options_.queue_capacity) {
      return Errorf(StatusCode::kResourceExhausted, "{}: queue is full ({} tasks)", options_.name,
                    options_.queue_capacity);
    }
    queue_.push_back(std::move(task));
  }
  wake_.NotifyOne();
  return OkStatus();
}

void ThreadPool::Stop() {
  {
    MutexLock lock(mu_);
    if (stopping_) return;
    stopping_ = true;
  }
  wake_.NotifyAll();
  for (auto& thread : threads_) thread.join();
}

size_t ThreadPool::QueueDepth() const {
  MutexLock lock(mu_);
  return queue_.size();
}

void ThreadPool::Run() {
  pthread_setname_np(pthread_self(), options_.name.substr(0, 15).c_str());
  if (options_.niceness != 0) (void)SetThreadNiceness(options_.niceness);
  for (;;) {
    std::function<void()> task;
    {
      MutexLock lock(mu_);
      wake_.Wait(mu_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return stopping_ || !queue_.empty();
      });
      if (queue_.empty()) return;
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    task();
  }
}

Status ManualExecutor::Post(std::function<void()> task) {
  MutexLock lock(mu_);
  queue_.push_back(std::move(task));
  return OkStatus();
}

bool ManualExecutor::RunOne() {
  std::function<void()> task;
  {
    MutexLock lock(mu_);
    if (queue_.empty()) return false;
    task = std::move(queue_.front());
    queue_.pop_front();
  }
  task();
  return true;
}

size_t ManualExecutor::RunAll() {
  size_t count = 0;
  while (RunOne()) ++count;
  return count;
}

size_t ManualExecutor::Pending() const {
  MutexLock lock(mu_);
  return queue_.size();
}

}  // namespace cairn
