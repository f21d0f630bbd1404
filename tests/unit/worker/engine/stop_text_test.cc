#include "services/worker/engine/stop_text.h"

#include <gtest/gtest.h>

#include <vector>

namespace cairn::worker {
namespace {

struct Streamed {
  std::string text;
  std::vector<std::string> pieces;
  bool stopped = false;
};

Streamed Play(const std::vector<std::string>& stops, const std::vector<std::string>& tokens) {
  StopText stop(stops);
  Streamed out;
  for (const std::string& token : tokens) {
    out.pieces.push_back(stop.Add(token));
    out.text += out.pieces.back();
    if (stop.stopped()) break;
  }
  out.stopped = stop.stopped();
  out.text += stop.Finish();
  return out;
}

TEST(StopTextTest, WithoutStopTextsEverythingPasses) {
  const Streamed got = Play({}, {"a", "b\n", "c"});
  EXPECT_EQ(got.text, "ab\nc");
  EXPECT_FALSE(got.stopped);
}

TEST(StopTextTest, EndsInTheMiddleOfAToken) {
  const Streamed got = Play({"END"}, {"one ", "two END three", "four"});
  EXPECT_EQ(got.text, "one two ");
  EXPECT_TRUE(got.stopped);
  EXPECT_EQ(got.pieces.size(), 2u);
}

TEST(StopTextTest, SpansTokensAndNothingOfItIsStreamed) {
  const Streamed got = Play({"\n\nUser:"}, {"Hi.", "\n", "\n", "Us", "er", ": x"});
  EXPECT_EQ(got.text, "Hi.");
  EXPECT_TRUE(got.stopped);
  EXPECT_EQ(got.pieces, (std::vector<std::string>{"Hi.", "", "", "", "", ""}));
}

TEST(StopTextTest, ABeginningThatDoesNotGoOnIsStreamedThen) {
  const Streamed got = Play({"abcd"}, {"xab", "c", "e"});
  EXPECT_EQ(got.pieces, (std::vector<std::string>{"x", "", "abce"}));
  EXPECT_FALSE(got.stopped);
}

TEST(StopTextTest, ABeginningInsideOfABeginning) {
  // "aab" begins at the second of three letters a.
  const Streamed got = Play({"aab"}, {"a", "a", "a", "b", "c"});
  EXPECT_EQ(got.text, "a");
  EXPECT_TRUE(got.stopped);
}

TEST(StopTextTest, TheFirstOfSeveralCounts) {
  EXPECT_EQ(Play({"two", "one"}, {"zero one two"}).text, "zero ");
  EXPECT_EQ(Play({"b", "abc"}, {"xab", "c"}).text, "xa");
}

TEST(StopTextTest, WhatWasHeldBackComesWithTheEnd) {
  const Streamed got = Play({"STOP"}, {"go ST"});
  EXPECT_EQ(got.pieces, (std::vector<std::string>{"go "}));
  EXPECT_EQ(got.text, "go ST");
}

TEST(StopTextTest, WholeCharactersStayWhole) {
  // Both letters begin with the same byte.
  const Streamed got = Play({"\u00e4"}, {"\u00f6", "\u00fc", "\u00e4", "x"});
  EXPECT_EQ(got.pieces, (std::vector<std::string>{"\u00f6", "\u00fc", ""}));
  EXPECT_TRUE(got.stopped);
}

}  // namespace
}  // namespace cairn::worker
