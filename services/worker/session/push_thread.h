#pragma once
// The thread that pushes for a PushQueue, at a low priority.

#include <thread>

#include "services/worker/session/push_queue.h"

namespace cairn::worker {

// Not thread-safe.
class PushThread {
 public:
  explicit PushThread(PushQueue& queue);  // Must outlive it.
  ~PushThread();                          // Stops the queue, at once.
  PushThread(const PushThread&) = delete;
  PushThread& operator=(const PushThread&) = delete;

 private:
  PushQueue& queue_;
  std::thread thread_;
};

}  // namespace cairn::worker
