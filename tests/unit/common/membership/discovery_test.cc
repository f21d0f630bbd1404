#include "common/membership/discovery.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <string>

#include "common/membership/static_discovery.h"
#include "common/status/matchers.h"
#include "tests/support/captured_log.h"

namespace cairn::membership {
namespace {

using cairn::testing::CapturedLog;
using cairn::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ViewTest, IsOrderedAndHasEachAddressOnce) {
  EXPECT_THAT(MakeView({{.address = "b:1"}, {.address = "a:1"}, {.address = "b:1"}}),
              ElementsAre(Member{.address = "a:1"}, Member{.address = "b:1"}));
}

TEST(ViewTest, OfOneIdTheNewestProcessStays) {
  const Member old{.address = "a:1", .id = "n", .epoch = 1, .incarnation = 9};
  const Member restarted{.address = "b:1", .id = "n", .epoch = 2, .incarnation = 3};
  const Member copy{.address = "c:1", .id = "n", .epoch = 2, .incarnation = 4};
  const Member other{.address = "d:1", .id = "m", .epoch = 1};
  EXPECT_THAT(MakeView({old, copy, restarted, other}), ElementsAre(other, copy));
}

TEST(DiscoveryHealthTest, KeepsTheLastAttemptAndTheLastSuccess) {
  const TimePoint began{std::chrono::seconds(5)};
  const Status failed = Errorf(StatusCode::kUnavailable, "no answer");
  DiscoveryHealth health;
  health.Note(OkStatus(), began);
  EXPECT_OK(health.last);
  EXPECT_EQ(health.last_success, began);
  health.Note(failed, began + std::chrono::seconds(1));
  EXPECT_THAT(health.last, StatusIs(StatusCode::kUnavailable, HasSubstr("no answer")));
  EXPECT_EQ(health.last_success, began);
  health.Note(OkStatus(), began + std::chrono::seconds(2));
  EXPECT_OK(health.last);
  EXPECT_EQ(health.last_success, began + std::chrono::seconds(2));
}

TEST(DiscoveryHealthTest, OneLineForATimeWithoutAnswers) {
  const Status failed = Errorf(StatusCode::kUnavailable, "no answer");
  DiscoveryHealth health;
  CapturedLog captured;
  for (int i = 0; i < 3; ++i) health.Note(failed, TimePoint());
  health.Note(OkStatus(), TimePoint());
  health.Note(failed, TimePoint());
  const std::string lines = captured.Take();
  EXPECT_EQ(std::ranges::count(lines, '\n'), 2) << lines;
  EXPECT_THAT(lines, HasSubstr("discovery_failed"));
  EXPECT_THAT(lines, HasSubstr("no answer"));
}

TEST(StaticDiscoveryTest, TheListIsTheView) {
  StaticDiscovery discovery({"b:7072", "[::1]:7072"}, &SteadyClock::Get());
  View view;
  ASSERT_OK(discovery.Start({}, [&](const View& v) { view = v; }));
  EXPECT_THAT(view, ElementsAre(Member{.address = "[::1]:7072"}, Member{.address = "b:7072"}));
  EXPECT_TRUE(discovery.health().complete);
}

TEST(StaticDiscoveryTest, MalformedListsAreRefused) {
  const auto start = [](std::vector<std::string> addresses) {
    StaticDiscovery discovery(std::move(addresses), &SteadyClock::Get());
    View view;
    const Status status = discovery.Start({}, [&](const View& v) { view = v; });
    EXPECT_THAT(view, IsEmpty());
    return status;
  };
  EXPECT_THAT(start({}), StatusIs(StatusCode::kInvalidArgument, HasSubstr("cluster.members")));
  for (const char* const bad : {"", "host", "host:0", "unix:/run/x", "host:70000"}) {
    EXPECT_THAT(start({"ok:1", bad}),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("cluster.members")))
        << bad;
  }
}

}  // namespace
}  // namespace cairn::membership
