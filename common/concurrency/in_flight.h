#pragma once
// Counts what is under way, for an owner that must not end before that has ended.

#include <cstddef>

#include "common/concurrency/mutex.h"

namespace cairn {

// Thread-safe.
class InFlight {
 public:
  // One of them, for as long as it lives.
  class Token {
   public:
    explicit Token(InFlight* gate) : gate_(gate) { gate_->Begin(); }
    ~Token() { gate_->End(1); }
    Token(const Token&) = delete;
    Token& operator=(const Token&) = delete;

   private:
    InFlight* const gate_;
  };

  // For those that end elsewhere, many at a time.
  void Begin() {
    MutexLock lock(mu_);
    ++count_;
  }
  void End(size_t count) {
    // Notified under the lock: the gate may be destroyed as soon as the waiter sees zero.
    MutexLock lock(mu_);
    count_ -= count;
    if (count_ == 0) wake_.NotifyAll();
  }
  void WaitForNone(const Clock& clock) {
    MutexLock lock(mu_);
    wake_.Wait(mu_, clock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return count_ == 0; });
  }

 private:
  Mutex mu_;
  CondVar wake_;
  size_t count_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace cairn
