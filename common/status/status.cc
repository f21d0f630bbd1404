#include "cairn/common/status.h"

#include <poll.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace cairn {

Status Annotate(const Status& status, const std::string& context) {
  if (status.ok()) return status;
  return Status(status.code(), context + ": " + Message(status));
}

namespace internal {
namespace {

std::atomic<void (*)()> g_before_abort{nullptr};
constexpr int kPatienceMs = 500;  // With a reader of stderr that reads nothing.

}  // namespace

void SetBeforeAbort(void (*hook)()) { g_before_abort = hook; }

void CheckFailed(const char* condition, const char* file, int line) {
  if (void (*const hook)() = g_before_abort.exchange(nullptr)) hook();
  pollfd out{fileno(stderr), POLLOUT, 0};
  if (poll(&out, 1, kPatienceMs) > 0) {
    std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, condition);
  }
  std::abort();
}
}  // namespace internal

}  // namespace cairn
