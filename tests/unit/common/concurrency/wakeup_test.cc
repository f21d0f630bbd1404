#include "common/concurrency/wakeup.h"

#include <gtest/gtest.h>

#include <thread>

namespace cairn {
namespace {

TEST(WakeupTest, WhatIsNotifiedBeforeTheWaitIsNotLost) {
  Wakeup wakeup;
  const uint64_t seen = wakeup.Now();
  wakeup.Notify();
  EXPECT_TRUE(wakeup.WaitPast(seen, SteadyClock::Get(), TimePoint::max()));
}

TEST(WakeupTest, AnotherThreadEndsTheWait) {
  Wakeup wakeup;
  const uint64_t seen = wakeup.Now();
  std::thread other([&] { wakeup.Notify(); });
  EXPECT_TRUE(wakeup.WaitPast(seen, SteadyClock::Get(), TimePoint::max()));
  other.join();
}

TEST(WakeupTest, WithoutANotificationTheDeadlineEndsTheWait) {
  Wakeup wakeup;
  FakeClock clock;
  EXPECT_FALSE(wakeup.WaitPast(wakeup.Now(), clock, clock.Now()));
}

}  // namespace
}  // namespace cairn
