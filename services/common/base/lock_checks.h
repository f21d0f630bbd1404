#pragma once
// Checks of locks inside gRPC.

#include "absl/synchronization/mutex.h"

namespace cairn {

// First thing in main. Debian's Abseil is built with its debugging aids, so each lock that gRPC takes is entered into a graph of who waits
// for whom, behind one lock for the whole process.
inline void SkipLockChecks() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace cairn
