#include "common/device/event_poller.h"

#include <gmock/gmock.h>

#include "common/status/matchers.h"
#include "tests/support/fake_device/fake_devices.h"

namespace cairn::device {
namespace {

using ::cairn::testing::StatusIs;
using fake::FakeDevices;

class EventPollerTest : public ::testing::Test {
 protected:
  // Watches some work on the stream.
  void Watch(EventPoller* poller, int number) {
    Event event = *device_->NewEvent();
    ASSERT_OK(stream_.Fill("fill", memory_.address(), 1, memory_.bytes()));
    ASSERT_OK(stream_.Record(event));
    poller->Watch(std::move(event), [this, number](Status status) {
      MutexLock lock(mu_);
      done_.push_back(number);
      statuses_.push_back(std::move(status));
      changed_.NotifyAll();
    });
  }

  FakeDevices fake_;
  std::shared_ptr<Device> device_ = fake_.Open();
  DeviceMemory memory_ = *device_->Allocate(64 << 10, false);
  Stream stream_ = *device_->NewStream();
  Mutex mu_;
  CondVar changed_;
  std::vector<int> done_;
  std::vector<Status> statuses_;
};

TEST_F(EventPollerTest, ToldInOrderWhenTheWorkHasHappened) {
  EventPoller poller;
  EXPECT_TRUE(poller.idle());
  Watch(&poller, 1);
  Watch(&poller, 2);
  for (int i = 0; i < 20 && !poller.idle(); ++i) poller.Step();
  EXPECT_THAT(done_, ::testing::ElementsAre(1, 2));
  EXPECT_OK(statuses_[0]);
}

TEST_F(EventPollerTest, ALossIsToldToAll) {
  EventPoller poller;
  Watch(&poller, 1);
  Watch(&poller, 2);
  fake_.control().lose(0);
  EXPECT_EQ(poller.Step(), 2u);
  EXPECT_THAT(statuses_[1], StatusIs(StatusCode::kUnavailable, ::testing::HasSubstr("lost")));
}

TEST_F(EventPollerTest, WhatIsAbandonedIsToldWhy) {
  EventPoller poller;
  Watch(&poller, 1);
  poller.Abandon(Errorf(StatusCode::kCancelled, "the end"));
  EXPECT_THAT(statuses_[0], StatusIs(StatusCode::kCancelled, ::testing::HasSubstr("the end")));
  const Event event = *device_->NewEvent();
  ASSERT_OK(stream_.Record(event));
  ASSERT_OK(event.Synchronize());
}

TEST_F(EventPollerTest, AThreadPollsUntilNothingIsLeftAndWakesAgain) {
  EventPoller poller;
  PollingThread thread(&poller, std::chrono::microseconds(50));
  for (int number = 1; number <= 3; ++number) {
    Watch(&poller, number);
    MutexLock lock(mu_);
    // The analysis does not see that the wait holds the mutex.
    changed_.Wait(mu_, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return done_.size() == static_cast<size_t>(number);
    });
  }
  EXPECT_THAT(done_, ::testing::ElementsAre(1, 2, 3));
}

}  // namespace
}  // namespace cairn::device
