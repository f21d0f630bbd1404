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

  // The leave to make one call. Tell it how the call ended; dropped without a word it counts as
  // neither (the caller cancelled).
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
  // Closes it: the node showed that it is back.
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
  // Grows with each change of state: what a call from before the change says no longer counts.
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t failures_ ABSL_GUARDED_BY(mu_) = 0;
  bool probing_ ABSL_GUARDED_BY(mu_) = false;
  Duration backoff_ ABSL_GUARDED_BY(mu_);
  TimePoint retry_at_ ABSL_GUARDED_BY(mu_);
  uint64_t times_opened_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t rejected_ ABSL_GUARDED_BY(mu_) = 0;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mu_);
};

// True for the codes that say that the node is dead or hanging, as opposed to an answer that the
// caller does not like.
bool CountsAsFailure(StatusCode code);

}  // namespace cairn::client
