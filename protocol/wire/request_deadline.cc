#include "protocol/wire/request_deadline.h"

#include <algorithm>

namespace cairn::wire {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;

// Beyond a week a deadline says nothing, and sums of times must not overflow.
constexpr int64_t kMostMs = 7LL * 24 * 3600 * 1000;

int64_t UnixMs(std::chrono::system_clock::time_point wall) {
  return duration_cast<milliseconds>(wall.time_since_epoch()).count();
}

}  // namespace

void SetDeadline(TimePoint deadline, TimePoint now, std::chrono::system_clock::time_point wall,
                 v1::GenerateRequest* out) {
  const int64_t left =
      std::clamp<int64_t>(duration_cast<milliseconds>(deadline - now).count(), 1, kMostMs);
  out->set_timeout_ms(static_cast<uint32_t>(left));
  out->set_deadline_unix_ms(UnixMs(wall) + left);
}

Result<std::optional<TimePoint>> DeadlineOf(const v1::GenerateRequest& request, TimePoint now,
                                            std::chrono::system_clock::time_point wall) {
  if (request.timeout_ms() != 0) {
    const int64_t left = std::min<int64_t>(request.timeout_ms(), kMostMs);
    return std::optional(now + milliseconds(left));
  }
  if (request.deadline_unix_ms() == 0) return std::optional<TimePoint>();
  const int64_t wall_ms = UnixMs(wall);
  if (request.deadline_unix_ms() <= wall_ms) {
    return InvalidArgument("field 'deadline_unix_ms': got {}, expected a time after {} (now)",
                           request.deadline_unix_ms(), wall_ms);
  }
  return std::optional(now + milliseconds(std::min(request.deadline_unix_ms() - wall_ms, kMostMs)));
}

}  // namespace cairn::wire
