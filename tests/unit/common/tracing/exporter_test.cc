#include "common/tracing/exporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/status/matchers.h"

namespace cairn::tracing {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

// Calls and timers go where the test sees them.
class FakeClient final : public http::Client {
 public:
  struct Call {
    http::Origin origin;
    http::ClientRequest request;
    std::shared_ptr<http::ResponseObserver> observer;
  };
  struct World {
    std::vector<Call> calls;
    std::vector<std::pair<Duration, std::function<void()>>> timers;
    int answer = 0;  // Not 0: each call is answered at once, with this status.
  };
  explicit FakeClient(World* world) : world_(*world) {}

  std::shared_ptr<http::ClientCall> Send(
      const http::Origin& origin, http::ClientRequest request,
      std::shared_ptr<http::ResponseObserver> observer) override {
    world_.calls.push_back({origin, std::move(request), observer});
    if (world_.answer != 0) {
      observer->OnHead({.status = world_.answer});
      observer->OnEnd();
    }
    return nullptr;
  }
  void After(Duration delay, std::function<void()> run) override {
    world_.timers.emplace_back(delay, std::move(run));
  }

 private:
  World& world_;
};

class ExporterTest : public ::testing::Test {
 protected:
  void Start(size_t most_waiting = 100, size_t most_at_once = 10) {
    exporter_.emplace(
        Exporter::Options{.collector = {{.tls = false, .host = "c", .port = 4318}, "/v1/traces"},
                          .resource = {"cairn-test", "machine/1", "0.1.0"},
                          .headers = {{"X-Key", "k"}},
                          .most_waiting = most_waiting,
                          .most_at_once = most_at_once,
                          .last_words = std::chrono::milliseconds(1)},
        std::make_unique<FakeClient>(&world_));
  }
  void Add(size_t spans, const std::string& name = "a") {
    for (size_t i = 0; i < spans; ++i) {
      const TimePoint begin(std::chrono::seconds(10));
      exporter_->Add({.place = *tracer_.Begin("", true),
                      .kind = SpanKind::kServer,
                      .name = name,
                      .begin = begin,
                      .end = begin + std::chrono::milliseconds(1500),
                      .attributes = {{"key", "value"}}});
    }
  }
  // The next turn.
  void Tick() {
    ASSERT_FALSE(world_.timers.empty());
    const auto run = std::move(world_.timers.front().second);
    world_.timers.erase(world_.timers.begin());
    run();
  }
  void Answer(int status) {
    const auto observer = world_.calls.back().observer;
    observer->OnHead({.status = status});
    observer->OnEnd();
  }
  // The spans of the newest call.
  Json Sent() {
    const Json all = Json::parse(*world_.calls.back().request.body);
    return all["resourceSpans"][0]["scopeSpans"][0]["spans"];
  }

  FakeClient::World world_;
  Tracer tracer_{1, 1, nullptr};
  std::optional<Exporter> exporter_;
};

TEST_F(ExporterTest, ACallHasAllThatWaited) {
  Start();
  Tick();
  EXPECT_TRUE(world_.calls.empty()) << "there is nothing to say";
  Add(3);
  Tick();
  ASSERT_EQ(world_.calls.size(), 1u);
  const http::ClientRequest& request = world_.calls[0].request;
  EXPECT_EQ(request.method, "POST");
  EXPECT_EQ(request.target, "/v1/traces");
  EXPECT_GT(request.max_body_bytes, 0u) << "a collector may answer what it likes";
  EXPECT_EQ(Sent().size(), 3u);
  const Json all = Json::parse(*request.body);
  EXPECT_THAT(all["resourceSpans"][0]["resource"].dump(), HasSubstr("cairn-test"));
  const Json span = Sent()[0];
  EXPECT_EQ(span["traceId"].get<std::string>().size(), 32u);
  EXPECT_EQ(span["spanId"].get<std::string>().size(), 16u);
  EXPECT_FALSE(span.contains("parentSpanId"));
  EXPECT_FALSE(span.contains("status"));
  EXPECT_EQ(span["kind"], 2);
  EXPECT_EQ(span["attributes"][0]["value"]["stringValue"], "value");
  const auto time = [&span](const char* name) { return std::stoll(span[name].get<std::string>()); };
  EXPECT_EQ(time("endTimeUnixNano") - time("startTimeUnixNano"), 1'500'000'000);
  Answer(200);
  EXPECT_EQ(exporter_->GetStats().sent, 3u);
}

TEST_F(ExporterTest, TimesAreThoseOfTheWallClock) {
  Start();
  const TimePoint now = SteadyClock::Get().Now();
  exporter_->Add({.place = *tracer_.Begin("", true), .name = "a", .begin = now, .end = now});
  Tick();
  const auto unix_now = std::chrono::system_clock::now().time_since_epoch();
  const int64_t said = std::stoll(Sent()[0]["endTimeUnixNano"].get<std::string>());
  EXPECT_NEAR(static_cast<double>(said) / 1e9, std::chrono::duration<double>(unix_now).count(), 60);
}

TEST_F(ExporterTest, AFailureAndAParentAreSaid) {
  Start();
  const Place caller = *tracer_.Begin("", true);
  exporter_->Add({.place = tracer_.Below(caller),
                  .name = "a",
                  .begin = TimePoint(),
                  .end = TimePoint(),
                  .error = "UNAVAILABLE: \xff gone"});
  Tick();
  EXPECT_EQ(Sent()[0]["parentSpanId"], Hex(caller.own.span));
  EXPECT_EQ(Sent()[0]["status"]["code"], 2);
  EXPECT_THAT(Sent()[0]["status"]["message"].get<std::string>(), HasSubstr("gone"));
}

TEST_F(ExporterTest, FullCallsFollowEachOther) {
  Start(100, 10);
  Add(25);
  Tick();
  EXPECT_EQ(Sent().size(), 10u);
  Answer(200);
  ASSERT_EQ(world_.calls.size(), 2u);
  EXPECT_EQ(Sent().size(), 10u);
  Answer(200);
  EXPECT_EQ(world_.calls.size(), 2u) << "the rest has time until the next turn";
  Tick();
  EXPECT_EQ(Sent().size(), 5u);
}

TEST_F(ExporterTest, ACollectorThatHangsCostsSpansAlone) {
  Start(20, 10);
  Add(5);
  Tick();
  Add(30);
  EXPECT_EQ(world_.calls.size(), 1u) << "one call at a time";
  EXPECT_TRUE(world_.timers.empty());
  EXPECT_EQ(exporter_->GetStats().dropped, 10u);
  world_.calls[0].observer->OnError(Errorf(StatusCode::kDeadlineExceeded, "silence"));
  EXPECT_EQ(exporter_->GetStats().failed, 5u);
  EXPECT_EQ(world_.calls.size(), 2u) << "a call's worth waits";
  Answer(200);
  EXPECT_EQ(exporter_->GetStats().sent, 10u);
}

TEST_F(ExporterTest, SpansThatTheCollectorRefusesAreNotSentAgain) {
  Start();
  for (const int status : {404, 429, 500, 302}) {
    Add(1);
    Tick();
    Answer(status);
  }
  EXPECT_EQ(exporter_->GetStats().failed, 4u);
  EXPECT_EQ(exporter_->GetStats().sent, 0u);
  EXPECT_EQ(world_.calls.size(), 4u);
}

TEST_F(ExporterTest, NumbersAndTruthsStayWhatTheyAre) {
  Start();
  exporter_->Add({.place = *tracer_.Begin("", true),
                  .name = "a",
                  .begin = TimePoint(),
                  .end = TimePoint(),
                  .attributes = {{"text", "5"},
                                 {"count", int64_t{1} << 60},
                                 {"seconds", 0.5},
                                 {"infinite", std::numeric_limits<double>::infinity()},
                                 {"cached", true}}});
  Tick();
  // Protobuf's JSON has 64-bit numbers as texts, because JavaScript would round them.
  EXPECT_EQ(Sent()[0]["attributes"], Json::parse(R"([
      {"key": "text", "value": {"stringValue": "5"}},
      {"key": "count", "value": {"intValue": "1152921504606846976"}},
      {"key": "seconds", "value": {"doubleValue": 0.5}},
      {"key": "infinite", "value": {"doubleValue": "Infinity"}},
      {"key": "cached", "value": {"boolValue": true}}])"));
}

TEST_F(ExporterTest, LongTextsAreCut) {
  Start();
  exporter_->Add({.place = *tracer_.Begin("", true),
                  .name = std::string(10'000, 'n'),
                  .begin = TimePoint(),
                  .end = TimePoint(),
                  .attributes = {{"worker", std::string(10'000, 'w')}},
                  .error = std::string(10'000, 'e')});
  Tick();
  EXPECT_LT(world_.calls[0].request.body->size(), 2000u);
}

TEST_F(ExporterTest, ItsEndSendsWhatWaits) {
  world_.answer = 200;
  Start(100, 10);
  Add(25);
  exporter_.reset();
  EXPECT_EQ(world_.calls.size(), 3u);
}

TEST_F(ExporterTest, ItsEndDoesNotWaitForACollectorThatHangs) {
  Start();
  Add(25);
  exporter_.reset();
  EXPECT_EQ(world_.calls.size(), 1u);
}

TEST(ParseCollectorTest, AUrlWithOrWithoutAPath) {
  const auto plain = ParseCollector("http://collector:4318", "f");
  ASSERT_OK(plain);
  EXPECT_EQ(plain->origin, (http::Origin{.tls = false, .host = "collector", .port = 4318}));
  EXPECT_EQ(plain->target, "/v1/traces");
  EXPECT_EQ(ParseCollector("http://collector:4318/", "f")->target, "/v1/traces");
  const auto path = ParseCollector("https://[::1]:9/otlp/v1/traces?tenant=a", "f");
  ASSERT_OK(path);
  EXPECT_TRUE(path->origin.tls);
  EXPECT_EQ(path->target, "/otlp/v1/traces?tenant=a");
  for (const char* text : {"collector:4318", "grpc://collector:4317", "http://", "http://a/b c",
                           "http://a/b\r\nX: y", "http://a/b#c", ""}) {
    const auto wrong = ParseCollector(text, "tracing.endpoint");
    EXPECT_FALSE(wrong.ok()) << text;
    EXPECT_THAT(ToString(wrong.status()), HasSubstr("tracing.endpoint")) << text;
  }
}

TEST_F(ExporterTest, HeadersOfAFileGoWithEachCall) {
  const std::string path = ::testing::TempDir() + "headers." + std::to_string(getpid());
  std::ofstream(path) << "\xef\xbb\xbf# A key.\r\nAuthorization: Bearer a:b\r\n\n x-scope:  1 ";
  const auto headers = ReadHeaders(path, "tracing.headers");
  ASSERT_OK(headers);
  ASSERT_EQ(headers->size(), 2u);
  EXPECT_EQ((*headers)[0].name, "Authorization");
  EXPECT_EQ((*headers)[0].value, "Bearer a:b");
  EXPECT_EQ((*headers)[1].name, "x-scope");
  EXPECT_EQ((*headers)[1].value, "1");
  // Secrets are not shown.
  for (const char* wrong : {"secret", "secret:", ": secret", "a b: secret", "a: se\x01cret"}) {
    std::ofstream(path) << "ok: 1\n" << wrong << "\n";
    const Status status = ReadHeaders(path, "tracing.headers").status();
    EXPECT_THAT(status, cairn::testing::StatusIs(StatusCode::kInvalidArgument,
                                                 HasSubstr("tracing.headers: '" + path +
                                                           "' line 2: expected a header")));
    EXPECT_THAT(Message(status), ::testing::Not(HasSubstr("secret")));
  }
  std::filesystem::remove(path);
  EXPECT_THAT(ReadHeaders(path, "tracing.headers"),
              cairn::testing::StatusIs(StatusCode::kFailedPrecondition, HasSubstr(path)));
  EXPECT_EQ(ReadHeaders("", "tracing.headers")->size(), 0u);
  Start();
  Add(1);
  Tick();
  const auto& sent = world_.calls.back().request.headers;
  EXPECT_TRUE(std::ranges::any_of(sent, [](const http::Header& header) {
    return header.name == "X-Key" && header.value == "k";
  }));
}

}  // namespace
}  // namespace cairn::tracing
