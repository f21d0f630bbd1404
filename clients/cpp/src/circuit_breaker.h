#pragma once
// Keeps a dead or hanging node from costing every request a deadline.

#include <cstdint>
#include <random>
#include <utility>

#include "cairn/client/connect.h"
#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"

namespace cairn::client {

//            failures in a row                back-off passed
//   closed ---------------------> open ------------------------> half-open (one probe at a time)
//      ^                           ^                               |      |
//      |                           +---- probe failed: back-off x 2 +      |
//      +------------------------------------ probe succeeded -------------+
//
// Thread-safe.
class CircuitBreaker {
 public:
  using Options = BreakerOptions;

  // The permission to make one call. The caller tells it how the call ended. If it is dropped
  // without that, the call counts as neither (the caller cancelled).
  class Permit {
   public:
    Permit() = default;
    Permit(Permit&& o) noexcept
        : breaker_(std::exchange(o.breaker_, nullptr)), generation_(o.generation_) {}
    Permit& operator=(Permit&&) = delete;
    ~Permit() { End(Outcome::kNeither); }
    explicit operator bool() const { return breaker_ != nullptr; }
    void Succeeded() { End(Outcome::kSuccess); }
    void Failed() { End(Outcome::kFailure); }

   private:
    friend class CircuitBreaker;
    enum class Outcome { kSuccess, kFailure, kNeither };
    Permit(CircuitBreaker* breaker, uint64_t generation)
        : breaker_(breaker), generation_(generation) {}
    void End(Outcome outcome);
    CircuitBreaker* breaker_ = nullptr;
    uint64_t generation_ = 0;
  };

  // `clock` outlives the breaker, which outlives its permits.
  CircuitBreaker(const Options& options, const Clock* clock);

  // An empty permit while open, and while another probe is under way.
  Permit Ask();
  // Closes the breaker: the node has shown that it is back.
  void Reset();

  BreakerState state() const;
  uint64_t times_opened() const;
  uint64_t rejected() const;

 private:
  void End(uint64_t generation, Permit::Outcome outcome);
  void Open() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  const Clock* const clock_;
  mutable Mutex mu_;
  BreakerState state_ ABSL_GUARDED_BY(mu_) = BreakerState::kClosed;
  // Grows with each change of state, so that the results of calls from before the change no longer
  // count.
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t failures_ ABSL_GUARDED_BY(mu_) = 0;
  bool probing_ ABSL_GUARDED_BY(mu_) = false;
  Duration backoff_ ABSL_GUARDED_BY(mu_);
  TimePoint retry_at_ ABSL_GUARDED_BY(mu_);
  uint64_t times_opened_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t rejected_ ABSL_GUARDED_BY(mu_) = 0;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mu_);
};

// True for the codes that mean that the node is dead or hangs, and not for answers that only refuse
// a call.
bool CountsAsFailure(StatusCode code);

}  // namespace cairn::client
