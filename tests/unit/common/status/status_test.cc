#include "cairn/common/status.h"

#include <memory>

#include "common/status/matchers.h"

namespace cairn {
namespace {

using ::cairn::testing::StatusIs;

TEST(StatusTest, ErrorsFormatTheirMessage) {
  const Status status = InvalidArgument("field '{}': got {}, expected {}", "length", 0, "1 to 5");
  EXPECT_THAT(status,
              StatusIs(StatusCode::kInvalidArgument, "field 'length': got 0, expected 1 to 5"));
  EXPECT_EQ(ToString(status), "INVALID_ARGUMENT: field 'length': got 0, expected 1 to 5");
  EXPECT_EQ(Message(Errorf(StatusCode::kNotFound, "no {}", "such thing")), "no such thing");
}

TEST(StatusTest, AnnotatePrefixesFailuresOnly) {
  EXPECT_OK(Annotate(OkStatus(), "context"));
  EXPECT_THAT(Annotate(Errorf(StatusCode::kDataLoss, "bad"), "block 7"),
              StatusIs(StatusCode::kDataLoss, "block 7: bad"));
}

Status FailWhen(bool fail) {
  return fail ? Errorf(StatusCode::kUnavailable, "failed") : OkStatus();
}
Result<std::unique_ptr<int>> Make(bool fail) {
  CAIRN_RETURN_IF_ERROR(FailWhen(fail));
  return std::make_unique<int>(5);
}
Result<int> Twice(bool first, bool second) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<int> a, Make(first));
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<int> b, Make(second));
  return *a + *b;
}

TEST(StatusTest, MacrosPassErrorsOnAndMoveValues) {
  EXPECT_EQ(*Twice(false, false), 10);
  EXPECT_THAT(Twice(true, false), StatusIs(StatusCode::kUnavailable, "failed"));
  EXPECT_THAT(Twice(false, true), StatusIs(StatusCode::kUnavailable, "failed"));
}

TEST(StatusDeathTest, CheckNamesTheCondition) {
  const int one = 1;
  CAIRN_CHECK(one == 1);
  EXPECT_DEATH(CAIRN_CHECK(one == 2), "status_test.cc:[0-9]+: check failed: one == 2");
}

}  // namespace
}  // namespace cairn
