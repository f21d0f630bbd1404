#pragma once
// When a GenerateRequest ends. Callers, routers and workers write and read it in one way.
//
// The clocks of two machines may differ by hours, so the time that is left counts, and not a time
// of day. A peer of an earlier version writes and reads the time of day alone. So both are written,
// and the time of day is read if the other is missing.

#include <chrono>
#include <optional>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "cairn/v1/worker.pb.h"

namespace cairn::wire {

// `now` and `wall` are the same moment on both clocks. A deadline that has passed becomes the
// shortest time that there is.
void SetDeadline(TimePoint deadline, TimePoint now, std::chrono::system_clock::time_point wall,
                 v1::GenerateRequest* out);
// nullopt: the request has none. INVALID_ARGUMENT: it has only a time of day, and that is over.
Result<std::optional<TimePoint>> DeadlineOf(const v1::GenerateRequest& request, TimePoint now,
                                            std::chrono::system_clock::time_point wall);

}  // namespace cairn::wire
