// The life of a process, with a service that only writes down what happens to it.

#include "common/service/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include "common/config/config.h"
#include "common/log/log.h"
#include "common/metrics/admin_server.h"
#include "tests/support/captured_log.h"

namespace cairn::service {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Duration kTimeout = std::chrono::seconds(60);

// The test's wishes for the service, and the service's observations.
struct Script {
  Status start, drain;
  std::vector<std::string> seen;
  std::string ready_when_starting, ready_when_draining, live_when_stuck;
  std::string admin;
};

class Scripted final : public Service {
 public:
  Scripted(Script* script, metrics::Registry* registry) : script_(*script) {
    script_.seen.push_back("made");
    registry->AddCollector([this](metrics::Sink& sink) {
      sink.Gauge("alive", "This service.", {}, static_cast<double>(ticks_.load()));
    });
  }
  ~Scripted() override {
    // The port is closed before what its scrapes read goes.
    script_.seen.push_back(metrics::HttpGet(script_.admin, "/metrics", kTimeout).ok() ? "scraped"
                                                                                      : "gone");
  }

  Status Start() override {
    script_.seen.push_back("start");
    EXPECT_EQ(ticks_.load(), 0);
    script_.ready_when_starting = Ready();
    return script_.start;
  }
  std::string address() const override {
    // The ready line is next: after it a signal comes. To this thread, which waits for it.
    raise(SIGTERM);
    return "here";
  }
  void Tick() override {
    ticks_.fetch_add(1);
    ticks_.notify_all();
  }
  Duration BusyFor() const override { return busy_for_; }
  Status Drain() override {
    script_.seen.push_back("drain");
    busy_for_ = std::chrono::hours(1);
    script_.live_when_stuck = Message(metrics::HttpGet(script_.admin, "/livez", kTimeout).status());
    busy_for_ = Duration(0);
    const int before = ticks_.load();
    ticks_.wait(before);  // Ticks go on.
    EXPECT_TRUE(metrics::HttpGet(script_.admin, "/livez", kTimeout).ok());
    script_.ready_when_draining = Ready();
    return script_.drain;
  }

 private:
  std::string Ready() {
    return Message(metrics::HttpGet(script_.admin, "/readyz", kTimeout).status());
  }
  Script& script_;
  std::atomic<int> ticks_{0};
  std::atomic<Duration> busy_for_{Duration(0)};
};

// A port that was free a moment ago.
std::string FreeAddress() {
  static metrics::Registry registry;
  static metrics::Health health(&SteadyClock::Get(), kTimeout);
  return (*metrics::AdminServer::Start({.listen = "127.0.0.1:0"}, &registry, &health))->address();
}

class ServiceRunTest : public ::testing::Test {
 protected:
  int Run(const std::vector<std::string>& args = {}) {
    settings_.admin_listen = script_.admin = FreeAddress();
    return service::Run(
        {.name = "scripted",
         .summary = "Writes down what happens.",
         .example = "",
         .starting = "reading the script",
         .settings = &settings_,
         .add_settings =
             [this](config::Schema* schema) { Settings::RegisterLog(&settings_, schema); },
         .make = [this](
                     metrics::Registry* registry,
                     tracing::Tracer*) { return std::make_unique<Scripted>(&script_, registry); }},
        args);
  }

  Script script_;
  Settings settings_;
};

TEST_F(ServiceRunTest, StartsServesDrainsAndEnds) {
  EXPECT_EQ(Run(), 0);
  EXPECT_THAT(script_.seen, ElementsAre("made", "start", "drain", "gone"));
  EXPECT_THAT(script_.ready_when_starting, HasSubstr("reading the script"));
  EXPECT_THAT(script_.ready_when_draining, HasSubstr("draining"));
  EXPECT_THAT(script_.live_when_stuck, HasSubstr("a poller of calls is stuck for 3600 s"));
}

TEST_F(ServiceRunTest, TheLogBeginsWithVersionAndChangedSettings) {
  testing::CapturedLog captured;
  EXPECT_EQ(Run({"--log.format", "json"}), 0);
  const std::string log = captured.Take();
  const std::string first = log.substr(0, log.find('\n'));
  EXPECT_THAT(first, HasSubstr(R"("event":"starting","program":"scripted")"));
  EXPECT_THAT(first, HasSubstr(fmt::format(R"("version":"{}")", config::Version())));
  EXPECT_THAT(first, HasSubstr(R"("settings":"{log.format: json}")"));
  log::Configure({});
}

TEST_F(ServiceRunTest, AFailedStartEndsTheProcessWithoutADrain) {
  script_.start = Errorf(StatusCode::kUnavailable, "the port is taken");
  EXPECT_EQ(Run(), 1);
  EXPECT_THAT(script_.seen, ElementsAre("made", "start", "gone"));
}

TEST_F(ServiceRunTest, SettingsThatOnlyStartCanRefuseEndWithTwo) {
  script_.start = InvalidArgument("model: got 'x', expected a file");
  EXPECT_EQ(Run(), 2);
}

TEST_F(ServiceRunTest, WhatADrainLostIsInTheExitCode) {
  script_.drain = Errorf(StatusCode::kDeadlineExceeded, "1 MiB is not on disk");
  EXPECT_EQ(Run(), 1);
  EXPECT_THAT(script_.seen, ElementsAre("made", "start", "drain", "gone"));
}

TEST_F(ServiceRunTest, MistakesInTheCommandLineMakeNothing) {
  EXPECT_EQ(Run({"--log.level", "loud"}), 2);
  EXPECT_EQ(Run({"helth"}), 2);
  EXPECT_EQ(Run({"health"}), 1);  // Nothing runs there.
  EXPECT_EQ(Run({"--help"}), 0);
  EXPECT_THAT(script_.seen, IsEmpty());
}

}  // namespace
}  // namespace cairn::service
