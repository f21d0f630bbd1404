#include "services/router/relay/key_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/status/matchers.h"

namespace cairn::router {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::_;
using ::testing::HasSubstr;

class KeyFileTest : public ::testing::Test {
 protected:
  KeyFileTest() : path_(::testing::TempDir() + "engine_key." + std::to_string(getpid())) {}
  ~KeyFileTest() override { std::filesystem::remove(path_); }
  void Write(const std::string& text) { std::ofstream(path_) << text; }
  const std::string path_;
  FakeClock clock_;
};

TEST_F(KeyFileTest, IsReadAgainAfterASecond) {
  Write("first\nsecond\n");
  auto file = KeyFile::Open(path_, "engines.api_key_file", &clock_);
  ASSERT_OK(file);
  EXPECT_EQ((*file)->Get(), "first");
  Write("other\r\n");
  EXPECT_EQ((*file)->Get(), "first");
  clock_.Advance(std::chrono::seconds(1));
  EXPECT_EQ((*file)->Get(), "other");
  EXPECT_FALSE((*file)->stale());
  Write("");
  clock_.Advance(std::chrono::seconds(1));
  EXPECT_TRUE((*file)->stale());
  EXPECT_EQ((*file)->Get(), "other");
  Write("third\n");
  clock_.Advance(std::chrono::seconds(1));
  EXPECT_FALSE((*file)->stale());
}

TEST_F(KeyFileTest, RefusesWhatCannotBeAHeader) {
  for (const char* text : {"", "\n", "two words\n", "\x01", "umlaut\xc3\xa4"}) {
    Write(text);
    const auto file = KeyFile::Open(path_, "engines.api_key_file", &clock_);
    EXPECT_THAT(file.status(), StatusIs(StatusCode::kFailedPrecondition, _)) << text;
    EXPECT_THAT(Message(file.status()), HasSubstr("engines.api_key_file"));
  }
  EXPECT_FALSE(KeyFile::Open("/does/not/exist", "engines.api_key_file", &clock_).ok());
}

}  // namespace
}  // namespace cairn::router
