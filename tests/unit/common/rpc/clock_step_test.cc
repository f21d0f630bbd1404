#include "common/rpc/clock_step.h"

#include <gtest/gtest.h>

#include "common/rpc/channel.h"

namespace cairn::rpc {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Both clocks, which the test moves.
struct Clocks {
  TimePoint steady{seconds(1000)};
  ClockStep::WallTime wall{seconds(1'700'000'000)};
  void Pass(Duration time) {
    steady += time;
    wall += std::chrono::duration_cast<ClockStep::WallTime::duration>(time);
  }
};

TEST(ClockStepTest, TimeThatPassesIsNoStep) {
  Clocks clocks;
  ClockStep step;
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(step.WentBack(clocks.steady, clocks.wall));
    clocks.Pass(milliseconds(100));
  }
}

TEST(ClockStepTest, AStepBackIsSeenOnce) {
  Clocks clocks;
  ClockStep step;
  EXPECT_FALSE(step.WentBack(clocks.steady, clocks.wall));
  clocks.Pass(milliseconds(100));
  clocks.wall -= hours(1);
  EXPECT_TRUE(step.WentBack(clocks.steady, clocks.wall));
  clocks.Pass(milliseconds(100));
  EXPECT_FALSE(step.WentBack(clocks.steady, clocks.wall));
}

TEST(ClockStepTest, AStepForwardDelaysNothing) {
  Clocks clocks;
  ClockStep step;
  EXPECT_FALSE(step.WentBack(clocks.steady, clocks.wall));
  clocks.wall += hours(1);
  EXPECT_FALSE(step.WentBack(clocks.steady, clocks.wall));
  // The way back is one.
  clocks.wall -= hours(1);
  EXPECT_TRUE(step.WentBack(clocks.steady, clocks.wall));
}

TEST(ClockStepTest, SlewingIsNoStep) {
  Clocks clocks;
  ClockStep step;
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(step.WentBack(clocks.steady, clocks.wall));
    clocks.Pass(milliseconds(100));
    clocks.wall -= std::chrono::microseconds(50);
  }
}

TEST(CallDeadlineTest, IsOfTheClockThatNobodySets) {
  const TimePoint at = SteadyClock::Get().Now() + seconds(10);
  const gpr_timespec deadline = CallDeadline(at);
  EXPECT_EQ(deadline.clock_type, GPR_CLOCK_MONOTONIC);
  EXPECT_EQ(deadline.tv_sec, std::chrono::duration_cast<seconds>(at.time_since_epoch()).count());
  EXPECT_EQ(gpr_time_cmp(CallDeadline(TimePoint::max()), gpr_inf_future(GPR_CLOCK_MONOTONIC)), 0);
  EXPECT_LT(gpr_time_cmp(CallDeadline(TimePoint::min()), gpr_now(GPR_CLOCK_MONOTONIC)), 0);
}

}  // namespace
}  // namespace cairn::rpc
