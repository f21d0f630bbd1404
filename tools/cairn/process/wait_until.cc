#include "tools/cairn/process/wait_until.h"

#include "tools/cairn/process/interrupt.h"

namespace cairn::cli {
namespace {

constexpr std::chrono::milliseconds kBetween(20);

}  // namespace

Status WaitUntil(const std::function<Result<bool>()>& done, std::chrono::milliseconds timeout,
                 std::string_view what) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (true) {
    CAIRN_ASSIGN_OR_RETURN(const bool now, done());
    if (now) return OkStatus();
    if (std::chrono::steady_clock::now() > end) {
      return Errorf(StatusCode::kDeadlineExceeded, "{} after {} ms", what, timeout.count());
    }
    if (!PauseUnlessInterrupted(kBetween)) return Errorf(StatusCode::kCancelled, "interrupted");
  }
}

}  // namespace cairn::cli
