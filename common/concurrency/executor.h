#pragma once
// Where work runs, as an injected dependency.

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"

namespace cairn {

// Thread-safe. Tasks must not throw.
class Executor {
 public:
  virtual ~Executor() = default;
  // RESOURCE_EXHAUSTED: the queue is full. UNAVAILABLE: Stop was called. In both cases the task
  // does not run and is destroyed.
  [[nodiscard]] virtual Status Post(std::function<void()> task) = 0;
};

// A fixed number of threads over one bounded FIFO queue.
class ThreadPool final : public Executor {
 public:
  struct Options {
    std::string name = "pool";     // Thread name (at most 15 characters are kept).
    size_t threads = 1;            // At least 1.
    size_t queue_capacity = 1024;  // Tasks waiting, not counting the running ones.
    // The threads give way to others by that much: 0 (as usual) to 19. Only a hint.
    int niceness = 0;
  };
  explicit ThreadPool(Options options);
  ~ThreadPool() override;  // Stop().
  Status Post(std::function<void()> task) override;
  // Runs the queued tasks, then joins the threads. Idempotent. A thread of the pool must not call
  // it.
  void Stop();
  size_t QueueDepth() const;

 private:
  void Run();
  const Options options_;
  mutable Mutex mu_;
  CondVar wake_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

// Runs tasks only when a test says so, so that tests can step through interleavings. Thread-safe.
class ManualExecutor final : public Executor {
 public:
  Status Post(std::function<void()> task) override;
  // Runs the oldest task. False: there is none.
  bool RunOne();
  // Runs tasks until the queue is empty, including tasks that these tasks post. Returns how many
  // ran.
  size_t RunAll();
  size_t Pending() const;

 private:
  mutable Mutex mu_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mu_);
};

// Runs the task inside Post.
class InlineExecutor final : public Executor {
 public:
  Status Post(std::function<void()> task) override {
    task();
    return OkStatus();
  }
};

}  // namespace cairn
