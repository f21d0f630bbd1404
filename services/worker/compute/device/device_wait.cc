#include "services/worker/compute/device/device_wait.h"

#include <chrono>
#include <thread>

#include "cairn/common/clock.h"

namespace cairn::worker {
namespace {

constexpr Duration kMostWait = std::chrono::seconds(30);
constexpr int kQuickTries = 200;  // Most waits are shorter than a thread needs to wake up.

}  // namespace

Status Await(const device::Event& event, const char* what) {
  const Clock& clock = SteadyClock::Get();
  const TimePoint begin = clock.Now();
  for (int tries = 0;; ++tries) {
    const Result<bool> happened = event.Query();
    if (!happened.ok()) return Annotate(happened.status(), what);
    if (*happened) return OkStatus();
    if (tries < kQuickTries) {
      std::this_thread::yield();
      continue;
    }
    if (clock.Now() - begin > kMostWait) {
      return Errorf(StatusCode::kDeadlineExceeded, "{}: the device did not end it in 30 s", what);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace cairn::worker
