// Which settings give way where a process's memory does not fit.

#include "common/memory/memory_plan.h"

#include <gmock/gmock.h>

#include <vector>

#include "common/status/matchers.h"

namespace cairn {
namespace {

using cairn::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;

MachineMemory Machine(uint64_t available) {
  MachineMemory machine;
  machine.machine_total = machine.machine_available = available;
  return machine;
}

TEST(MemoryPlanTest, WhatFitsStaysAsItIs) {
  std::vector<PlannedMemory> items = {{"index", 300 * kMiB, 16 * kMiB}, {"process", 100 * kMiB}};
  ASSERT_OK(FitMemory(items, 0, Machine(400 * kMiB)));
  EXPECT_EQ(items[0].bytes, 300 * kMiB);
  ASSERT_OK(FitMemory(items, 400 * kMiB, MachineMemory()));
  EXPECT_EQ(items[0].bytes, 300 * kMiB);
}

TEST(MemoryPlanTest, WhatNobodySetGivesWayByTheSamePart) {
  std::vector<PlannedMemory> items = {{"index", 300 * kMiB, 100 * kMiB},
                                      {"token_cache", 60 * kMiB, 20 * kMiB},
                                      {"rpc.requests", 200 * kMiB}};
  ASSERT_OK(FitMemory(items, 0, Machine(440 * kMiB)));
  EXPECT_EQ(items[0].bytes, 200 * kMiB);
  EXPECT_EQ(items[1].bytes, 40 * kMiB);
  EXPECT_EQ(items[2].bytes, 200 * kMiB);
}

TEST(MemoryPlanTest, WhatCannotFitIsRefusedWithAllItems) {
  std::vector<PlannedMemory> items = {{"index", 300 * kMiB, 100 * kMiB}, {"process", 100 * kMiB}};
  EXPECT_THAT(FitMemory(items, 0, Machine(199 * kMiB)),
              StatusIs(StatusCode::kResourceExhausted,
                       HasSubstr("memory: index 100 + process 100 = 200 MiB, expected at most the "
                                 "199 MiB of memory that the machine has left")));
  EXPECT_THAT(FitMemory(items, 150 * kMiB, MachineMemory()),
              StatusIs(StatusCode::kResourceExhausted,
                       HasSubstr("memory.limit: got 150 MiB, expected at least the index 100 + "
                                 "process 100 = 200 MiB")));
}

TEST(MemoryPlanTest, ADescriptionHasWhatTakesMemoryAndTheSum) {
  const std::vector<PlannedMemory> items = {
      {"index", 300 * kMiB, 100 * kMiB}, {"picker.all_bodies", 0}, {"process", 100 * kMiB - 1}};
  EXPECT_EQ(DescribeMemory(items), "index 300 + process 100 = 400 MiB");
}

TEST(MemoryPlanTest, NumbersNearTheLargestDoNotWrap) {
  std::vector<PlannedMemory> items = {{"index", UINT64_MAX - 1}, {"process", 100 * kMiB}};
  EXPECT_THAT(FitMemory(items, 0, Machine(1 << 30)),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("index")));
}

}  // namespace
}  // namespace cairn
