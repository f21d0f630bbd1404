#include "services/router/events/event_source.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/status/matchers.h"

namespace cairn::router {
namespace {

using cairn::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(EventSourceTest, ReadsAnEngineWithItsEndpoints) {
  const auto source = ParseEventSource("http://10.0.0.1:8000=tcp://10.0.0.1:5557,tcp://[::1]:5558");
  ASSERT_OK(source);
  EXPECT_EQ(source->worker, "http://10.0.0.1:8000");
  EXPECT_EQ(source->endpoint, "tcp://10.0.0.1:5557");
  EXPECT_EQ(source->replay, "tcp://[::1]:5558");
}

TEST(EventSourceTest, ReplaysMayBeMissing) {
  const auto source = ParseEventSource("https://engine/a?b=c=ipc:///run/engine/events");
  ASSERT_OK(source);
  EXPECT_EQ(source->worker, "https://engine/a?b=c");
  EXPECT_EQ(source->endpoint, "ipc:///run/engine/events");
  EXPECT_EQ(source->replay, "");
}

TEST(EventSourceTest, NamesWhatItCannotUse) {
  const auto error = [](const std::string& text) {
    const auto source = ParseEventSource(text);
    EXPECT_THAT(source, StatusIs(StatusCode::kInvalidArgument, HasSubstr("engines.events: got")));
    return Message(source.status());
  };
  EXPECT_THAT(error("http://a:1"), HasSubstr("'http://a:1', expected URL=ENDPOINT"));
  EXPECT_THAT(error("=tcp://a:1"), HasSubstr("expected URL=ENDPOINT"));
  EXPECT_THAT(error("http://a:1=tcp://a"), HasSubstr("endpoint 'tcp://a'"));
  EXPECT_THAT(error("http://a:1=tcp://a:0"), HasSubstr("endpoint 'tcp://a:0'"));
  EXPECT_THAT(error("http://a:1=tcp://*:5557"), HasSubstr("name the engine's machine"));
  EXPECT_THAT(error("http://a:1=tcp://0.0.0.0:5557"), HasSubstr("name the engine's machine"));
  EXPECT_THAT(error("http://a:1=tcp://a:1,udp://a:1"), HasSubstr("endpoint 'udp://a:1'"));
  EXPECT_THAT(error("http://a:1=tcp://a:1,"), HasSubstr("endpoint ''"));
  EXPECT_THAT(error("http://a:1=tcp://a:1,tcp://a:2,tcp://a:3"), HasSubstr("endpoint"));
  EXPECT_THAT(error("http://a:1=ipc://relative"), HasSubstr("endpoint 'ipc://relative'"));
}

TEST(EventSourceTest, ANameOfEnginesHasAPlaceForTheHost) {
  const auto source = ParseEventSource("dns:http://e:8000=tcp://{host}:5557,tcp://{host}:5558");
  ASSERT_OK(source);
  EXPECT_EQ(source->worker, "dns:http://e:8000");
  for (const char* wrong : {"tcp://e:5557", "tcp://{host}", "tcp://{host}:0", "tcp://x{host}:5557",
                            "tcp://{host}:{host}", "ipc:///{host}"}) {
    EXPECT_THAT(ParseEventSource(fmt::format("dns:http://e:8000={}", wrong)),
                StatusIs(StatusCode::kInvalidArgument,
                         HasSubstr(fmt::format("endpoint '{}' of a name of engines", wrong))));
  }
  EXPECT_THAT(
      ParseEventSource("http://e:8000=tcp://{host}:5557"),
      StatusIs(StatusCode::kInvalidArgument, HasSubstr("{host} stands for the engines of a name")));
  // Two names may have the same ports, a command line cuts theirs too.
  const std::vector<std::string> workers = {"dns:http://a:1", "dns:http://b:1"};
  const auto sources = ParseEventSources({"dns:http://a:1=tcp://{host}:5", "tcp://{host}:6",
                                          "dns:http://b:1=tcp://{host}:5,tcp://{host}:6"},
                                         workers);
  ASSERT_OK(sources);
  EXPECT_EQ((*sources)[0].replay, "tcp://{host}:6");
}

TEST(EventSourceTest, ANameStandsForItsEnginesOfTheMoment) {
  const std::vector<EventSource> sources = {
      {.worker = "http://fixed:1", .endpoint = "tcp://fixed:5"},
      {.worker = "dns:http://e:8000", .endpoint = "tcp://{host}:5", .replay = "tcp://{host}:6"}};
  const std::vector<NamedWorker> workers = {
      {.address = "http://fixed:1", .setting = "http://fixed:1"},
      {.address = "http://10.0.0.1:8000", .setting = "dns:http://e:8000"},
      {.address = "http://[fd00::1]:8000", .setting = "dns:http://e:8000"},
      {.address = "http://10.0.0.9:8000", .setting = "dns:http://without-events:8000"},
      {.address = "http://e-2.e.kv.svc:8000", .setting = "dns:http://e:8000"}};
  const EventSource fixed = sources[0];
  const EventSource first = {.worker = "http://10.0.0.1:8000",
                             .endpoint = "tcp://10.0.0.1:5",
                             .replay = "tcp://10.0.0.1:6"};
  const EventSource second = {.worker = "http://[fd00::1]:8000",
                              .endpoint = "tcp://[fd00::1]:5",
                              .replay = "tcp://[fd00::1]:6"};
  const EventSource third = {.worker = "http://e-2.e.kv.svc:8000",
                             .endpoint = "tcp://e-2.e.kv.svc:5",
                             .replay = "tcp://e-2.e.kv.svc:6"};
  EXPECT_THAT(SourcesOf(sources, workers, 10), ElementsAre(fixed, first, second, third));
  EXPECT_THAT(SourcesOf(sources, workers, 2), ElementsAre(fixed, first, second));
  EXPECT_THAT(SourcesOf(sources, {}, 10), ElementsAre(fixed));
}

TEST(EventSourceTest, ACommandLineCutsAtCommas) {
  const std::vector<std::string> workers = {"http://a:1", "http://b:1"};
  const auto sources =
      ParseEventSources({"http://a:1=tcp://a:5", "tcp://a:6", "http://b:1=tcp://b:5"}, workers);
  ASSERT_OK(sources);
  ASSERT_EQ(sources->size(), 2u);
  EXPECT_EQ((*sources)[0].replay, "tcp://a:6");
  EXPECT_EQ((*sources)[1].replay, "");
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"tcp://a:6"},
                                                {"http://a:1=tcp://a:5", "tcp://a:6", "tcp://a:7"},
                                                {"http://a:1=tcp://a:5", "tcp://a:5"},
                                                {"http://a:1=tcp://a:5", "tcp://a"}}) {
    EXPECT_THAT(ParseEventSources(wrong, workers),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("engines.events: got")));
  }
}

TEST(EventSourceTest, EachEngineAndEachEndpointIsThereOnce) {
  const std::vector<std::string> workers = {"http://a:1", "http://b:1"};
  EXPECT_OK(ParseEventSources({"http://a:1=tcp://a:5", "http://b:1=tcp://b:5,tcp://b:6"}, workers));
  EXPECT_THAT(ParseEventSources({"http://c:1=tcp://c:5"}, workers),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("got the engine 'http://c:1', expected one of those in workers")));
  EXPECT_THAT(
      ParseEventSources({"http://a:1=tcp://a:5", "http://a:1=tcp://a:6"}, workers),
      StatusIs(StatusCode::kInvalidArgument, HasSubstr("got the engine 'http://a:1' twice")));
  EXPECT_THAT(
      ParseEventSources({"http://a:1=tcp://a:5", "http://b:1=tcp://a:5"}, workers),
      StatusIs(StatusCode::kInvalidArgument, HasSubstr("got the endpoint 'tcp://a:5' twice")));
}

}  // namespace
}  // namespace cairn::router
