#include <gtest/gtest.h>

#include <thread>

#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"

namespace cairn {
namespace {

using std::chrono::hours;

class CondVarTest : public ::testing::Test {
 protected:
  bool WaitUntil(const Clock& clock, TimePoint deadline) {
    MutexLock lock(mu_);
    return changed_.WaitUntil(mu_, clock, deadline, [&] { return ready_; });
  }
  void MakeReady() {
    MutexLock lock(mu_);
    ready_ = true;
    changed_.NotifyAll();
  }

  FakeClock fake_;
  Mutex mu_;
  CondVar changed_;
  bool ready_ ABSL_GUARDED_BY(mu_) = false;
};

TEST_F(CondVarTest, AWaitEndsWithItsCondition) {
  for (const Clock* clock :
       {static_cast<const Clock*>(&fake_), static_cast<const Clock*>(&SteadyClock::Get())}) {
    std::thread other([&] { MakeReady(); });
    EXPECT_TRUE(WaitUntil(*clock, clock->Now() + hours(1)));
    other.join();
    MutexLock lock(mu_);
    ready_ = false;
  }
}

TEST_F(CondVarTest, AWaitEndsWhenItsClockHasComeToTheDeadline) {
  const TimePoint deadline = fake_.Now() + hours(1);
  std::thread other([&] { fake_.Advance(hours(1)); });
  EXPECT_FALSE(WaitUntil(fake_, deadline));
  other.join();
}

TEST_F(CondVarTest, ADeadlineThatHasPassedIsNotWaitedFor) {
  MutexLock lock(mu_);
  for (const Clock* clock :
       {static_cast<const Clock*>(&fake_), static_cast<const Clock*>(&SteadyClock::Get())}) {
    EXPECT_FALSE(changed_.WaitUntil(mu_, *clock, clock->Now(), [] { return false; }));
    EXPECT_TRUE(changed_.WaitUntil(mu_, *clock, clock->Now(), [] { return true; }));
  }
}

}  // namespace
}  // namespace cairn
