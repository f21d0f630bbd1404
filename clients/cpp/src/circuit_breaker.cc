#include "clients/cpp/src/circuit_breaker.h"

#include <algorithm>

namespace cairn::client {

bool CountsAsFailure(StatusCode code) {
  switch (code) {
    case StatusCode::kUnavailable:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kInternal:
    case StatusCode::kUnknown:
      return true;
    default:
      return false;
  }
}

CircuitBreaker::CircuitBreaker(const Options& options, const Clock* clock)
    : options_(options), clock_(clock), backoff_(options.first_backoff), random_(options.seed) {}

CircuitBreaker::Permit CircuitBreaker::Ask() {
  MutexLock lock(mu_);
  if (state_ == BreakerState::kOpen && clock_->Now() >= retry_at_) {
    state_ = BreakerState::kHalfOpen;
    ++generation_;
    probing_ = false;
  }
  if (state_ == BreakerState::kOpen || (state_ == BreakerState::kHalfOpen && probing_)) {
    ++rejected_;
    return Permit();
  }
  probing_ = state_ == BreakerState::kHalfOpen;
  return Permit(this, generation_);
}

void CircuitBreaker::Reset() {
  MutexLock lock(mu_);
  if (state_ != BreakerState::kClosed) {
    state_ = BreakerState::kClosed;
    ++generation_;
  }
  failures_ = 0;
  probing_ = false;
  backoff_ = options_.first_backoff;
}

void CircuitBreaker::Permit::End(Outcome outcome) {
  if (CircuitBreaker* breaker = std::exchange(breaker_, nullptr)) {
    breaker->End(generation_, outcome);
  }
}

void CircuitBreaker::End(uint64_t generation, Permit::Outcome outcome) {
  MutexLock lock(mu_);
  if (generation != generation_) return;
  probing_ = false;
  switch (outcome) {
    case Permit::Outcome::kNeither:
      return;
    case Permit::Outcome::kSuccess:
      failures_ = 0;
      backoff_ = options_.first_backoff;
      if (state_ == BreakerState::kHalfOpen) {
        state_ = BreakerState::kClosed;
        ++generation_;
      }
      return;
    case Permit::Outcome::kFailure:
      if (state_ == BreakerState::kHalfOpen) {
        backoff_ = std::min(backoff_ * 2, options_.max_backoff);
        Open();
      } else if (++failures_ >= options_.failures) {
        Open();
      }
      return;
  }
}

void CircuitBreaker::Open() {
  std::uniform_real_distribution<double> stretch(1.0, 1.0 + options_.jitter);
  const auto wait = std::chrono::duration_cast<Duration>(backoff_ * stretch(random_));
  state_ = BreakerState::kOpen;
  ++generation_;
  ++times_opened_;
  failures_ = 0;
  retry_at_ = clock_->Now() + wait;
}

BreakerState CircuitBreaker::state() const {
  MutexLock lock(mu_);
  return state_;
}

uint64_t CircuitBreaker::times_opened() const {
  MutexLock lock(mu_);
  return times_opened_;
}

uint64_t CircuitBreaker::rejected() const {
  MutexLock lock(mu_);
  return rejected_;
}

}  // namespace cairn::client
