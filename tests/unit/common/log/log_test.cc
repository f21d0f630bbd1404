#include "common/log/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "common/log/line_limiter.h"
#include "common/log/line_queue.h"
#include "common/status/matchers.h"
#include "tests/support/captured_log.h"

namespace cairn::log {
namespace {

using ::cairn::testing::CapturedLog;
using ::cairn::testing::StatusIs;
using ::testing::HasSubstr;

class LogTest : public ::testing::Test {
 protected:
  ~LogTest() override { Configure({}); }
  template <typename F>
  std::string Capture(F log) {
    CapturedLog captured;
    log();
    return captured.Take();
  }
};

TEST_F(LogTest, ParsesNamesOrNamesTheLegalOnes) {
  EXPECT_EQ(*ParseLevel("warn"), Level::kWarn);
  EXPECT_EQ(*ParseFormat("json"), Format::kJson);
  EXPECT_THAT(ParseLevel("loud"), StatusIs(StatusCode::kInvalidArgument,
                                           HasSubstr("got 'loud', expected one of debug, info")));
  EXPECT_THAT(ParseFormat("xml"), StatusIs(StatusCode::kInvalidArgument, HasSubstr("text, json")));
}

TEST_F(LogTest, TextHasEventAndFields) {
  Configure({.level = Level::kInfo, .format = Format::kText});
  const std::string line = Capture([] {
    Info("block_promoted", {{"trace", "t1"}, {"note", "two words"}, {"n", Num(7)}});
  });
  EXPECT_THAT(line, HasSubstr("info block_promoted trace=t1 note=\"two words\" n=7\n"));
}

TEST_F(LogTest, JsonIsOneObjectALineWhateverTheBytes) {
  Configure({.level = Level::kInfo, .format = Format::kJson});
  const std::string line = Capture([] { Warn("odd", {{"bytes", "a\n\"\xff"}, {"b", ""}}); });
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
  const auto object = nlohmann::json::parse(line);
  EXPECT_EQ(object["level"], "warning");
  EXPECT_EQ(object["event"], "odd");
  EXPECT_THAT(object["bytes"].get<std::string>(), ::testing::StartsWith("a\n\""));
  EXPECT_GT(object["ts"].get<double>(), 1e9);
}

// A terminal obeys ESC, and 0x9b or its UTF-8 form as well; \r hides what stands before it.
TEST_F(LogTest, ValuesCannotControlATerminal) {
  for (const Format format : {Format::kText, Format::kJson}) {
    Configure({.level = Level::kInfo, .format = format});
    const std::string line = Capture([] {
      Info("hostile", {{"a", "x\r\x1b[2J"}, {"b", "\x9b"}, {"c", "\xc2\x9b"}, {"d", "\x7f"}});
    });
    for (const char c : line.substr(0, line.size() - 1)) {
      ASSERT_TRUE(c >= ' ' && c <= '~') << int{c} << " in " << line;
    }
    EXPECT_EQ(line.back(), '\n');
  }
}

TEST_F(LogTest, LongValuesAreCut) {
  Configure({});
  const std::string line = Capture([] { Info("long", {{"a", std::string(100'000, 'x')}}); });
  EXPECT_LT(line.size(), 5000u);
  EXPECT_THAT(line, HasSubstr("... (100000 bytes)"));
}

TEST_F(LogTest, AnEventThatWritesTooMuchIsCountedInstead) {
  Configure({});
  const uint64_t before = GetLosses().left_out;
  const std::string lines = Capture([] {
    for (int i = 0; i < 10'000; ++i) Warn("chatter", {});
    Info("another", {});
  });
  const auto count = std::count(lines.begin(), lines.end(), '\n');
  EXPECT_GE(count, 101);
  EXPECT_LT(count, 2'000);
  EXPECT_THAT(lines, HasSubstr("another"));
  EXPECT_EQ(GetLosses().left_out - before, 10'001u - static_cast<uint64_t>(count));
}

TEST(LineLimiterTest, EachEventHasARateAndSaysWhatWasLeftOut) {
  LineLimiter limiter;
  FakeClock clock;
  for (int i = 0; i < LineLimiter::kBurst; ++i) {
    EXPECT_EQ(limiter.Admit("a", clock.Now()), 0u) << i;
  }
  for (int i = 0; i < 7; ++i) EXPECT_EQ(limiter.Admit("a", clock.Now()), std::nullopt);
  EXPECT_EQ(limiter.Admit("b", clock.Now()), 0u);
  clock.Advance(std::chrono::milliseconds(100));
  EXPECT_EQ(limiter.Admit("a", clock.Now()), 7u);
  EXPECT_EQ(limiter.Admit("a", clock.Now()), std::nullopt);
  clock.Advance(std::chrono::hours(1));
  EXPECT_EQ(limiter.Admit("a", clock.Now()), 1u);
  for (int i = 1; i < LineLimiter::kBurst; ++i) EXPECT_EQ(limiter.Admit("a", clock.Now()), 0u);
  EXPECT_EQ(limiter.Admit("a", clock.Now()), std::nullopt);
  EXPECT_EQ(limiter.left_out(), 9u);
}

TEST(LineLimiterTest, NamesInNumberTakeNoMemory) {
  LineLimiter limiter;
  FakeClock clock;
  size_t admitted = 0;
  for (size_t i = 0; i < 100'000; ++i) {
    admitted += limiter.Admit(std::to_string(i), clock.Now()).has_value();
  }
  EXPECT_LE(admitted, LineLimiter::kMaxEvents + static_cast<size_t>(LineLimiter::kBurst));
}

TEST(LineQueueTest, WhatHasNoRoomIsDroppedAndCounted) {
  LineQueue queue(10);
  queue.Push("12345\n");
  queue.Push("7890\n");  // Too long by one.
  queue.Push("789\n");
  queue.Push("\n");
  LineQueue::Batch batch = queue.Take();
  EXPECT_EQ(batch.lines, "12345\n789\n");
  EXPECT_EQ(batch.dropped, 2u);
  EXPECT_FALSE(queue.WaitWritten(TimePoint())) << "it is being written";
  queue.Push("a\n");
  batch = queue.Take();
  EXPECT_EQ(batch.lines, "a\n");
  EXPECT_EQ(batch.dropped, 0u);
  EXPECT_EQ(queue.dropped(), 2u);
}

// A pipe that nobody reads, in the place of stderr.
TEST_F(LogTest, AFullPipeCostsLinesAndNoTime) {
  Configure({.level = Level::kDebug});
  const int before_fd = dup(STDERR_FILENO);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
  close(ends[1]);
  const uint64_t before = GetLosses().dropped;
  // 64 KiB in the pipe, 1 MiB in the queue, and up to as much in the batch that is being written:
  // how much, depends on when the writer took it.
  const std::string value(1000, 'x');
  for (int i = 0; i < 3000; ++i) Debug("filler", {{"value", value}});
  EXPECT_FALSE(Flush(std::chrono::milliseconds(1)));
  const uint64_t dropped = GetLosses().dropped - before;
  EXPECT_GT(dropped, 900u);
  EXPECT_LT(dropped, 2500u);
  // When somebody reads again, the number is told: in several lines, if the writer ran in between.
  std::string read_back;
  char buffer[65536];
  const auto told = [&] {
    constexpr std::string_view kName = "log_lines_dropped lines=";
    uint64_t sum = 0;
    for (size_t at = read_back.find(kName); at != std::string::npos;
         at = read_back.find(kName, at + 1)) {
      sum += std::strtoull(read_back.c_str() + at + kName.size(), nullptr, 10);
    }
    return sum;
  };
  while (told() < dropped || read_back.back() != '\n') {
    const ssize_t n = read(ends[0], buffer, sizeof buffer);
    ASSERT_GT(n, 0);
    read_back.append(buffer, static_cast<size_t>(n));
  }
  dup2(before_fd, STDERR_FILENO);
  close(before_fd);
  close(ends[0]);
  EXPECT_EQ(told(), dropped);
}

TEST_F(LogTest, TheLastLinesOfACrashComeOut) {
  // A process of its own: the log begins a thread, which TSan refuses in a forked one.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto crash = [](void (*end)()) {
    Configure({});
    for (int i = 0; i < 50; ++i) Info("before", {{"i", Num(i)}});
    end();
  };
  EXPECT_DEATH(crash([] { CAIRN_CHECK(1 == 2); }), "before i=49\n.*check failed: 1 == 2");
  EXPECT_DEATH(crash([] { std::terminate(); }), "before i=49\n");
  EXPECT_EXIT(crash([] { std::exit(3); }), ::testing::ExitedWithCode(3), "before i=49\n");
}

TEST_F(LogTest, LevelsBelowTheChosenOneAreSilent) {
  Configure({.level = Level::kWarn});
  EXPECT_FALSE(Enabled(Level::kInfo));
  EXPECT_TRUE(Enabled(Level::kError));
  EXPECT_EQ(Capture([] { Info("quiet"); }), "");
  EXPECT_THAT(Capture([] { Error("loud"); }), HasSubstr("loud"));
}

}  // namespace
}  // namespace cairn::log
