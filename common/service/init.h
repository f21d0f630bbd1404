#pragma once
// What each main does first.

#include <malloc.h>

#include <cstdlib>

#include "absl/synchronization/mutex.h"

namespace cairn::service {

// First thing in main, before any thread. `heap_bytes`: how much freed memory is kept for reuse.
inline void InitProcess(int heap_bytes = 256 << 20) {
  // By default glibc maps every large buffer anew and returns it at once, so each message pays for
  // its page faults: four times the cost of the copy itself.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, heap_bytes);
  mallopt(M_TOP_PAD, 16 << 20);
  // Threads of gRPC free what others allocated: many arenas would each keep their own share.
  mallopt(M_ARENA_MAX, 4);
  // gRPC's own log is not ours and has another format: it would print a dump before our errors.
  // gRPC reads the variable once, when it starts. GRPC_VERBOSITY=DEBUG or ERROR in the environment
  // brings it back.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  // Debian's Abseil is built with its debugging aids, so each lock that gRPC takes is entered into
  // a graph of who waits for whom, behind one lock for the whole process.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace cairn::service
