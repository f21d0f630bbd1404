#include "tools/cairn/process/interrupt.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

namespace cairn::cli {
namespace {

std::atomic<bool> interrupted{false};
std::atomic<int> interrupt_fd{-1};
// Used in a signal handler.
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

void OnSignal(int) {
  const int error = errno;
  interrupted.store(true, std::memory_order_relaxed);
  (void)eventfd_write(interrupt_fd.load(std::memory_order_relaxed), 1);
  errno = error;
}

}  // namespace

void CatchInterrupts() {
  if (interrupt_fd.load() < 0) interrupt_fd.store(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  struct sigaction action {};
  action.sa_handler = OnSignal;
  // No SA_RESTART: a read from the keyboard ends.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool Interrupted() { return interrupted.load(std::memory_order_relaxed); }

int InterruptFd() { return interrupt_fd.load(std::memory_order_relaxed); }

bool PauseUnlessInterrupted(std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (!Interrupted()) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    if (left.count() <= 0) return true;
    pollfd signal{InterruptFd(), POLLIN, 0};
    poll(&signal, 1, static_cast<int>(left.count()));
  }
  return false;
}

}  // namespace cairn::cli
