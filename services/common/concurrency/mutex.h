#pragma once
// std::mutex and std::condition_variable_any under names that Clang's thread-safety analysis understands.
//
// Not absl::Mutex: Debian's build of it is not instrumented, so correct programs give TSan reports.

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>

#include "absl/base/thread_annotations.h"

namespace cairn {

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mu_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mu_.unlock(); }
  // For std::condition_variable_any.
  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mu_.lock(); }
  void unlock() ABSL_UNLOCK_FUNCTION() { mu_.unlock(); }

 private:
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

// Waits happen with the mutex held (MutexLock in scope); spurious wake-ups are possible without a predicate.
class CondVar {
 public:
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }
  template <typename Predicate>
  void Wait(Mutex& mu, Predicate predicate) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    cv_.wait(mu, predicate);
  }
  // False when the deadline passed with the predicate still false.
  template <typename Predicate>
  bool WaitUntil(Mutex& mu, std::chrono::steady_clock::time_point deadline,
                 Predicate predicate) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return cv_.wait_until(mu, deadline, predicate);
  }

 private:
  std::condition_variable_any cv_;
};

}  // namespace cairn
