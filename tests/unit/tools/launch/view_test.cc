#include "tools/cairn/launch/view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/cairn/process/programs.h"

namespace cairn::cli {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

LaunchState WithRouter() {
  return {.processes = {
              {.role = Role::kRouter, .name = "router", .identity = {}, .http = "127.0.0.1:80"}}};
}

TEST(LaunchViewTest, NextStepsAreCommandsThatAShellTakes) {
  const std::string text = NextSteps(WithRouter(), "", "/opt/cairn/bin/cairn");
  EXPECT_THAT(text, HasSubstr("endpoint http://127.0.0.1:80/v1\n"));
  EXPECT_THAT(text, EndsWith("/opt/cairn/bin/cairn top\n/opt/cairn/bin/cairn down\n"));
}

TEST(LaunchViewTest, APortThatIsNotTheDefaultIsSaid) {
  LaunchState state = WithRouter();
  EXPECT_EQ(PortNote(state), "port 8000 is taken, so it serves at http://127.0.0.1:80/v1\n");
  state.processes[0].http = "127.0.0.1:8000";
  EXPECT_EQ(PortNote(state), "");
}

TEST(LaunchViewTest, OddNamesReachTheCommandAsTheyAre) {
  const std::string directory = "it's /all\"$HOME* ";
  const std::string text = NextSteps(WithRouter(), directory, "echo");
  const std::string down = text.substr(text.rfind("echo"));
  EXPECT_EQ(*Capture({"sh", "-c", down}), "down --dir " + directory);
}

}  // namespace
}  // namespace cairn::cli
