#include "common/log/log.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/status/matchers.h"

namespace cairn::log {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::HasSubstr;

class LogTest : public ::testing::Test {
 protected:
  ~LogTest() override { Configure({}); }
  template <typename F>
  std::string Capture(F log) {
    ::testing::internal::CaptureStderr();
    log();
    return ::testing::internal::GetCapturedStderr();
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

TEST_F(LogTest, LevelsBelowTheChosenOneAreSilent) {
  Configure({.level = Level::kWarn});
  EXPECT_FALSE(Enabled(Level::kInfo));
  EXPECT_TRUE(Enabled(Level::kError));
  EXPECT_EQ(Capture([] { Info("quiet"); }), "");
  EXPECT_THAT(Capture([] { Error("loud"); }), HasSubstr("loud"));
}

}  // namespace
}  // namespace cairn::log
