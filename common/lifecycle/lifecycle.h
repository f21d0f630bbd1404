#pragma once
// How a process ends. Signals become a value that main waits for, and a gate knows when the last
// request is done.

#include <cstdint>
#include <string>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"

namespace cairn {

// Makes SIGTERM and SIGINT return from Wait() instead of ending the process at once, and ignores
// SIGPIPE. main makes it first, before any thread exists, because threads inherit the mask of
// blocked signals.
class ShutdownSignals {
 public:
  ShutdownSignals();
  // Blocks until a signal arrives and returns its number, or returns 0 at `deadline`. After it has
  // returned a signal, a second signal ends the process at once, so that a user can stop a drain
  // that hangs.
  int Wait();
  int WaitUntil(TimePoint deadline);

 private:
  void RestoreDefaults();
};

// Counts the calls inside. After it was closed, no call can enter. Thread-safe.
class Gate {
 public:
  // A call's place inside, which the destructor gives back. Move-only. False: the gate was closed.
  class Pass {
   public:
    Pass() = default;
    explicit Pass(Gate* gate) : gate_(gate) {}
    Pass(Pass&& other) noexcept : gate_(other.gate_) { other.gate_ = nullptr; }
    Pass& operator=(Pass&& other) noexcept;
    ~Pass();
    explicit operator bool() const { return gate_ != nullptr; }

   private:
    Gate* gate_ = nullptr;
  };

  // At most `limit` calls may be inside. 0: no limit.
  explicit Gate(uint64_t limit = 0) : limit_(limit) {}
  enum class Refusal { kNone, kClosed, kFull };
  Pass Enter(Refusal* refusal = nullptr);
  void Close();
  // Waits until no call is inside. False: the deadline came first.
  bool WaitEmpty(TimePoint deadline);
  uint64_t inside() const;
  uint64_t limit() const { return limit_; }

 private:
  void Leave();
  const uint64_t limit_;
  mutable Mutex mu_;
  CondVar empty_;
  uint64_t inside_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace cairn
