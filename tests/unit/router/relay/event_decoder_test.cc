#include "services/router/relay/event_decoder.h"

#include <gtest/gtest.h>

#include "services/router/relay/answer_usage.h"

namespace cairn::router {
namespace {

constexpr size_t kMost = 1000;

struct Read {
  std::string bytes;
  uint32_t tokens = 0;
  int pieces = 0;
};

Read ReadAll(EventDecoder& decoder, const std::string& text, size_t piece) {
  Read read;
  const auto add = [&](const EventDecoder::Events& events) {
    read.bytes += events.bytes;
    read.tokens += events.tokens;
    if (!events.bytes.empty()) ++read.pieces;
  };
  for (size_t at = 0; at < text.size(); at += piece) add(decoder.Feed(text.substr(at, piece)));
  add(decoder.Rest());
  return read;
}

TEST(EventDecoderTest, PassesWholeEventsHoweverTheyAreCut) {
  for (const std::string end : {"\n", "\r\n", "\r"}) {
    const std::string text = ": hello" + end + end + "data: {\"choices\":[{}]}" + end + end +
                             "event: x" + end + "data:{\"choices\":[{}]}" + end + "data: more" +
                             end + end +
                             "data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 3}}" + end +
                             end + "data: [DONE]" + end + end;
    for (size_t piece = 1; piece <= text.size(); ++piece) {
      EventDecoder decoder(kMost);
      const Read read = ReadAll(decoder, text, piece);
      EXPECT_EQ(read.bytes, text) << piece;
      EXPECT_EQ(read.tokens, 2u) << piece;
      EXPECT_TRUE(decoder.done());
      EXPECT_EQ(decoder.usage(), "{\"choices\": [], \"usage\": {\"prompt_tokens\": 3}}");
      EXPECT_FALSE(decoder.failed());
    }
  }
}

TEST(EventDecoderTest, KeepsAnIncompleteEventUntilItIsComplete) {
  EventDecoder decoder(kMost);
  EXPECT_EQ(decoder.Feed("data: a\n\ndata: b").bytes, "data: a\n\n");
  EXPECT_EQ(decoder.Feed("c\n").bytes, "");
  EXPECT_EQ(decoder.Feed("\n").bytes, "data: bc\n\n");
}

TEST(EventDecoderTest, EndsWithAnEventWithoutAnEmptyLine) {
  EventDecoder decoder(kMost);
  EXPECT_EQ(decoder.Feed("data: [DONE]\n").bytes, "");
  EXPECT_EQ(decoder.Rest().bytes, "data: [DONE]\n");
  EXPECT_TRUE(decoder.done());
}

TEST(EventDecoderTest, RefusesAnEventThatIsTooLong) {
  EventDecoder decoder(kMost);
  EXPECT_EQ(decoder.Feed("data: a\n\n" + std::string(kMost, 'x')).bytes, "data: a\n\n");
  EXPECT_FALSE(decoder.failed());
  decoder.Feed("x");
  EXPECT_TRUE(decoder.failed());
  EXPECT_EQ(decoder.Feed("\n\n").bytes, "");
}

TEST(EventDecoderTest, TextOfAnAnswerIsNoUsage) {
  EventDecoder decoder(kMost);
  const auto events = decoder.Feed(
      "data: {\"choices\":[{\"text\":\"\\\"usage\\\": {\\\"prompt_tokens\\\": 9}\"}]}\n\n"
      "data: {\"choices\":[{\"text\":\"x\"}],\"usage\":null}\n\n");
  EXPECT_EQ(events.tokens, 2u);
  EXPECT_EQ(decoder.usage(), "");
}

TEST(AnswerUsageTest, ReadsWhatMakesSense) {
  const auto usage = ReadUsage(
      R"({"id":"x","usage":{"prompt_tokens":10,"completion_tokens":2,
          "prompt_tokens_details":{"cached_tokens":4}},"more":1})");
  ASSERT_TRUE(usage);
  EXPECT_EQ(usage->prompt_tokens, 10u);
  EXPECT_EQ(usage->completion_tokens, 2u);
  EXPECT_EQ(usage->cached_tokens, 4u);
  const auto odd = ReadUsage(R"({"usage":{"prompt_tokens":-1,"completion_tokens":1e99,
      "prompt_tokens_details":{"cached_tokens":7}}})");
  ASSERT_TRUE(odd);
  EXPECT_EQ(odd->prompt_tokens, 0u);
  EXPECT_EQ(odd->completion_tokens, 0u);
  EXPECT_EQ(odd->cached_tokens, 0u);
}

TEST(AnswerUsageTest, IsNothingWhereThereIsNone) {
  for (const char* text : {"", "{}", "{\"usage\":null}", "{\"usage\":", "{\"usage\":{",
                           "{\"usage\":[1]}", "\"usage\"", "{\"usage\":{\"a\":}}"}) {
    EXPECT_FALSE(ReadUsage(text)) << text;
  }
}

}  // namespace
}  // namespace cairn::router
