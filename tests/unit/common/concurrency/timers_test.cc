#include "common/concurrency/timers.h"

#include <gmock/gmock.h>

#include <latch>
#include <memory>
#include <vector>

namespace cairn {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;

TEST(TimersTest, TasksRunWhenTheirTimeHasComeEarliestFirst) {
  FakeClock clock;
  Timers timers(&clock);
  std::vector<int> ran;
  const TimePoint now = clock.Now();
  timers.At(now + milliseconds(3), [&] { ran.push_back(3); });
  timers.At(now + milliseconds(1), [&] { ran.push_back(1); });
  timers.At(now + milliseconds(1), [&] { ran.push_back(2); });
  EXPECT_EQ(timers.RunDue(), 0u);
  clock.Advance(milliseconds(1));
  EXPECT_EQ(timers.RunDue(), 2u);
  EXPECT_THAT(ran, ElementsAre(1, 2));
  clock.Advance(milliseconds(10));
  EXPECT_EQ(timers.RunDue(), 1u);
  EXPECT_THAT(ran, ElementsAre(1, 2, 3));
  EXPECT_EQ(timers.pending(), 0u);
}

TEST(TimersTest, ACancelledTaskNeverRunsAndIsDestroyed) {
  FakeClock clock;
  Timers timers(&clock);
  const auto held = std::make_shared<int>();
  const auto id = timers.At(clock.Now(), [held] { FAIL(); });
  EXPECT_TRUE(timers.Cancel(id));
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_FALSE(timers.Cancel(id));
  EXPECT_EQ(timers.RunDue(), 0u);
}

TEST(TimersTest, ATaskMayAddAndCancelOthers) {
  FakeClock clock;
  Timers timers(&clock);
  std::vector<int> ran;
  const auto later = timers.At(clock.Now() + milliseconds(1), [&] { ran.push_back(9); });
  Timers::Id own = 0;
  own = timers.At(clock.Now(), [&] {
    ran.push_back(1);
    EXPECT_FALSE(timers.Cancel(own));
    EXPECT_TRUE(timers.Cancel(later));
    timers.At(clock.Now(), [&] { ran.push_back(2); });
  });
  EXPECT_EQ(timers.RunDue(), 2u);
  EXPECT_THAT(ran, ElementsAre(1, 2));
}

TEST(TimersTest, AThreadRunsThemOnTime) {
  Timers timers(&SteadyClock::Get());
  timers.Start();
  std::latch done(2);
  const TimePoint now = SteadyClock::Get().Now();
  TimePoint ran;
  timers.At(now + std::chrono::hours(1), [] { FAIL(); });
  timers.At(now + milliseconds(20), [&] { done.count_down(); });
  // Earlier than what the thread waits for.
  timers.At(now + milliseconds(2), [&] {
    ran = SteadyClock::Get().Now();
    done.count_down();
  });
  done.wait();
  EXPECT_GE(ran, now + milliseconds(2));
  timers.Stop();
  EXPECT_EQ(timers.pending(), 1u);
}

}  // namespace
}  // namespace cairn
