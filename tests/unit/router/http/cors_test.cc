#include "services/router/http/cors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "common/status/matchers.h"

namespace cairn::router {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kPage[] = "https://app.example";

// Keeps the answer. Not thread-safe: the tests have one thread.
class KeptAnswer final : public http::Responder {
 public:
  void Send(http::Response response) override { head = std::move(response); }
  void BeginStream(http::Response response) override { head = std::move(response); }
  bool Write(std::string_view) override { return true; }
  void End() override {}
  void OnAbort(std::function<void()>) override {}
  void Abort() override {}

  std::string Header(const std::string& name) const {
    for (const http::Header& header : head->headers) {
      if (http::EqualNames(header.name, name)) return header.value;
    }
    return "";
  }
  std::optional<http::Response> head;
};

// Answers all with 201, and with a stream where the path says so.
class Answering final : public http::Handler {
 public:
  void Handle(http::Request request, std::shared_ptr<http::Responder> responder) override {
    http::Response answer{.status = 201, .headers = {{"X-Own", "1"}}};
    if (request.path == "/stream") return responder->BeginStream(std::move(answer));
    responder->Send(std::move(answer));
  }
  http::Response Refuse(int status, const std::string&) override { return {.status = status}; }
};

class CorsTest : public ::testing::Test {
 protected:
  std::shared_ptr<KeptAnswer> Ask(const std::string& method, const std::string& path,
                                  std::vector<http::Header> headers) {
    CorsHandler handler(origins_, &answering_);
    auto kept = std::make_shared<KeptAnswer>();
    handler.Handle(
        {.method = method, .path = path, .query = {}, .headers = std::move(headers), .body = {}},
        kept);
    return kept;
  }

  std::vector<std::string> origins_ = {kPage, "http://localhost:3000"};
  Answering answering_;
};

TEST_F(CorsTest, AnswersAndStreamsNameThePageThatMayReadThem) {
  for (const char* const path : {"/", "/stream"}) {
    const auto answer = Ask("POST", path, {{"Origin", kPage}});
    EXPECT_EQ(answer->head->status, 201);
    EXPECT_EQ(answer->Header("Access-Control-Allow-Origin"), kPage);
    EXPECT_EQ(answer->Header("Vary"), "Origin");
    EXPECT_EQ(answer->Header("X-Own"), "1");
  }
}

TEST_F(CorsTest, OthersAreServedAndToldNothing) {
  for (const char* const origin :
       {"https://other.example", "null", "https://app.example:8443", ""}) {
    const auto answer = Ask("POST", "/", {{"Origin", origin}});
    EXPECT_EQ(answer->head->status, 201);
    EXPECT_EQ(answer->Header("Access-Control-Allow-Origin"), "");
    EXPECT_EQ(answer->Header("Vary"), "Origin");
  }
}

TEST_F(CorsTest, APreflightIsAnsweredForPagesThatAreAllowed) {
  const std::vector<http::Header> asked = {
      {"Origin", kPage},
      {"Access-Control-Request-Method", "POST"},
      {"Access-Control-Request-Headers", "authorization, x-stainless-os"}};
  const auto answer = Ask("OPTIONS", "/", asked);
  EXPECT_EQ(answer->head->status, 200);
  EXPECT_EQ(answer->Header("Access-Control-Allow-Methods"), "GET, HEAD, POST");
  EXPECT_EQ(answer->Header("Access-Control-Allow-Headers"), "authorization, x-stainless-os");
  // Without the header that makes it a preflight it is any other request.
  EXPECT_EQ(Ask("OPTIONS", "/", {{"Origin", kPage}})->head->status, 201);
  origins_ = {"https://other.example"};
  EXPECT_EQ(Ask("OPTIONS", "/", asked)->head->status, 201);
  origins_ = {"*"};
  EXPECT_EQ(Ask("OPTIONS", "/", asked)->Header("Access-Control-Allow-Origin"), "*");
}

TEST_F(CorsTest, WhatIsNoListOfHeadersIsNotRepeated) {
  for (const std::string& bad : {std::string("a\"b"), std::string("a:b"), std::string(5000, 'a')}) {
    const auto answer = Ask("OPTIONS", "/",
                            {{"Origin", kPage},
                             {"Access-Control-Request-Method", "POST"},
                             {"Access-Control-Request-Headers", bad}});
    EXPECT_EQ(answer->head->status, 200);
    EXPECT_EQ(answer->Header("Access-Control-Allow-Headers"), "");
  }
}

TEST(OriginsTest, AreWrittenAsBrowsersWriteThem) {
  const auto parsed = ParseOrigins(
      {"HTTPS://App.Example:443", "http://localhost:3000", "http://a:80", "https://a:80", "*"},
      "f");
  ASSERT_OK(parsed);
  EXPECT_THAT(*parsed, ElementsAre("https://app.example", "http://localhost:3000", "http://a",
                                   "https://a:80", "*"));
}

TEST(OriginsTest, WhatIsNoneIsNamed) {
  for (const char* const bad : {"", "app.example", "https://", "https://a/", "https://a/b",
                                "ftp://a", "https://a b", "https://u@a", "https://*.example"}) {
    EXPECT_THAT(ParseOrigins({bad}, "http.cors_origins"),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("http.cors_origins"), HasSubstr(bad))));
  }
}

}  // namespace
}  // namespace cairn::router
