#include "common/membership/etcd/member_record.h"

#include <gmock/gmock.h>

#include "common/status/matchers.h"

namespace cairn::membership {
namespace {

using cairn::testing::StatusIs;
using ::testing::HasSubstr;

TEST(MemberRecordTest, ComesBackAsItWas) {
  const Member member{.address = "[fd00::7]:7072",
                      .id = "node \"7\"",
                      .epoch = ~0ull,
                      .incarnation = 0xfedcba9876543210,
                      .host = "rack3-7",
                      .zone = "b"};
  const auto decoded = DecodeMember(EncodeMember(member));
  ASSERT_OK(decoded);
  EXPECT_EQ(*decoded, member);
}

TEST(MemberRecordTest, TheLastOneSaysThatItsProcessLeaves) {
  const Member member{.address = "a:1", .id = "n", .epoch = 3, .incarnation = 15};
  EXPECT_FALSE(SaysLeaving(EncodeMember(member)));
  const std::string last = EncodeMember(member, /*leaving=*/true);
  EXPECT_TRUE(SaysLeaving(last));
  // Versions that do not know the field read the rest.
  const auto decoded = DecodeMember(last);
  ASSERT_OK(decoded);
  EXPECT_EQ(*decoded, member);
  for (const char* const other : {"", "[]", R"({"leaving":1})", R"({"leaving":"true"})"}) {
    EXPECT_FALSE(SaysLeaving(other)) << other;
  }
}

TEST(MemberRecordTest, UnknownFieldsAreSkippedAndPlacesMayLack) {
  const auto decoded = DecodeMember(
      R"({"address":"a:1","id":"n","epoch":3,"incarnation":"f","colour":{"is":["blue"]}})");
  ASSERT_OK(decoded);
  EXPECT_EQ(*decoded, (Member{.address = "a:1", .id = "n", .epoch = 3, .incarnation = 15}));
}

TEST(MemberRecordTest, MalformedOnesAreRefusedByField) {
  const std::pair<std::string, std::string> bad[] = {
      {"", "JSON object"},
      {"[1]", "JSON object"},
      {R"({"address":"a:1","epoch":3,"incarnation":"f"})", "id"},
      {R"({"address":"a","id":"n","epoch":3,"incarnation":"f"})", "address"},
      {R"({"address":7,"id":"n","epoch":3,"incarnation":"f"})", "address"},
      {R"({"address":"a:1","id":"n","epoch":-3,"incarnation":"f"})", "epoch"},
      {R"({"address":"a:1","id":"n","epoch":3,"incarnation":"xyz"})", "incarnation"},
      {R"({"address":"a:1","id":"n","epoch":3})", "incarnation"},
      {std::string(kMaxMemberRecordBytes + 1, ' '), "4097 bytes"},
      {std::string(4000, '['), "JSON object"},
  };
  for (const auto& [text, field] : bad) {
    EXPECT_THAT(DecodeMember(text), StatusIs(StatusCode::kInvalidArgument, HasSubstr(field)))
        << text;
  }
}

}  // namespace
}  // namespace cairn::membership
