#pragma once
// A counter to wait on, for a thread that waits for many things at once. Whatever could let it go
// on calls Notify, and the thread looks for itself what that was:
//
//   seen = wakeup.Now();  look;  nothing to do: wakeup.WaitPast(seen, clock, deadline)
//
// What is notified between Now and WaitPast is not lost.

#include <cstdint>

#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"

namespace cairn {

// Thread-safe. Notify may be called with locks held: it takes no other lock.
class Wakeup {
 public:
  uint64_t Now() const {
    MutexLock lock(mu_);
    return count_;
  }
  // Notified under the lock: whoever waits may destroy this as soon as it returns.
  void Notify() {
    MutexLock lock(mu_);
    ++count_;
    changed_.NotifyAll();
  }
  // False when the deadline passed first.
  bool WaitPast(uint64_t seen, const Clock& clock, TimePoint deadline) {
    MutexLock lock(mu_);
    return changed_.WaitUntil(mu_, clock, deadline,
                              [this, seen]()
                                  ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return count_ != seen; });
  }

 private:
  mutable Mutex mu_;
  CondVar changed_;
  uint64_t count_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace cairn
