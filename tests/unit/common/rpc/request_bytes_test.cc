#include "common/rpc/request_bytes.h"

#include <gmock/gmock.h>

#include "common/status/matchers.h"

namespace cairn::rpc {
namespace {

using cairn::testing::StatusIs;
using ::testing::HasSubstr;

TEST(RequestBytesTest, SharesStayWithinTheBoundAndComeBack) {
  RequestBytes bytes(100, "rpc.memory");
  auto first = bytes.Take(60);
  ASSERT_OK(first);
  EXPECT_THAT(bytes.Take(41),
              StatusIs(StatusCode::kResourceExhausted,
                       HasSubstr("a request of 41 bytes would exceed 60 of 100 bytes")));
  auto second = bytes.Take(40);
  ASSERT_OK(second);
  RequestBytes::Share moved = *std::move(first);
  EXPECT_EQ(bytes.used(), 100u);
  moved = RequestBytes::Share();
  EXPECT_EQ(bytes.used(), 40u);
}

TEST(RequestBytesTest, ARequestLargerThanTheBoundPassesAlone) {
  RequestBytes bytes(100, "rpc.memory");
  {
    const auto large = bytes.Take(1000);
    ASSERT_OK(large);
    EXPECT_FALSE(bytes.Take(1).ok());
  }
  EXPECT_EQ(bytes.used(), 0u);
  const auto small = bytes.Take(1);
  EXPECT_FALSE(bytes.Take(1000).ok());
}

}  // namespace
}  // namespace cairn::rpc
