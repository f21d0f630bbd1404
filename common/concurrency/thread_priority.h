#pragma once
// The share of the CPU that a thread gets next to others.

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace cairn {

// The calling thread gives way to threads of a lower niceness: 0 is usual, 19 the last. False: the
// system refuses, and the thread stays as it is, which only costs others some speed. A thread
// cannot come back from it without a privilege.
inline bool SetThreadNiceness(int niceness) {
  // Linux has one priority for each thread.
  return setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), niceness) == 0;
}

}  // namespace cairn
