#include "tools/cairn/bench/cpu_meter.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace cairn::cli::bench {
namespace {

TEST(CpuMeterTest, MachineTimeLeavesIdleAndInterruptsOut) {
  const MachineTime time = ParseMachineTime("cpu  100 20 30 9000 50 6 7 40 0 0", 100);
  EXPECT_DOUBLE_EQ(time.busy, 1.5);
  EXPECT_DOUBLE_EQ(time.stolen, 0.4);
}

TEST(CpuMeterTest, OtherLinesAreNoMachineTime) {
  EXPECT_DOUBLE_EQ(ParseMachineTime("cpu0 1 2 3 4 5 6 7 8", 100).busy, 0);
  EXPECT_DOUBLE_EQ(ParseMachineTime("cpu 1 2", 100).busy, 0);
  EXPECT_DOUBLE_EQ(ParseMachineTime("", 100).busy, 0);
}

TEST(CpuMeterTest, ProcessTimeSurvivesAnyName) {
  const char text[] = "42 (a) b) (c) S 1 42 42 0 -1 4194304 1 2 3 4 150 50 7 8 20 0 1 0 100";
  EXPECT_DOUBLE_EQ(ParseProcessTime(text, 100), 2.0);
  EXPECT_DOUBLE_EQ(ParseProcessTime("42 (a) S 1", 100), 0);
  EXPECT_DOUBLE_EQ(ParseProcessTime("", 100), 0);
}

TEST(CpuMeterTest, OurOwnWorkIsNotANeighboursLoad) {
  const CpuMeter meter({});
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
  while (std::chrono::steady_clock::now() < until) {
  }
  const CpuMeter::Use use = meter.Read();
  EXPECT_GE(use.seconds, 0.2);
  EXPECT_GT(use.own_seconds, 0);
  EXPECT_GE(use.foreign_cores, 0);
}

TEST(CpuMeterTest, AProcessThatIsGoneUsesNothing) {
  const CpuMeter meter({0x3fffffff});
  EXPECT_GE(meter.Read().own_seconds, 0);
}

}  // namespace
}  // namespace cairn::cli::bench
