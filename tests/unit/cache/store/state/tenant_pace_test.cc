#include "services/cache/store/state/tenant_pace.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace cairn::cache {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class TenantPaceTest : public ::testing::Test {
 protected:
  TimePoint now_ = TimePoint(seconds(1000));
  TenantPace pace_;
};

TEST_F(TenantPaceTest, WithoutALimitNothingIsOwed) {
  pace_.Spend(UINT64_MAX, now_);
  EXPECT_EQ(pace_.Debt(now_), Duration(0));
}

TEST_F(TenantPaceTest, WhoHasSpentNothingOwesNothing) {
  pace_.SetRate(1);
  EXPECT_EQ(pace_.Debt(now_), Duration(0));
  EXPECT_EQ(pace_.Debt(TimePoint(seconds(0))), Duration(0));
  EXPECT_EQ(pace_.Debt(TimePoint::max()), Duration(0));
}

TEST_F(TenantPaceTest, ASecondIsThereAtOnceAndMoreIsOwed) {
  pace_.SetRate(1000);
  pace_.Spend(1000, now_);
  EXPECT_EQ(pace_.Debt(now_), Duration(0));
  pace_.Spend(500, now_);
  EXPECT_EQ(pace_.Debt(now_), milliseconds(500));
  EXPECT_EQ(pace_.Debt(now_ + milliseconds(400)), milliseconds(100));
  EXPECT_EQ(pace_.Debt(now_ + milliseconds(500)), Duration(0));
}

TEST_F(TenantPaceTest, OverALongTimeATenantGetsItsRate) {
  pace_.SetRate(1'000'000);
  uint64_t spent = 0;
  const TimePoint end = now_ + seconds(60);
  for (; now_ < end; now_ += milliseconds(1)) {
    while (pace_.Debt(now_) == Duration(0)) {
      pace_.Spend(70'000, now_);
      spent += 70'000;
    }
  }
  EXPECT_GE(spent, 60'000'000u);
  EXPECT_LE(spent, 61'000'000u + 70'000u);
}

TEST_F(TenantPaceTest, WhoWasIdleForLongHasNoMoreThanASecond) {
  pace_.SetRate(1000);
  pace_.Spend(1, now_);
  now_ += seconds(3600);
  pace_.Spend(1100, now_);
  EXPECT_EQ(pace_.Debt(now_), milliseconds(100));
}

TEST_F(TenantPaceTest, ADebtHasABound) {
  pace_.SetRate(1);
  pace_.Spend(UINT64_MAX, now_);
  pace_.Spend(UINT64_MAX, now_);
  EXPECT_EQ(pace_.Debt(now_), TenantPace::kMostDebt);
  pace_.SetRate(TenantPace::kNoLimit);
  EXPECT_EQ(pace_.Debt(now_), Duration(0));
}

TEST_F(TenantPaceTest, ThreadsLoseNothing) {
  pace_.SetRate(1000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this] {
      for (int i = 0; i < 1000; ++i) pace_.Spend(2, now_);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pace_.Debt(now_), seconds(7));
}

}  // namespace
}  // namespace cairn::cache
