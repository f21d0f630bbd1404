#pragma once
// std::mutex and std::condition_variable under names that Clang's thread-safety analysis
// understands.
//
// Not absl::Mutex: Debian's build of it is not instrumented, so correct programs give TSan reports.

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>

#include "absl/base/thread_annotations.h"
#include "cairn/common/clock.h"

namespace cairn {

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mu_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mu_.unlock(); }
  // For callbacks, which the analysis cannot follow: the caller holds the mutex. Checks nothing at
  // run time.
  void AssertHeld() const ABSL_ASSERT_EXCLUSIVE_LOCK() {}

 private:
  friend class CondVar;
  std::mutex mu_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(mu) { mu_.Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mu_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mu_;
};

// The caller of a wait holds the mutex (a MutexLock is in scope), and so does the predicate, which
// says so: [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return done_; }
//
// Cores wait on the clock that they were given, so that a test can move it, or can run other work
// in the same thread meanwhile (tests/simulation). The waits without a clock are for what always
// has threads and real time.
//
// Not std::condition_variable_any, which takes a second mutex of its own for each wait and
// notification.
class CondVar {
 public:
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }
  template <typename Predicate>
  void Wait(Mutex& mu, Predicate predicate) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    Held held(mu.mu_);
    cv_.wait(held.lock, predicate);
  }
  // False when the deadline passed with the predicate still false.
  template <typename Predicate>
  bool WaitUntil(Mutex& mu, std::chrono::steady_clock::time_point deadline, Predicate predicate)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    Held held(mu.mu_);
    return cv_.wait_until(held.lock, deadline, predicate);
  }

  // The same on a clock. `deadline` is a time of that clock.
  template <typename Predicate>
  bool WaitUntil(Mutex& mu, const Clock& clock, TimePoint deadline, Predicate predicate)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    // The predicate requires the caller's mutex, which is `mu` by a name that Clang cannot know.
    const auto ready = [&predicate]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return predicate(); };
    while (!ready()) {
      if (clock.Now() >= deadline) return false;
      clock.Wait(*this, mu, deadline, ready);
    }
    return true;
  }
  template <typename Predicate>
  void Wait(Mutex& mu, const Clock& clock, Predicate predicate) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    WaitUntil(mu, clock, TimePoint::max(), predicate);
  }
  // Returns when it was notified, at `deadline`, or for no reason. For clocks, whose interface has
  // no annotations.
  void WaitOnce(Mutex& mu, TimePoint deadline) {
    Held held(mu.mu_);
    cv_.wait_until(held.lock, deadline);
  }

 private:
  // The caller's lock in the form that a wait takes. It stays the caller's.
  struct Held {
    explicit Held(std::mutex& mu) : lock(mu, std::adopt_lock) {}
    ~Held() { lock.release(); }
    std::unique_lock<std::mutex> lock;
  };
  std::condition_variable cv_;
};

}  // namespace cairn
