#include "tools/cairn/bench/statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn::cli::bench {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;

TEST(StatisticsTest, MedianIsTheMiddleSample) {
  EXPECT_DOUBLE_EQ(Median({3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(Median({4, 1, 2, 3}), 2.5);
  EXPECT_DOUBLE_EQ(Median({7}), 7);
  EXPECT_DOUBLE_EQ(Median({}), 0);
}

TEST(StatisticsTest, PercentileIsASample) {
  EXPECT_DOUBLE_EQ(Percentile({5, 1, 4, 2, 3}, 0.5), 3);
  EXPECT_DOUBLE_EQ(Percentile({5, 1, 4, 2, 3}, 0.99), 5);
  EXPECT_DOUBLE_EQ(Percentile({5, 1, 4, 2, 3}, 0), 1);
  EXPECT_DOUBLE_EQ(Percentile({5, 1, 4, 2, 3}, 2), 5) << "shares beyond 1 are the largest";
  EXPECT_DOUBLE_EQ(Percentile({}, 0.5), 0);
}

TEST(StatisticsTest, SpreadIsRelativeToTheMedian) {
  const Summary s = Summarize({8, 10, 12});
  EXPECT_DOUBLE_EQ(s.median, 10);
  EXPECT_DOUBLE_EQ(s.min, 8);
  EXPECT_DOUBLE_EQ(s.max, 12);
  EXPECT_DOUBLE_EQ(s.spread, 0.4);
  EXPECT_DOUBLE_EQ(Summarize({0, 0}).spread, 0);
  EXPECT_DOUBLE_EQ(Summarize({}).median, 0);
}

TEST(StatisticsTest, RatiosPairSamplesOfOneMoment) {
  EXPECT_THAT(Ratios({1, 6, 5}, {2, 3, 0}), ElementsAre(DoubleEq(0.5), DoubleEq(2), DoubleEq(0)));
}

}  // namespace
}  // namespace cairn::cli::bench
