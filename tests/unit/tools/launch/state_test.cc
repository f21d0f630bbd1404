#include "tools/cairn/launch/state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/cairn/output/json.h"

namespace cairn::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

LaunchState SomeState() {
  return {.boot_id = "0f8fad5b-d9cb-469f-a165-70867728950e",
          .model = "/models/m.gguf",
          .made_directory = true,
          .processes = {{.role = Role::kNode,
                         .name = "node-1",
                         .identity = {.pid = 1234, .start_ticks = 5678901},
                         .grpc = "127.0.0.1:7400",
                         .admin = "127.0.0.1:7401",
                         .http = ""},
                        {.role = Role::kWorker,
                         .name = "worker-12",
                         .identity = {.pid = 1235, .start_ticks = ~0ull},
                         .grpc = "",
                         .admin = "",
                         .http = ""},
                        {.role = Role::kRouter,
                         .name = "router",
                         .identity = {.pid = 1236, .start_ticks = 0},
                         .grpc = "[::1]:1",
                         .admin = "host.example:65535",
                         .http = "127.0.0.1:8080"}}};
}

Json SomeJson() { return Json::parse(LaunchStateText(SomeState())); }

std::string ErrorOf(const std::string& text) {
  const auto state = ParseLaunchState(text);
  EXPECT_FALSE(state.ok());
  EXPECT_EQ(state.status().code(), StatusCode::kInvalidArgument);
  return Message(state.status());
}

TEST(LaunchStateTest, ComesBackAsItWas) {
  const auto state = ParseLaunchState(LaunchStateText(SomeState()));
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(*state, SomeState());
}

TEST(LaunchStateTest, WhatIsNoObjectIsRefused) {
  for (const char* text : {"", "{", "[]", "null", "3", "{\"version\": 1", "\xff\xfe"}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("JSON object")) << text;
  }
}

TEST(LaunchStateTest, DeepAndLongTextsAreRefused) {
  EXPECT_FALSE(ParseLaunchState(std::string(100000, '[')).ok());
  EXPECT_THAT(ErrorOf(std::string((1 << 20) + 1, ' ')), HasSubstr("bytes"));
}

TEST(LaunchStateTest, EachMissingFieldIsNamed) {
  const Json whole = SomeJson();
  for (const auto& [name, value] : whole.items()) {
    Json json = whole;
    json.erase(name);
    EXPECT_THAT(ErrorOf(json.dump()), HasSubstr(name + ": is missing"));
  }
  for (const auto& [name, value] : whole["processes"][0].items()) {
    Json json = whole;
    json["processes"][1].erase(name);
    EXPECT_THAT(ErrorOf(json.dump()), HasSubstr("processes[1]." + name + ": is missing"));
  }
}

struct BadField {
  const char* pointer;
  Json value;
  const char* names;
};

TEST(LaunchStateTest, EachWrongValueIsNamed) {
  const BadField kBad[] = {
      {"/version", 2, "version"},
      {"/version", "1", "version"},
      {"/boot_id", 7, "boot_id"},
      {"/model", std::string(5000, 'x'), "model"},
      {"/model", "a\x1b[2J", "model"},
      {"/made_directory", 1, "made_directory"},
      {"/processes", Json::object(), "processes"},
      {"/processes/0", "node-1", "processes[0]"},
      {"/processes/0/role", "king", "processes[0].role"},
      {"/processes/0/pid", -1, "processes[0].pid"},
      {"/processes/0/pid", 0, "processes[0].pid"},
      {"/processes/0/pid", 1, "processes[0].pid"},
      {"/processes/0/pid", 1234.5, "processes[0].pid"},
      {"/processes/0/pid", 1ull << 40, "processes[0].pid"},
      {"/processes/0/pid", "1234", "processes[0].pid"},
      {"/processes/0/start_ticks", -3, "processes[0].start_ticks"},
      {"/processes/0/grpc", "127.0.0.1", "processes[0].grpc"},
      {"/processes/0/grpc", ":7400", "processes[0].grpc"},
      {"/processes/0/grpc", "127.0.0.1:", "processes[0].grpc"},
      {"/processes/0/grpc", "127.0.0.1:7x", "processes[0].grpc"},
      {"/processes/0/admin", Json::array(), "processes[0].admin"},
      {"/processes/0/http", "h:123456", "processes[0].http"},
  };
  for (const BadField& bad : kBad) {
    Json json = SomeJson();
    json[Json::json_pointer(bad.pointer)] = bad.value;
    const std::string error = ErrorOf(json.dump());
    EXPECT_THAT(error, HasSubstr(std::string(bad.names) + ": got ")) << bad.pointer;
    EXPECT_LT(error.size(), 300u) << "a message is no place for all of a hostile value";
    EXPECT_THAT(error, Not(HasSubstr("\x1b")));
  }
}

// Names are parts of paths that are removed later.
TEST(LaunchStateTest, NamesThatUpDoesNotGiveAreRefused) {
  for (const char* name : {"", "..", "node", "node-", "node-0", "node-01", "node-1/../../etc",
                           "../node-1", "node-1x", "worker-1", "router", "node-99999", "NODE-1"}) {
    Json json = SomeJson();
    json["processes"][0]["name"] = name;
    EXPECT_THAT(ErrorOf(json.dump()), HasSubstr("processes[0].name")) << name;
  }
}

TEST(LaunchStateTest, AWorkerForPromptsIsAWorker) {
  Json json = SomeJson();
  json["processes"][1]["name"] = "prefill-2";
  EXPECT_TRUE(ParseLaunchState(json.dump()).ok());
  EXPECT_TRUE(IsLaunchName("prefill-2"));
  EXPECT_FALSE(IsLaunchName("prefill-02"));
  json["processes"][0]["name"] = "prefill-3";
  EXPECT_THAT(ErrorOf(json.dump()), HasSubstr("processes[0].name")) << "it is a node";
}

TEST(LaunchStateTest, ANameIsUnique) {
  Json json = SomeJson();
  json["processes"].push_back(json["processes"][0]);
  EXPECT_THAT(ErrorOf(json.dump()), HasSubstr("processes[3].name"));
}

TEST(LaunchStateTest, TooManyProcessesAreRefused) {
  Json json = SomeJson();
  for (int i = 0; i < 2000; ++i) json["processes"].push_back(1);
  EXPECT_THAT(ErrorOf(json.dump()), HasSubstr("a list of at most"));
}

}  // namespace
}  // namespace cairn::cli
