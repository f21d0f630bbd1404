#include "common/http/request_parser.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>

namespace cairn::http {
namespace {

using State = RequestParser::State;

// Feeds the text in pieces of `piece` bytes. Returns what the parser did not use.
std::string FeedAll(RequestParser& parser, const std::string& text, size_t piece) {
  std::string waiting;
  for (size_t at = 0; at < text.size(); at += piece) {
    waiting += text.substr(at, piece);
    waiting.erase(0, parser.Feed(waiting));
  }
  return waiting;
}

int ErrorOf(const std::string& text) {
  RequestParser parser(1024, 1000);
  FeedAll(parser, text, text.size());
  return parser.state() == State::kFailed ? parser.error() : 0;
}

TEST(RequestParserTest, ReadsARequestHoweverItIsCut) {
  const std::string text =
      "POST /a%20b?x=1 HTTP/1.1\r\nHost: here\r\nX-Two:  words here \r\nContent-Length: 5\r\n\r\n"
      "hello"
      "GET /next";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    RequestParser parser(1024, 1000);
    const std::string rest = FeedAll(parser, text, piece);
    ASSERT_EQ(parser.state(), State::kDone) << piece;
    EXPECT_EQ(rest, "GET /next");
    EXPECT_TRUE(parser.keep_alive());
    const Request request = parser.Take();
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.path, "/a%20b");
    EXPECT_EQ(request.query, "x=1");
    EXPECT_EQ(request.body.text(), "hello");
    ASSERT_NE(request.Find("x-two"), nullptr);
    EXPECT_EQ(*request.Find("x-two"), "words here");
    EXPECT_EQ(request.Find("x-three"), nullptr);
  }
}

TEST(RequestParserTest, ReadsChunksHoweverTheyAreCutAndHidesTheirTrailers) {
  const std::string text =
      "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3;name=value\r\nabc\r\nA\r\n0123456789\r\n0\r\nAuthorization: Bearer x\r\n\r\n";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    RequestParser parser(1024, 1000);
    EXPECT_EQ(FeedAll(parser, text, piece), "");
    ASSERT_EQ(parser.state(), State::kDone) << piece;
    const Request request = parser.Take();
    EXPECT_EQ(request.body.text(), "abc0123456789");
    EXPECT_EQ(request.Find("authorization"), nullptr);
  }
}

TEST(RequestParserTest, TheWholeUrlNamesThePath) {
  for (const auto& [target, path, query] :
       {std::tuple("http://host/a?x=1", "/a", "x=1"), std::tuple("HTTPS://host:8/a", "/a", ""),
        std::tuple("http://host", "/", ""), std::tuple("http://host?x", "/", "x"),
        std::tuple("*", "*", ""), std::tuple("/http://host/a", "/http://host/a", "")}) {
    RequestParser parser(1024, 10);
    parser.Feed(std::string("GET ") + target + " HTTP/1.1\r\nHost: host\r\n\r\n");
    ASSERT_EQ(parser.state(), State::kDone) << target;
    const Request request = parser.Take();
    EXPECT_EQ(request.path, path);
    EXPECT_EQ(request.query, query);
  }
}

TEST(RequestParserTest, LineBreaksBeforeARequestDoNotCount) {
  const std::string text = "\r\n\r\nGET /a HTTP/1.1\r\n\r\n";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    RequestParser parser(1024, 10);
    EXPECT_EQ(FeedAll(parser, text, piece), "");
    ASSERT_EQ(parser.state(), State::kDone) << piece;
    EXPECT_EQ(parser.Take().path, "/a");
  }
  EXPECT_EQ(ErrorOf(std::string(100, '\n')), 400);
}

TEST(RequestParserTest, SaysWhatAClientWantsOfTheConnection) {
  RequestParser closing(1024, 10), old(1024, 10), waiting(1024, 10);
  closing.Feed("GET / HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_FALSE(closing.keep_alive());
  old.Feed("GET / HTTP/1.0\r\n\r\n");
  EXPECT_FALSE(old.keep_alive());
  EXPECT_FALSE(old.is_http_1_1());
  waiting.Feed("POST / HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(waiting.state(), State::kBody);
  EXPECT_TRUE(waiting.expects_continue());
}

TEST(RequestParserTest, RefusesWhatIsNotHttp) {
  EXPECT_EQ(ErrorOf("hello\r\n\r\n"), 400);
  EXPECT_EQ(ErrorOf("GET / HTTP/2.0\r\n\r\n"), 505);
  EXPECT_EQ(ErrorOf("GET / HTTP/1.1\r\nno colon\r\n\r\n"), 400);
  EXPECT_EQ(ErrorOf("GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"), 400);
  EXPECT_EQ(ErrorOf("GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"), 400);
  EXPECT_EQ(ErrorOf("GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"),
            400);
  EXPECT_EQ(ErrorOf("GET / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n"), 501);
  EXPECT_EQ(ErrorOf("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"), 400);
}

TEST(RequestParserTest, RefusesWhatIsTooLarge) {
  EXPECT_EQ(ErrorOf("GET /" + std::string(2000, 'a') + " HTTP/1.1\r\n\r\n"), 431);
  EXPECT_EQ(ErrorOf("GET / HTTP/1.1\r\nX: " + std::string(2000, 'a') + "\r\n\r\n"), 431);
  EXPECT_EQ(ErrorOf("POST / HTTP/1.1\r\nContent-Length: 1001\r\n\r\n"), 413);
  EXPECT_EQ(ErrorOf("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFF\r\n"), 413);
  // A line between chunks that never ends.
  EXPECT_EQ(
      ErrorOf("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;" + std::string(2000, 'a')),
      400);
  std::string many = "GET / HTTP/1.1\r\n";
  for (size_t i = 0; i <= RequestParser::kMaxHeaders; ++i) many += "a:b\r\n";
  EXPECT_EQ(ErrorOf(many + "\r\n"), 431);
}

}  // namespace
}  // namespace cairn::http
