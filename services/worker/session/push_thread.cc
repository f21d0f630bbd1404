#include "services/worker/session/push_thread.h"

#include "common/concurrency/thread_priority.h"
#include "common/log/log.h"

namespace cairn::worker {

PushThread::PushThread(PushQueue& queue)
    : queue_(queue), thread_([&queue] {
        if (!SetThreadNiceness(queue.options().niceness)) {
          log::Debug("push_thread_priority_unchanged");
        }
        queue.Run();
      }) {}

PushThread::~PushThread() {
  queue_.Stop(TimePoint{});
  thread_.join();
}

}  // namespace cairn::worker
