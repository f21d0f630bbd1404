#pragma once
// How many requests are under way, for who must not end before they have.

#include <cstddef>

#include "common/concurrency/mutex.h"

namespace cairn::cache::disk {

// Thread-safe.
class Pending {
 public:
  void Begin() {
    MutexLock lock(mu_);
    ++count_;
  }
  // The callbacks of so many have run.
  void End(size_t count) {
    MutexLock lock(mu_);
    count_ -= count;
    if (count_ == 0) none_.NotifyAll();
  }
  void WaitNone(const Clock& clock) {
    MutexLock lock(mu_);
    none_.Wait(mu_, clock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return count_ == 0; });
  }

 private:
  Mutex mu_;
  CondVar none_;
  size_t count_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace cairn::cache::disk
