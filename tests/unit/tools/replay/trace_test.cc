#include "tools/cairn/replay/trace.h"

#include <gtest/gtest.h>

#include <sstream>

namespace cairn::cli::replay {
namespace {

Result<Trace> Read(const std::string& text) {
  std::istringstream in(text);
  return ReadTrace(in, "t.jsonl", 512);
}

std::string Line(const std::string& stamp, const std::string& input, const std::string& ids) {
  return R"({"timestamp": )" + stamp + R"(, "input_length": )" + input +
         R"(, "output_length": 5, "hash_ids": )" + ids + "}\n";
}

TEST(TraceTest, RequestsOfOneStampAreSpreadUntilTheNext) {
  const auto trace = Read(Line("1000", "600", "[7, 8]") + Line("1000", "512", "[7]") +
                          Line("4000", "1024", "[7, 9]"));
  ASSERT_TRUE(trace.ok()) << Message(trace.status());
  EXPECT_EQ(trace->requests[0].seconds, 0);
  EXPECT_EQ(trace->requests[1].seconds, 1.5);
  EXPECT_EQ(trace->requests[2].seconds, 3);
  EXPECT_EQ(trace->distinct_blocks, 3u);
  EXPECT_EQ(trace->blocks, 5u);
  EXPECT_EQ(trace->tokens, 600u + 512 + 1024);
  EXPECT_EQ(trace->TokensOf(trace->requests[0], 0), 512u);
  EXPECT_EQ(trace->TokensOf(trace->requests[0], 1), 88u);
  EXPECT_EQ(trace->requests[2].blocks, (std::vector<uint32_t>{0, 2}));
}

TEST(TraceTest, ErrorsNameTheLineTheFieldAndWhatWasExpected) {
  const std::string good = Line("1000", "600", "[7, 8]");
  const struct {
    std::string line, expected;
  } cases[] = {
      {"", "line 2: field 'line': got no JSON object"},
      {"[1]\n", "line 2: field 'line': got no JSON object"},
      {R"({"timestamp": 1000, "hash_ids": [7]})", "line 2: field 'input_length': got nothing"},
      {Line("-3", "600", "[7, 8]"), "line 2: field 'timestamp': got -3"},
      {Line("\"x\"", "600", "[7, 8]"), "line 2: field 'timestamp': got \"x\""},
      {Line("999", "600", "[7, 8]"), "line 2: field 'timestamp': got 999, expected no less"},
      {Line("1000", "0", "[]"), "line 2: field 'input_length': got 0, expected a whole number"},
      {Line("1000", "600", "7"), "line 2: field 'hash_ids': got 7, expected a list"},
      {Line("1000", "600", "[7]"), "line 2: field 'hash_ids': got 1 numbers, expected 2"},
      {Line("1000", "600", "[7, 1.5]"), "line 2: field 'hash_ids': got 1.5"},
      {Line("1000", "600", "[9, 8]"), "line 2: field 'hash_ids': got 8 after another block"},
      {Line("1000", "600", "[7, 7]"), "line 2: field 'hash_ids': got 7 after another block"},
  };
  for (const auto& c : cases) {
    const auto trace = Read(good + (c.line.empty() ? "\n" : c.line));
    ASSERT_FALSE(trace.ok()) << c.line;
    EXPECT_EQ(trace.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(Message(trace.status()).find("t.jsonl, " + c.expected), std::string::npos)
        << Message(trace.status());
  }
  EXPECT_EQ(Message(Read("").status()), "t.jsonl: got no line, expected requests");
}

TEST(TraceTest, HintsComeFromTheFuture) {
  // Soon, later, and never; the last block of each is not full.
  auto trace = Read(Line("0", "1030", "[1, 2, 3]") + Line("1000", "1030", "[4, 5, 6]") +
                    Line("2000", "1030", "[7, 8, 9]") + Line("3000", "1540", "[1, 2, 10, 11]") +
                    Line("2000000", "1540", "[4, 5, 12, 13]"));
  ASSERT_TRUE(trace.ok()) << Message(trace.status());
  AddHints(&*trace, 100);
  EXPECT_EQ(trace->requests[0].next, NextUse::kSoon);
  EXPECT_EQ(trace->requests[1].next, NextUse::kLater);
  EXPECT_EQ(trace->requests[2].next, NextUse::kNever);
  auto none = *trace;
  for (TraceRequest& request : none.requests) request.next = NextUse::kUnknown;
  AddHints(&none, 0);
  for (const TraceRequest& request : none.requests) EXPECT_EQ(request.next, NextUse::kUnknown);
}

}  // namespace
}  // namespace cairn::cli::replay
