#include "common/lifecycle/lifecycle.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

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

void ShutdownSignals::Request() { kill(getpid(), SIGTERM); }

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
    if (gate_ != nullptr) gate_->Leave(party_);
    gate_ = std::exchange(other.gate_, nullptr);
    party_ = std::exchange(other.party_, nullptr);
  }
  return *this;
}

Gate::Pass::~Pass() {
  if (gate_ != nullptr) gate_->Leave(party_);
}

Gate::Pass Gate::Enter(std::string_view name, Refusal* refusal) {
  MutexLock lock(mu_);
  Refusal why = Refusal::kNone;
  Party* party = nullptr;
  if (closed_) {
    why = Refusal::kClosed;
  } else if (limit_ != 0) {
    if (inside_ >= limit_) {
      why = Refusal::kFull;
    } else if (!name.empty()) {
      const auto it = parties_.find(name);
      if (it == parties_.end()) {
        const auto made = parties_.try_emplace(std::string(name)).first;
        made->second.name = made->first;
        party = &made->second;
      } else {
        party = &it->second;
        const uint64_t free = limit_ - inside_;
        if (party->inside > free && party->inside >= kSmallShare) why = Refusal::kShare;
      }
    }
  }
  if (refusal != nullptr) *refusal = why;
  if (why != Refusal::kNone) return Pass();
  ++inside_;
  if (party != nullptr) ++party->inside;
  return Pass(this, party);
}

void Gate::Leave(Party* party) {
  // Notified under the lock: a waiter that destroys the gate cannot run before we are done with it.
  MutexLock lock(mu_);
  if (party != nullptr && --party->inside == 0) parties_.erase(parties_.find(party->name));
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
