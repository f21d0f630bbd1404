#include "common/lifecycle/lifecycle.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>

namespace cairn {
namespace {

sigset_t ShutdownSet() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

ShutdownSignals::ShutdownSignals() {
  const sigset_t set = ShutdownSet();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

void ShutdownSignals::RestoreDefaults() {
  const sigset_t set = ShutdownSet();
  signal(SIGTERM, SIG_DFL);
  signal(SIGINT, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

int ShutdownSignals::Wait() {
  const sigset_t set = ShutdownSet();
  int signal_number = 0;
  while (sigwait(&set, &signal_number) != 0) {
  }
  RestoreDefaults();
  return signal_number;
}

int ShutdownSignals::WaitUntil(TimePoint deadline) {
  const sigset_t set = ShutdownSet();
  for (;;) {
    const int64_t left_ns =
        std::max<int64_t>(0, (deadline - std::chrono::steady_clock::now()).count());
    const timespec left{left_ns / 1'000'000'000, left_ns % 1'000'000'000};
    const int signal_number = sigtimedwait(&set, nullptr, &left);
    if (signal_number > 0) {
      RestoreDefaults();
      return signal_number;
    }
    if (left_ns == 0) return 0;
  }
}

Gate::Pass& Gate::Pass::operator=(Pass&& other) noexcept {
  if (this != &other) {
    if (gate_ != nullptr) gate_->Leave();
    gate_ = other.gate_;
    other.gate_ = nullptr;
  }
  return *this;
}

Gate::Pass::~Pass() {
  if (gate_ != nullptr) gate_->Leave();
}

Gate::Pass Gate::Enter(Refusal* refusal) {
  MutexLock lock(mu_);
  const Refusal why = closed_                            ? Refusal::kClosed
                      : limit_ != 0 && inside_ >= limit_ ? Refusal::kFull
                                                         : Refusal::kNone;
  if (refusal != nullptr) *refusal = why;
  if (why != Refusal::kNone) return Pass();
  ++inside_;
  return Pass(this);
}

void Gate::Leave() {
  // Notified under the lock: a waiter that destroys the gate cannot run before we are done with it.
  MutexLock lock(mu_);
  if (--inside_ == 0) empty_.NotifyAll();
}

void Gate::Close() {
  MutexLock lock(mu_);
  closed_ = true;
}

bool Gate::WaitEmpty(TimePoint deadline) {
  MutexLock lock(mu_);
  return empty_.WaitUntil(mu_, deadline,
                          [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return inside_ == 0; });
}

uint64_t Gate::inside() const {
  MutexLock lock(mu_);
  return inside_;
}

}  // namespace cairn
