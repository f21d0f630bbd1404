#include "cairn/common/clock.h"

#include "common/concurrency/mutex.h"

namespace cairn {

void Clock::Wait(CondVar& changed, Mutex& mu, TimePoint /*deadline*/,
                 const std::function<bool()>& /*ready*/) const
    // clock.h is public and cannot say that the caller holds `mu`.
    ABSL_NO_THREAD_SAFETY_ANALYSIS {
  changed.WaitOnce(mu, std::chrono::steady_clock::now() + std::chrono::milliseconds(1));
}

void SteadyClock::Wait(CondVar& changed, Mutex& mu, TimePoint deadline,
                       const std::function<bool()>& /*ready*/) const
    // As above.
    ABSL_NO_THREAD_SAFETY_ANALYSIS {
  changed.WaitOnce(mu, deadline);
}

}  // namespace cairn
