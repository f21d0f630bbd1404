#include "services/cache/store/state/read_pace.h"

#include <gtest/gtest.h>

namespace cairn::cache {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class ReadPaceTest : public ::testing::Test {
 protected:
  FakeClock clock_;
  ReadPace pace_{&clock_};
};

TEST_F(ReadPaceTest, IsUnknownUntilSomethingWasRead) {
  EXPECT_EQ(pace_.BytesPerSecond(), 0);
  pace_.Begin();
  EXPECT_EQ(pace_.BytesPerSecond(), 0);
  clock_.Advance(milliseconds(500));
  pace_.End(1000);
  EXPECT_NEAR(pace_.BytesPerSecond(), 2000, 1e-6);
}

TEST_F(ReadPaceTest, ReadsAtTheSameTimeShareIt) {
  for (int i = 0; i < 4; ++i) pace_.Begin();
  clock_.Advance(milliseconds(100));
  for (int i = 0; i < 4; ++i) pace_.End(1000);
  EXPECT_NEAR(pace_.BytesPerSecond(), 40'000, 1e-6);
}

TEST_F(ReadPaceTest, TimeWithoutReadsChangesNothing) {
  pace_.Add(1000, seconds(1));
  clock_.Advance(seconds(1000));
  pace_.Begin();
  EXPECT_NEAR(pace_.BytesPerSecond(), 1000, 1e-6);
}

TEST_F(ReadPaceTest, FollowsATierThatBecomesSlower) {
  pace_.Add(10'000, seconds(1));
  for (int i = 0; i < 20; ++i) pace_.Add(100, seconds(1));
  EXPECT_NEAR(pace_.BytesPerSecond(), 100, 10);
}

TEST_F(ReadPaceTest, AReadThatHangsAndOneThatFailsMakeItSlower) {
  pace_.Add(10'000, seconds(1));
  pace_.Begin();
  clock_.Advance(seconds(4));
  pace_.Begin();
  const double hung = pace_.BytesPerSecond();
  EXPECT_LT(hung, 1000);
  clock_.Advance(seconds(1));
  pace_.End(0);
  EXPECT_LT(pace_.BytesPerSecond(), hung);
}

}  // namespace
}  // namespace cairn::cache
