#include "common/config/text_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/status/matchers.h"

namespace cairn::config {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

MATCHER_P(IsOkAndHolds, value, "") { return arg.ok() && *arg == value; }

class TextFileTest : public ::testing::Test {
 protected:
  std::string Write(std::string_view bytes) {
    std::ofstream(path_, std::ios::binary) << bytes;
    return path_;
  }
  void TearDown() override { std::filesystem::remove(path_); }
  const std::string path_ = ::testing::TempDir() + "/text_file_" + std::to_string(getpid()) +
                            ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(TextFileTest, AMarkInFrontIsNoPartOfTheText) {
  EXPECT_THAT(ReadTextFile(Write("\xef\xbb\xbfone\r\ntwo\r\n"), "f"),
              IsOkAndHolds("one\r\ntwo\r\n"));
  EXPECT_THAT(ReadTextFile(Write("one"), "f"), IsOkAndHolds("one"));
  EXPECT_THAT(ReadTextFile(Write(""), "f"), IsOkAndHolds(""));
}

TEST_F(TextFileTest, AnotherEncodingIsNamed) {
  EXPECT_THAT(ReadTextFile(Write("\xff\xfeo\x00n"), "http.api_keys"),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("http.api_keys"), HasSubstr("UTF-16"))));
}

TEST_F(TextFileTest, MoreThanTheBoundIsRefused) {
  EXPECT_THAT(ReadTextFile(Write("12345"), "f", 5), IsOkAndHolds("12345"));
  EXPECT_THAT(ReadTextFile(Write("123456"), "f", 5),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("more than 5 bytes")));
}

TEST_F(TextFileTest, AFileThatCannotBeReadIsNamed) {
  EXPECT_THAT(ReadTextFile("/no/such", "f"),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("f: cannot read '/no/such'")));
  EXPECT_THAT(ReadTextFile("/", "f"), StatusIs(StatusCode::kFailedPrecondition, HasSubstr("'/'")));
}

TEST_F(TextFileTest, OneSecretInFourSpellings) {
  for (const std::string_view text :
       {"s3cret", "s3cret\n", "s3cret\r\n", "\xef\xbb\xbfs3cret\r\n"}) {
    EXPECT_THAT(ReadSecretFile(Write(text), "f"), IsOkAndHolds("s3cret"));
  }
  // Line breaks inside are of the secret.
  EXPECT_THAT(ReadSecretFile(Write("a\nb\n"), "f"), IsOkAndHolds("a\nb"));
}

TEST_F(TextFileTest, AnEmptySecretIsRefusedWithoutShowingIt) {
  for (const std::string& text : {std::string(), std::string("\n"), std::string(70 << 10, 'x')}) {
    EXPECT_THAT(ReadSecretFile(Write(text), "tenant_salt_file"),
                StatusIs(StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("tenant_salt_file"), Not(HasSubstr("xxx")))));
  }
}

}  // namespace
}  // namespace cairn::config
