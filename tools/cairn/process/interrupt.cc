#include "tools/cairn/process/interrupt.h"

#include <signal.h>

#include <atomic>

namespace cairn::cli {
namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);  // Written from a signal handler.

void OnSignal(int) { interrupted.store(true, std::memory_order_relaxed); }

}  // namespace

void CatchInterrupts() {
  struct sigaction action {};
  action.sa_handler = OnSignal;
  // No SA_RESTART: a read from the keyboard ends.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool Interrupted() { return interrupted.load(std::memory_order_relaxed); }

}  // namespace cairn::cli
