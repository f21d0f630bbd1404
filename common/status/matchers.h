#pragma once
// GoogleTest helpers for Status and Result.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "cairn/common/status.h"

namespace cairn::testing {

inline const Status& GetStatus(const Status& status) { return status; }
template <typename T>
const Status& GetStatus(const Result<T>& result) {
  return result.status();
}

MATCHER(IsOk, "is OK") {
  *result_listener << ToString(GetStatus(arg));
  return GetStatus(arg).ok();
}

// StatusIs(StatusCode::kInvalidArgument, HasSubstr("block_tokens"))
MATCHER_P2(StatusIs, code, message_matcher, "") {
  *result_listener << ToString(GetStatus(arg));
  return GetStatus(arg).code() == code &&
         ::testing::ExplainMatchResult(message_matcher, Message(GetStatus(arg)), result_listener);
}

}  // namespace cairn::testing

#define EXPECT_OK(expr) EXPECT_THAT((expr), ::cairn::testing::IsOk())
#define ASSERT_OK(expr) ASSERT_THAT((expr), ::cairn::testing::IsOk())
