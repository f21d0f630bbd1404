#pragma once
// The first steps of each main.

#include <malloc.h>

#include <cstdlib>

#include "absl/synchronization/mutex.h"

namespace cairn::service {

constexpr int kArenas = 4;

// main calls it first, before any thread exists. `arenas`: glibc's, each with a lock and with the
// memory that was freed in it.
inline void InitProcess(int arenas = kArenas) {
  // By default glibc maps each large buffer again and returns it at once, so each message pays for
  // its page faults: four times the cost of the copy itself.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  mallopt(M_TOP_PAD, 16 << 20);
  // Threads of gRPC free memory that other threads allocated. With many arenas each arena would
  // keep its own share.
  mallopt(M_ARENA_MAX, arenas);
  // gRPC's own log has another format and would print a dump before our errors. gRPC reads the
  // variable once, when it starts. GRPC_VERBOSITY=DEBUG or ERROR in the environment turns the log
  // on again.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  // Debian builds Abseil with its debugging aids. Each lock that gRPC takes is then entered into a
  // graph of waiting threads, under one lock for the whole process.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace cairn::service
