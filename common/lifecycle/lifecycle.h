#pragma once
// How a process ends: signals become a value that main waits for; a gate knows when the last
// request is done.

#include <cstdint>
#include <string>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"

namespace cairn {

// Turns SIGTERM and SIGINT into Wait() instead of sudden death, and ignores SIGPIPE. Made first
// thing in main, before any thread: threads inherit the blocked mask.
class ShutdownSignals {
 public:
  ShutdownSignals();
  // Blocks until a signal arrives (its number), or until `deadline` (0). After it has returned a
  // signal, a second one ends the process at once, so that a hanging drain can be cut short.
  int Wait();
  int WaitUntil(TimePoint deadline);

 private:
  void RestoreDefaults();
};

// Counts who is inside; once closed, nobody enters. Thread-safe.
class Gate {
 public:
  // Leaves in its destructor. Move-only; false when the gate was closed.
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

  // At most `limit` inside; 0: any number.
  explicit Gate(uint64_t limit = 0) : limit_(limit) {}
  enum class Refusal { kNone, kClosed, kFull };
  Pass Enter(Refusal* refusal = nullptr);
  void Close();
  // True when nobody is inside; false when the deadline came first.
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
