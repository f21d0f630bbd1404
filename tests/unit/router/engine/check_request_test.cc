#include "services/router/engine/check_request.h"

#include <gtest/gtest.h>

#include <cmath>

namespace cairn::router {
namespace {

std::string FieldAtFault(const GenerateRequest& request) {
  const auto error = CheckRequest(request, FakeClock().Now());
  if (!error) return "";
  EXPECT_EQ(error->status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(Message(error->status).find("'" + error->field + "'"), std::string::npos)
      << error->status;
  return error->field;
}

TEST(CheckRequestTest, NamesTheFieldAtFault) {
  EXPECT_EQ(FieldAtFault({}), "");
  EXPECT_EQ(FieldAtFault({.temperature = -0.1}), "temperature");
  EXPECT_EQ(FieldAtFault({.temperature = std::nan("")}), "temperature");
  EXPECT_EQ(FieldAtFault({.temperature = 11}), "temperature");
  EXPECT_EQ(FieldAtFault({.top_p = 1.5}), "top_p");
  EXPECT_EQ(FieldAtFault({.max_tokens = 0}), "max_tokens");
  EXPECT_EQ(FieldAtFault({.stop = std::vector<std::string>(17, "a")}), "stop");
  EXPECT_EQ(FieldAtFault({.stop = {""}}), "stop");
  EXPECT_EQ(FieldAtFault({.stop = {"\xff"}}), "stop");
  EXPECT_EQ(FieldAtFault({.stop = {std::string(257, 'a')}}), "stop");
  EXPECT_EQ(FieldAtFault({.priority = 11}), "priority");
  EXPECT_EQ(FieldAtFault({.priority = -11}), "priority");
  EXPECT_EQ(FieldAtFault({.tenant = "two words"}), "tenant");
  EXPECT_EQ(FieldAtFault({.tenant = std::string(129, 'a')}), "tenant");
  EXPECT_EQ(FieldAtFault({.deadline = FakeClock().Now()}), "deadline");
  EXPECT_EQ(FieldAtFault(
                {.temperature = 10, .top_p = 1, .stop = {"a"}, .priority = -10, .tenant = "one"}),
            "");
}

}  // namespace
}  // namespace cairn::router
