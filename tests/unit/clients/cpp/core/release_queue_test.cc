#include "clients/cpp/src/core/release_queue.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cairn::client {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

class FakeSender final : public ReleaseSender {
 public:
  void Send(ReleaseBatch batch) override { sent.push_back(std::move(batch)); }
  bool Answered() override { return std::exchange(answered, false); }
  std::vector<ReleaseBatch> sent;
  bool answered = false;
};

class ReleaseQueueTest : public ::testing::Test {
 protected:
  // The call under way is over.
  void Answer() {
    sender_.answered = true;
    queue_.Look();
  }
  FakeSender sender_;
  ReleaseQueue queue_{&sender_};
};

TEST_F(ReleaseQueueTest, WhatComesDuringACallGoesTogetherInTheNext) {
  queue_.ReleaseLease("s", 1);
  ASSERT_THAT(sender_.sent, SizeIs(1));
  EXPECT_THAT(sender_.sent[0].ids, ElementsAre(1u));
  queue_.ReleaseLease("s", 2);
  queue_.ReleaseLease("s", 3);
  queue_.Look();
  EXPECT_THAT(sender_.sent, SizeIs(1)) << "one call at a time";
  Answer();
  ASSERT_THAT(sender_.sent, SizeIs(2));
  EXPECT_EQ(sender_.sent[1].session, "s");
  EXPECT_THAT(sender_.sent[1].ids, ElementsAre(2u, 3u));
  Answer();
  EXPECT_THAT(sender_.sent, SizeIs(2)) << "nothing waits";
  queue_.ReleaseLease("s", 4);
  EXPECT_THAT(sender_.sent, SizeIs(3));
}

TEST_F(ReleaseQueueTest, LeasesAndReservationsGoInCallsOfTheirOwn) {
  const uint64_t reservations[] = {7, 8};
  queue_.ReleaseLease("s", 1);
  queue_.AbortReservations("s", reservations);
  queue_.ReleaseLease("s", 2);
  Answer();
  Answer();
  ASSERT_THAT(sender_.sent, SizeIs(3));
  EXPECT_EQ(sender_.sent[1].kind, ReleaseBatch::Kind::kLeases);
  EXPECT_THAT(sender_.sent[1].ids, ElementsAre(2u));
  EXPECT_EQ(sender_.sent[2].kind, ReleaseBatch::Kind::kReservations);
  EXPECT_THAT(sender_.sent[2].ids, ElementsAre(7u, 8u));
}

TEST_F(ReleaseQueueTest, WhatWaitsForASessionThatEndedIsForgotten) {
  queue_.ReleaseLease("old", 1);
  queue_.ReleaseLease("old", 2);
  queue_.ReleaseLease("new", 3);
  Answer();
  ASSERT_THAT(sender_.sent, SizeIs(2));
  EXPECT_EQ(sender_.sent[1].session, "new");
  EXPECT_THAT(sender_.sent[1].ids, ElementsAre(3u));
}

TEST_F(ReleaseQueueTest, MoreThanItHoldsIsLeftToExpire) {
  queue_.ReleaseLease("s", 0);
  for (uint64_t id = 1; id <= ReleaseQueue::kCapacity + 5; ++id) queue_.ReleaseLease("s", id);
  EXPECT_EQ(queue_.dropped(), 5u);
  Answer();
  ASSERT_THAT(sender_.sent, SizeIs(2));
  EXPECT_THAT(sender_.sent[1].ids, SizeIs(ReleaseQueue::kCapacity));
}

}  // namespace
}  // namespace cairn::client
