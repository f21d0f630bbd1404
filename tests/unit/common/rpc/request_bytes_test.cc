#include "common/rpc/request_bytes.h"

#include <gmock/gmock.h>

#include <vector>

#include "common/status/matchers.h"

namespace cairn::rpc {
namespace {

using cairn::testing::StatusIs;
using ::testing::HasSubstr;

TEST(RequestBytesTest, SharesStayWithinTheBoundAndComeBack) {
  RequestBytes bytes(100, "rpc.memory");
  auto first = bytes.Take(50);
  ASSERT_OK(first);
  EXPECT_THAT(bytes.Take(26),
              StatusIs(StatusCode::kResourceExhausted,
                       HasSubstr("a request of 26 bytes would exceed half of what is free, with 50 "
                                 "of 100 bytes")));
  EXPECT_EQ(bytes.refusals(), 1u);
  auto second = bytes.Take(25);
  ASSERT_OK(second);
  RequestBytes::Share moved = *std::move(first);
  EXPECT_EQ(bytes.used(), 75u);
  moved = RequestBytes::Share();
  EXPECT_EQ(bytes.used(), 25u);
}

TEST(RequestBytesTest, WhoeverHoldsMuchLeavesRoomForOthers) {
  RequestBytes bytes(1024, "rpc.memory");
  std::vector<RequestBytes::Share> greedy;
  for (uint64_t size = 512; size > 0; size /= 2) {
    for (auto share = bytes.Take(size); share.ok(); share = bytes.Take(size)) {
      greedy.push_back(*std::move(share));
    }
  }
  // Six requests took 1008 bytes, and the next one still finds some.
  EXPECT_GE(greedy.size(), 6u);
  EXPECT_LT(bytes.used(), 1024u);
}

TEST(RequestBytesTest, OfLargeRequestsThereIsOneAtATime) {
  RequestBytes bytes(100, "rpc.memory");
  {
    const auto large = bytes.Take(1000);
    ASSERT_OK(large);
    // Others go on.
    const auto small = bytes.Take(20);
    ASSERT_OK(small);
    EXPECT_THAT(bytes.Take(51), StatusIs(StatusCode::kResourceExhausted,
                                         HasSubstr("another one above half of 100 bytes")));
    EXPECT_EQ(bytes.refusals(), 1u);
  }
  EXPECT_EQ(bytes.used(), 0u);
  const auto small = bytes.Take(50);
  ASSERT_OK(small);
  EXPECT_OK(bytes.Take(1000));
}

}  // namespace
}  // namespace cairn::rpc
