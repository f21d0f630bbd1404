#include "services/cache/store/placement/disk_admission.h"

#include <gtest/gtest.h>

namespace cairn::cache {
namespace {

using Verdict = DiskAdmission::Verdict;
using std::chrono::milliseconds;
using std::chrono::seconds;

class DiskAdmissionTest : public ::testing::Test {
 protected:
  FakeClock clock_;
};

TEST_F(DiskAdmissionTest, WhileThereIsRoomEverythingIsCopied) {
  DiskAdmission admission({.high_water = 0.9});
  for (double used : {0.0, 0.5, 0.899}) {
    EXPECT_EQ(admission.Decide({.bytes = 1000, .used_share = used}, clock_.Now()).verdict,
              Verdict::kCopy);
  }
}

TEST_F(DiskAdmissionTest, AboveTheMarkASecondTouchAHintOrAFlushIsNeeded) {
  DiskAdmission admission({.high_water = 0.9});
  const auto decide = [&](DiskAdmission::Candidate c) {
    c.used_share = 0.95;
    return admission.Decide(c, clock_.Now()).verdict;
  };
  EXPECT_EQ(decide({.bytes = 1000}), Verdict::kNoSecondTouch);
  EXPECT_EQ(decide({.bytes = 1000, .touched = true}), Verdict::kCopy);
  EXPECT_EQ(decide({.bytes = 1000, .hinted = true}), Verdict::kCopy);
  EXPECT_EQ(decide({.bytes = 1000, .flushed = true}), Verdict::kCopy);
}

TEST_F(DiskAdmissionTest, AMarkOfOneIsNone) {
  DiskAdmission admission({.high_water = 1.0});
  EXPECT_EQ(admission.Decide({.bytes = 1, .used_share = 1.2}, clock_.Now()).verdict,
            Verdict::kCopy);
}

TEST_F(DiskAdmissionTest, TheBudgetIsKeptOverTime) {
  DiskAdmission admission({.bytes_per_second = 1000, .patience = seconds(100)});
  uint64_t copied = 0;
  for (int i = 0; i < 1000; ++i) {
    if (admission.Decide({.bytes = 100}, clock_.Now()).verdict == Verdict::kCopy) copied += 100;
    clock_.Advance(milliseconds(10));
  }
  // Ten seconds, and the burst at the start.
  EXPECT_LE(copied, 11'000u);
  EXPECT_GE(copied, 10'800u);
}

TEST_F(DiskAdmissionTest, WaitsAsLongAsSaidThenThereIsRoom) {
  DiskAdmission admission({.bytes_per_second = 1000, .patience = seconds(10)});
  ASSERT_EQ(admission.Decide({.bytes = 1000}, clock_.Now()).verdict, Verdict::kCopy);
  const auto decision = admission.Decide({.bytes = 500}, clock_.Now());
  ASSERT_EQ(decision.verdict, Verdict::kWait);
  EXPECT_NEAR(Seconds(decision.wait), 0.5, 0.001);
  clock_.Advance(decision.wait);
  EXPECT_EQ(admission.Decide({.bytes = 500}, clock_.Now()).verdict, Verdict::kCopy);
}

TEST_F(DiskAdmissionTest, PatienceEnds) {
  DiskAdmission admission({.bytes_per_second = 1000, .patience = seconds(1)});
  ASSERT_EQ(admission.Decide({.bytes = 1000}, clock_.Now()).verdict, Verdict::kCopy);
  const auto decision =
      admission.Decide({.bytes = 1000, .waited = milliseconds(900)}, clock_.Now());
  EXPECT_EQ(decision.verdict, Verdict::kWait);
  EXPECT_EQ(decision.wait, milliseconds(100));
  EXPECT_EQ(admission.Decide({.bytes = 1000, .waited = seconds(1)}, clock_.Now()).verdict,
            Verdict::kOverBudget);
  // A block that a flush waits for is not given up, and is not faster than the budget either.
  EXPECT_EQ(admission.Decide({.bytes = 1000, .flushed = true, .waited = seconds(1)}, clock_.Now())
                .verdict,
            Verdict::kWait);
  EXPECT_EQ(admission.Decide({.bytes = 1000, .unlimited = true, .waited = seconds(1)}, clock_.Now())
                .verdict,
            Verdict::kCopy);
}

TEST_F(DiskAdmissionTest, ABlockLargerThanASecondsBudgetPassesAndIsPaidOff) {
  DiskAdmission admission({.bytes_per_second = 1000, .patience = seconds(100)});
  ASSERT_EQ(admission.Decide({.bytes = 5000}, clock_.Now()).verdict, Verdict::kCopy);
  EXPECT_EQ(admission.Decide({.bytes = 100}, clock_.Now()).verdict, Verdict::kWait);
  clock_.Advance(seconds(4));
  EXPECT_EQ(admission.Decide({.bytes = 100}, clock_.Now()).verdict, Verdict::kWait);
  clock_.Advance(milliseconds(101));
  EXPECT_EQ(admission.Decide({.bytes = 100}, clock_.Now()).verdict, Verdict::kCopy);
}

}  // namespace
}  // namespace cairn::cache
