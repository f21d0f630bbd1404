#include "services/worker/session/push_thread.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/log/log.h"

namespace cairn::worker {
namespace {

void LowerPriority(int niceness) {
  // Linux: the priority of one thread. Without permission it stays as it is, which only costs
  // speed.
  const auto thread = static_cast<id_t>(syscall(SYS_gettid));
  if (setpriority(PRIO_PROCESS, thread, niceness) != 0) {
    log::Debug("push_thread_priority_unchanged");
  }
}

}  // namespace

PushThread::PushThread(PushQueue& queue)
    : queue_(queue), thread_([&queue] {
        LowerPriority(queue.options().niceness);
        queue.Run();
      }) {}

PushThread::~PushThread() {
  queue_.Stop(TimePoint{});
  thread_.join();
}

}  // namespace cairn::worker
