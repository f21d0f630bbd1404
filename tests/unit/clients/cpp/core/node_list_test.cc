#include "clients/cpp/src/core/node_list.h"

#include "common/status/matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cairn::client {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(NodeListTest, OneAddressIsNotSeveral) {
  for (const std::string text : {"a:7400", "127.0.0.1:1", "[::1]:65535", "unix:/run/c.sock"}) {
    const auto list = ParseNodeList(text);
    ASSERT_OK(list);
    EXPECT_THAT(list->addresses, ElementsAre(text));
    EXPECT_FALSE(list->several());
  }
}

TEST(NodeListTest, SeveralAddressesAndNames) {
  const auto list = ParseNodeList("a:1, b:2,dns:cache.svc:7400,a:1 ,unix:/s");
  ASSERT_OK(list);
  EXPECT_THAT(list->addresses, ElementsAre("a:1", "b:2", "unix:/s"));
  ASSERT_EQ(list->names.size(), 1u);
  EXPECT_EQ(list->names[0].name, "cache.svc");
  EXPECT_EQ(list->names[0].port, 7400);
  EXPECT_TRUE(list->several());
}

TEST(NodeListTest, ANameIsSeveralAddresses) {
  const auto list = ParseNodeList("dns:cache:7400");
  ASSERT_OK(list);
  EXPECT_THAT(list->addresses, IsEmpty());
  EXPECT_TRUE(list->several());
}

TEST(NodeListTest, AMalformedEntryIsNamedWithTheWhole) {
  for (const std::string bad : {"b", ":1", "b:0", "b:65536", "b:1x", "b c:1", "::1:1", "unix:",
                                "dns:b", "dns::1", "dns:b:0", "dns:[::1]:1", "dns:a:b:1", ""}) {
    EXPECT_THAT(ParseNodeList("a:1," + bad + ",c:1"),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("'address'"), HasSubstr("'" + bad + "'"),
                               HasSubstr("a:1,"), HasSubstr("dns:name:port"))))
        << bad;
    EXPECT_THAT(ParseNodeList(bad),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("got '" + bad + "', expected")));
  }
}

}  // namespace
}  // namespace cairn::client
