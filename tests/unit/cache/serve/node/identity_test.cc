#include "services/cache/serve/node/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "common/status/matchers.h"

namespace cairn::cache {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::HasSubstr;

class NextEpochTest : public ::testing::Test {
 protected:
  NextEpochTest() { std::filesystem::create_directories(directory_); }
  ~NextEpochTest() override { std::filesystem::remove_all(directory_); }
  void Write(const std::string& text) { std::ofstream(directory_ + "/epoch") << text; }

  const std::string directory_ =
      ::testing::TempDir() + "next_epoch_test." + std::to_string(getpid());
};

TEST_F(NextEpochTest, GrowsWithEachStartAlsoWhenTheClockWentBack) {
  const auto first = NextEpoch(directory_);
  ASSERT_OK(first);
  EXPECT_GT(*NextEpoch(directory_), *first);
  Write("18446744073709551613\n");
  EXPECT_EQ(*NextEpoch(directory_), UINT64_MAX - 1);
  EXPECT_EQ(*NextEpoch(directory_), UINT64_MAX);
}

TEST_F(NextEpochTest, NeverStartsAgainFromTheBeginning) {
  for (const char* const text : {"18446744073709551615\n", "18446744073709551616\n", "-1\n", "",
                                 "\n", "twelve\n", "12 13\n"}) {
    Write(text);
    EXPECT_THAT(NextEpoch(directory_),
                StatusIs(StatusCode::kFailedPrecondition, HasSubstr("epoch")))
        << text;
  }
}

TEST_F(NextEpochTest, SaysWhyThereIsNoFolder) {
  EXPECT_THAT(NextEpoch("/proc/none/x"),
              StatusIs(StatusCode::kFailedPrecondition,
                       HasSubstr("disk.path: cannot make '/proc/none/x': No such file")));
  Write("");
  EXPECT_THAT(NextEpoch(directory_ + "/epoch/x"),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("Not a directory")));
}

}  // namespace
}  // namespace cairn::cache
