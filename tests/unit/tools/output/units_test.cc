#include "tools/cairn/output/units.h"

#include <gtest/gtest.h>

namespace cairn::cli {
namespace {

TEST(UnitsTest, BytesHaveThreeDigits) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1.00 KiB");
  EXPECT_EQ(HumanBytes(1536 * 1024), "1.50 MiB");
  EXPECT_EQ(HumanBytes(98304ULL * 1024), "96.0 MiB");
  EXPECT_EQ(HumanBytes((1ULL << 30) - 1), "1.00 GiB");
  EXPECT_EQ(HumanBytes(~0ULL), "16.0 EiB");
}

TEST(UnitsTest, SecondsAreReadable) {
  EXPECT_EQ(HumanSeconds(0.00123), "1.2 ms");
  EXPECT_EQ(HumanSeconds(0.0994), "99 ms");
  EXPECT_EQ(HumanSeconds(0.0996), "0.10 s");
  EXPECT_EQ(HumanSeconds(4.021), "4.02 s");
  EXPECT_EQ(HumanSeconds(125), "2 min 5 s");
  EXPECT_EQ(HumanSeconds(-1), "-");
}

TEST(UnitsTest, GroupsDigitsByThree) {
  EXPECT_EQ(Grouped(0), "0");
  EXPECT_EQ(Grouped(999), "999");
  EXPECT_EQ(Grouped(4096), "4,096");
  EXPECT_EQ(Grouped(1234567), "1,234,567");
}

TEST(UnitsTest, TimesOfNothingIsADash) {
  EXPECT_EQ(Times(20.44), "20.4x");
  EXPECT_EQ(Times(123.4), "123x");
  EXPECT_EQ(Times(0), "-");
  EXPECT_EQ(Times(1.0 / 0.0), "-");
}

TEST(UnitsTest, BarsFillTheirWidthAndShowSmallValues) {
  const Terminal unicode{.unicode = true};
  EXPECT_EQ(Bar(10, 10, 4, unicode), "████");
  EXPECT_EQ(Bar(20, 10, 4, unicode), "████");
  EXPECT_EQ(Bar(5, 10, 4, unicode), "██");
  EXPECT_EQ(Bar(0.0001, 10, 4, unicode), "▏");
  EXPECT_EQ(Bar(0, 10, 4, unicode), "");
  const Terminal ascii{.unicode = false};
  EXPECT_EQ(Bar(5, 10, 4, ascii), "##");
}

}  // namespace
}  // namespace cairn::cli
