#include "common/http/response_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace cairn::http {
namespace {

using State = ResponseParser::State;
using ::testing::HasSubstr;

std::string FeedAll(ResponseParser& parser, const std::string& text, size_t piece) {
  std::string waiting;
  for (size_t at = 0; at < text.size(); at += piece) {
    waiting += text.substr(at, piece);
    waiting.erase(0, parser.Feed(waiting));
  }
  return waiting;
}

std::string ErrorOf(const std::string& text) {
  ResponseParser parser(1024, 1000);
  FeedAll(parser, text, text.size());
  parser.FeedEnd();
  return parser.state() == State::kFailed ? parser.error() : "";
}

TEST(ResponseParserTest, ReadsAnAnswerHoweverItIsCut) {
  const std::string text =
      "HTTP/1.1 100 Continue\r\n\r\n"
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
      "5\r\nhello\r\n6;x=y\r\n there\r\n0\r\nTrailer: x\r\n\r\n"
      "HTTP/1.1 200";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    ResponseParser parser(1024, 1000);
    const std::string rest = FeedAll(parser, text, piece);
    ASSERT_EQ(parser.state(), State::kDone) << piece << parser.error();
    EXPECT_EQ(rest, "HTTP/1.1 200");
    const ResponseHead head = parser.TakeHead();
    EXPECT_EQ(head.status, 200);
    ASSERT_NE(head.Find("content-type"), nullptr);
    EXPECT_EQ(*head.Find("content-type"), "text/event-stream");
    EXPECT_EQ(head.Find("trailer"), nullptr);
    EXPECT_TRUE(parser.keep_alive());
    EXPECT_EQ(parser.TakeBody(), "hello there");
  }
}

TEST(ResponseParserTest, GivesTheBodyAsItComes) {
  ResponseParser parser(1024, 0);
  parser.Feed("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhel");
  EXPECT_EQ(parser.state(), State::kBody);
  EXPECT_EQ(parser.TakeBody(), "hel");
  parser.Feed("lo");
  EXPECT_EQ(parser.TakeBody(), "lo");
}

TEST(ResponseParserTest, TheEndOfTheConnectionEndsABodyWithoutLength) {
  ResponseParser parser(1024, 1000);
  parser.Feed("HTTP/1.1 200 OK\r\n\r\nall");
  EXPECT_EQ(parser.state(), State::kBody);
  parser.FeedEnd();
  EXPECT_EQ(parser.state(), State::kDone);
  EXPECT_EQ(parser.TakeBody(), "all");
  EXPECT_FALSE(parser.keep_alive());
}

TEST(ResponseParserTest, RefusesWhatIsNoAnswerOrTooLarge) {
  EXPECT_THAT(ErrorOf("hello\r\n\r\n"), HasSubstr("not HTTP"));
  EXPECT_THAT(ErrorOf("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"), HasSubstr("middle"));
  EXPECT_THAT(ErrorOf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"),
              HasSubstr("middle"));
  EXPECT_THAT(ErrorOf("HTTP/1.1 200 OK\r\nX: " + std::string(2000, 'x')), HasSubstr("1024"));
  EXPECT_THAT(ErrorOf("HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n" + std::string(1001, 'x')),
              HasSubstr("1000"));
  EXPECT_THAT(ErrorOf("HTTP/1.1 200 OK\r\n\r\n" + std::string(1001, 'x')), HasSubstr("1000"));
  EXPECT_THAT(ErrorOf("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n"),
              HasSubstr("Transfer-Encoding"));
  EXPECT_THAT(ErrorOf("HTTP/1.1 101 Switching Protocols\r\n\r\n"), HasSubstr("status"));
  EXPECT_THAT(
      ErrorOf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;" + std::string(2000, 'x')),
      HasSubstr("chunks"));
  std::string announcements;
  for (int i = 0; i < 10; ++i) announcements += "HTTP/1.1 102 Processing\r\n\r\n";
  EXPECT_THAT(ErrorOf(announcements), HasSubstr("1xx"));
  std::string headers = "HTTP/1.1 200 OK\r\n";
  for (size_t i = 0; i <= ResponseParser::kMaxHeaders; ++i) headers += "A: b\r\n";
  EXPECT_THAT(ErrorOf(headers + "\r\n"), HasSubstr("too many headers"));
}

}  // namespace
}  // namespace cairn::http
