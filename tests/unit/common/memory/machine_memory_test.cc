#include "common/memory/machine_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace cairn {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class MachineMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) /
            ("machine_memory_" + std::to_string(getpid()) +
             ::testing::UnitTest::GetInstance()->current_test_info()->name());
    Put("proc/meminfo", "MemTotal:       100 kB\nMemAvailable:   50 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }
  void Put(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  fs::path root_;
};

TEST_F(MachineMemoryTest, WithoutAGroupTheMachineLimits) {
  const MachineMemory memory = ReadMachineMemory(root_);
  EXPECT_EQ(memory.machine_available, 50u * 1024);
  EXPECT_EQ(memory.group_limit, UINT64_MAX);
  EXPECT_EQ(memory.Available(), 50u * 1024);
  EXPECT_EQ(memory.Total(), 100u * 1024);
  EXPECT_EQ(memory.Limiter(), "the machine");
}

TEST_F(MachineMemoryTest, TheTightestGroupOnTheWayUpLimits) {
  Put("proc/self/cgroup", "0::/a/b\n");
  Put("sys/fs/cgroup/a/b/memory.max", "max\n");
  Put("sys/fs/cgroup/a/memory.max", "20000\n");
  Put("sys/fs/cgroup/a/memory.current", "15000\n");
  Put("sys/fs/cgroup/a/memory.stat", "anon 4000\ninactive_file 1000\n");
  const MachineMemory memory = ReadMachineMemory(root_);
  EXPECT_EQ(memory.group_limit, 20000u);
  EXPECT_EQ(memory.group_available, 6000u);
  EXPECT_EQ(memory.Available(), 6000u);
  EXPECT_EQ(memory.Total(), 20000u);
  EXPECT_EQ(memory.Limiter(), "the control group");
}

TEST_F(MachineMemoryTest, ContainerSeesItsGroupAsTheRoot) {
  Put("proc/self/cgroup", "0::/\n");
  Put("sys/fs/cgroup/memory.max", "30000\n");
  Put("sys/fs/cgroup/memory.current", "10000\n");
  EXPECT_EQ(ReadMachineMemory(root_).Available(), 20000u);
}

TEST_F(MachineMemoryTest, VersionOneOfControlGroups) {
  Put("proc/self/cgroup", "12:cpu,cpuacct:/x\n7:hugetlb,memory:/pod/c\n0::/\n");
  Put("sys/fs/cgroup/memory/pod/c/memory.limit_in_bytes", "40000\n");
  Put("sys/fs/cgroup/memory/pod/c/memory.usage_in_bytes", "50000\n");
  const MachineMemory memory = ReadMachineMemory(root_);
  EXPECT_EQ(memory.group_limit, 40000u);
  EXPECT_EQ(memory.Available(), 0u);
}

TEST_F(MachineMemoryTest, VersionOneWithoutALimitHasAHugeNumber) {
  Put("proc/self/cgroup", "7:memory:/\n");
  Put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Put("sys/fs/cgroup/memory/memory.usage_in_bytes", "50000\n");
  EXPECT_EQ(ReadMachineMemory(root_).group_limit, UINT64_MAX);
}

TEST_F(MachineMemoryTest, BothVersionsNextToEachOther) {
  Put("proc/self/cgroup", "7:pids:/x\n0::/a\n");
  Put("sys/fs/cgroup/unified/a/memory.max", "30000\n");
  EXPECT_EQ(ReadMachineMemory(root_).Available(), 30000u);
}

TEST_F(MachineMemoryTest, NodesThatTheCpusetExcludesDoNotCount) {
  Put("proc/self/status", "Name:\tx\nMems_allowed_list:\t1-2\n");
  Put("sys/devices/system/node/has_memory", "0-1\n");
  Put("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 60 kB\nNode 0 MemFree: 40 kB\n");
  Put("sys/devices/system/node/node1/meminfo",
      "Node 1 MemTotal: 40 kB\nNode 1 MemFree: 5 kB\nNode 1 Inactive(file): 3 kB\n");
  const MachineMemory memory = ReadMachineMemory(root_);
  EXPECT_EQ(memory.Available(), 8u * 1024);
  EXPECT_EQ(memory.Total(), 40u * 1024);
  EXPECT_EQ(memory.Limiter(), "the NUMA nodes of the cpuset");
}

TEST_F(MachineMemoryTest, ACpusetOfAllNodesLimitsNothing) {
  Put("proc/self/status", "Mems_allowed_list:\t0-63\n");
  Put("sys/devices/system/node/has_memory", "0-1\n");
  EXPECT_EQ(ReadMachineMemory(root_).nodes_available, UINT64_MAX);
}

TEST_F(MachineMemoryTest, NothingReadableIsNoLimit) {
  EXPECT_EQ(ReadMachineMemory((root_ / "nowhere").string()).Available(), UINT64_MAX);
}

TEST_F(MachineMemoryTest, WhatDoesNotFitIsNamedWithWhatLimitsIt) {
  const MachineMemory memory{.machine_available = 8ull << 30, .group_available = 650ull << 20};
  EXPECT_TRUE(CheckFits(memory, 650ull << 20, "pool: got 650MiB", "lower pool").ok());
  EXPECT_THAT(std::string(CheckFits(memory, 4ull << 30, "pool: got 4GiB", "lower pool").message()),
              HasSubstr("pool: got 4GiB, expected at most the 650 MiB of memory that the control "
                        "group has left; lower pool"));
}

}  // namespace
}  // namespace cairn
