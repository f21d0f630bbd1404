#pragma once
// Threads that wait for gRPC's answers to calls that the router makes, so that no call holds a
// thread of its own.

#include <grpcpp/completion_queue.h>

#include <thread>
#include <vector>

#include "common/concurrency/mutex.h"

namespace cairn::router {

// The tag that a completion queue gives back. One operation of it is under way at a time.
class CompletionTag {
 public:
  virtual ~CompletionTag() = default;
  // The operation is done. On a poller's thread; must not block.
  virtual void Proceed(bool ok) = 0;
};

// Thread-safe.
class CompletionPoller {
 public:
  explicit CompletionPoller(size_t threads);
  // Waits until no call is left. REQUIRES: all calls have ended or were cancelled, and no more will
  // come.
  ~CompletionPoller();
  CompletionPoller(const CompletionPoller&) = delete;
  CompletionPoller& operator=(const CompletionPoller&) = delete;

  grpc::CompletionQueue* queue() { return &queue_; }
  // Around each call.
  void Begin();
  void End();

 private:
  grpc::CompletionQueue queue_;
  std::vector<std::thread> threads_;
  Mutex mu_;
  CondVar ended_;
  size_t calls_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace cairn::router
