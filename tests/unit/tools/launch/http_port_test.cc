#include "tools/cairn/launch/http_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace cairn::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A machine on which somebody may take a port between the look at it and the router's start.
struct Machine {
  bool taken = false;
  bool somebody_comes = false;  // When the router starts.
  Status fails = OkStatus();    // The router's start, whatever the port.
  bool ends = true;             // A router that fails.
  std::vector<std::string> starts = {};
  int forgotten = 0;

  HttpPortActions Actions() {
    return {.check_free =
                [this](const std::string& address) {
                  return taken ? Errorf(StatusCode::kFailedPrecondition, "{} is taken", address)
                               : OkStatus();
                },
            .start =
                [this](const std::string& address) {
                  starts.push_back(address);
                  if (!fails.ok()) return fails;
                  taken = taken || somebody_comes;
                  return taken && address != kAnyHttp
                             ? Errorf(StatusCode::kUnavailable, "router: ended at start")
                             : OkStatus();
                },
            .forget_ended =
                [this] {
                  forgotten += ends ? 1 : 0;
                  return ends;
                }};
  }
};

TEST(HttpPortTest, AFreeDefaultPortIsUsed) {
  Machine machine;
  EXPECT_TRUE(StartAtDefaultPort(machine.Actions()).ok());
  EXPECT_THAT(machine.starts, ElementsAre(kDefaultHttp));
}

TEST(HttpPortTest, ATakenDefaultPortIsLeftAlone) {
  Machine machine{.taken = true};
  EXPECT_TRUE(StartAtDefaultPort(machine.Actions()).ok());
  EXPECT_THAT(machine.starts, ElementsAre(kAnyHttp));
}

TEST(HttpPortTest, SomebodyWhoTakesTheDefaultPortMeanwhileCostsASecondStart) {
  Machine machine{.somebody_comes = true};
  EXPECT_TRUE(StartAtDefaultPort(machine.Actions()).ok());
  EXPECT_THAT(machine.starts, ElementsAre(kDefaultHttp, kAnyHttp));
  EXPECT_EQ(machine.forgotten, 1);
}

TEST(HttpPortTest, ARouterThatEndsForAnotherReasonIsNotStartedAgain) {
  Machine machine{.fails = Errorf(StatusCode::kUnavailable, "no such setting")};
  EXPECT_THAT(Message(StartAtDefaultPort(machine.Actions())), HasSubstr("no such setting"));
  EXPECT_THAT(machine.starts, ElementsAre(kDefaultHttp));
}

// It listens itself, so the port is taken: the reason is another one.
TEST(HttpPortTest, ARouterThatRunsIsNeitherForgottenNorStartedAgain) {
  Machine machine{.fails = Errorf(StatusCode::kUnavailable, "worker-1: ended"), .ends = false};
  HttpPortActions actions = machine.Actions();
  EXPECT_THAT(Message(StartAtDefaultPort(actions)), HasSubstr("worker-1: ended"));
  EXPECT_THAT(machine.starts, ElementsAre(kDefaultHttp));
}

TEST(HttpPortTest, AGivenPortThatIsTakenIsAnErrorThatNamesTheFlag) {
  Machine machine{.taken = true};
  const Status taken = StartAtGivenPort("127.0.0.1:8080", machine.Actions());
  EXPECT_EQ(taken.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(taken), HasSubstr("--http: 127.0.0.1:8080 is taken"));
  EXPECT_THAT(machine.starts, IsEmpty());
}

TEST(HttpPortTest, SoIsAGivenPortThatSomebodyTakesMeanwhile) {
  Machine machine{.somebody_comes = true};
  EXPECT_THAT(Message(StartAtGivenPort("127.0.0.1:8080", machine.Actions())),
              HasSubstr("--http: 127.0.0.1:8080 is taken"));
  EXPECT_THAT(machine.starts, ElementsAre("127.0.0.1:8080"));
}

}  // namespace
}  // namespace cairn::cli
