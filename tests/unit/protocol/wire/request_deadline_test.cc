// Deadlines between machines whose clocks differ, and between versions.

#include "protocol/wire/request_deadline.h"

#include <gmock/gmock.h>

#include "common/status/matchers.h"

namespace cairn::wire {
namespace {

using cairn::testing::StatusIs;
using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using WallTime = std::chrono::system_clock::time_point;

constexpr TimePoint kSent{seconds(10)};
// The moment at which the request comes, by the receiver's steady clock.
constexpr TimePoint kCame{seconds(77)};
constexpr WallTime kWall{seconds(1'000'000)};

v1::GenerateRequest Sent(Duration left) {
  v1::GenerateRequest request;
  SetDeadline(kSent + left, kSent, kWall, &request);
  return request;
}

// Of a version that knows no time that is left.
v1::GenerateRequest SentByAnEarlierVersion(Duration left) {
  v1::GenerateRequest request = Sent(left);
  request.clear_timeout_ms();
  return request;
}

TEST(RequestDeadlineTest, DoesNotDependOnClocksThatDiffer) {
  for (const auto behind : {hours(-2), hours(0), hours(2)}) {
    const auto deadline = DeadlineOf(Sent(milliseconds(1500)), kCame, kWall + behind);
    ASSERT_OK(deadline);
    EXPECT_EQ(*deadline, kCame + milliseconds(1500)) << behind.count();
  }
}

TEST(RequestDeadlineTest, EarlierReceiversFindATimeOfDay) {
  EXPECT_EQ(Sent(milliseconds(1500)).deadline_unix_ms(), 1'000'001'500);
}

TEST(RequestDeadlineTest, ATimeOfDayCountsIfThereIsNothingElse) {
  const auto request = SentByAnEarlierVersion(milliseconds(1500));
  const auto deadline = DeadlineOf(request, kCame, kWall + milliseconds(500));
  ASSERT_OK(deadline);
  EXPECT_EQ(*deadline, kCame + seconds(1));
  EXPECT_THAT(DeadlineOf(request, kCame, kWall + seconds(2)),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("'deadline_unix_ms': got 1000001500, expected a time after "
                                 "1000002000 (now)")));
}

TEST(RequestDeadlineTest, NoneStaysNone) {
  const auto deadline = DeadlineOf({}, kCame, kWall);
  ASSERT_OK(deadline);
  EXPECT_FALSE(deadline->has_value());
}

TEST(RequestDeadlineTest, OneThatHasPassedIsTheShortestThatThereIs) {
  for (const Duration left : {Duration(0), Duration(seconds(-5))}) {
    EXPECT_EQ(Sent(left).timeout_ms(), 1u);
    EXPECT_EQ(Sent(left).deadline_unix_ms(), 1'000'000'001);
  }
}

TEST(RequestDeadlineTest, MoreThanAWeekIsAWeek) {
  const TimePoint week = kCame + hours(7 * 24);
  EXPECT_EQ(*DeadlineOf(Sent(hours(24 * 365 * 200)), kCame, kWall), week);
  EXPECT_EQ(*DeadlineOf(SentByAnEarlierVersion(hours(24 * 365)), kCame, kWall), week);
  v1::GenerateRequest longest;
  longest.set_timeout_ms(UINT32_MAX);
  EXPECT_EQ(*DeadlineOf(longest, kCame, kWall), week);
}

}  // namespace
}  // namespace cairn::wire
