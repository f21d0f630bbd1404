#include "common/rpc/clock_step.h"

#include <grpc/grpc.h>

#include <system_error>

#include "common/concurrency/ticker.h"

// A function of gRPC's timers that has no public name. Later versions need it no more, and may not
// have it: weak.
[[gnu::weak]] void grpc_kick_poller();

namespace cairn::rpc {
namespace {

constexpr Duration kLook = std::chrono::milliseconds(100);

Ticker* StartFollowing() {
  grpc_init();
  if (grpc_kick_poller == nullptr) return nullptr;
  try {
    return new Ticker(kLook, [step = ClockStep()]() mutable {
      if (step.WentBack(SteadyClock::Get().Now(), std::chrono::system_clock::now())) {
        grpc_kick_poller();
      }
    });
  } catch (const std::system_error&) {
    // The system gives no thread. The program that needs more than this one says so.
    return nullptr;
  }
}

}  // namespace

bool ClockStep::WentBack(TimePoint steady, WallTime wall) {
  const Duration ahead =
      std::chrono::duration_cast<Duration>(wall.time_since_epoch()) - steady.time_since_epoch();
  const bool back = ahead_ && ahead + kTolerance < *ahead_;
  ahead_ = ahead;
  return back;
}

void FollowClockSteps() {
  // Never destroyed: gRPC's timers run until the process has ended.
  [[maybe_unused]] static Ticker* const following = StartFollowing();
}

}  // namespace cairn::rpc
