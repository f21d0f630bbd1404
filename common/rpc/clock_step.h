#pragma once
// The work that gRPC leaves undone when the time of day is set back.
//
// gRPC 1.51 and the Abseil of the same age wait until a time of day. After the clock went back by
// an hour, the thread of gRPC's timers sleeps for an hour: no deadline of a call ends, nobody
// pings, no channel tries to connect again. (Abseil waits by a clock that nobody sets since
// 2023-08.)

#include <chrono>
#include <optional>

#include "cairn/common/clock.h"

namespace cairn::rpc {

// Tells whether the time of day went back, from looks at both clocks. Thread-compatible.
class ClockStep {
 public:
  using WallTime = std::chrono::system_clock::time_point;
  // Whether the wall clock lost more than `kTolerance` against the steady one since the last look.
  // Slewing, at most 0.05 %, is less.
  bool WentBack(TimePoint steady, WallTime wall);

  static constexpr Duration kTolerance = std::chrono::milliseconds(10);

 private:
  std::optional<Duration> ahead_;  // How far the wall clock was ahead when it was last read.
};

// From now on a thread looks at the clocks ten times a second, and wakes gRPC's timers when the
// time of day went back, so that they wait for what is really left. Also keeps gRPC initialized.
// Any thread, any number of times: the process has one such thread, until it ends.
void FollowClockSteps();

}  // namespace cairn::rpc
