#include "services/cache/store/tier/memory_limit.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace cairn::cache {
namespace {

namespace fs = std::filesystem;

class MemoryLimitTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) /
            ("memory_limit_" + std::to_string(getpid()) +
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

TEST_F(MemoryLimitTest, WithoutAGroupTheMachineLimits) {
  const MemoryLimit limit = ReadMemoryLimit(root_);
  EXPECT_EQ(limit.machine_available, 50u * 1024);
  EXPECT_EQ(limit.group_limit, UINT64_MAX);
  EXPECT_EQ(limit.Available(), 50u * 1024);
}

TEST_F(MemoryLimitTest, TheTightestGroupOnTheWayUpLimits) {
  Put("proc/self/cgroup", "0::/a/b\n");
  Put("sys/fs/cgroup/a/b/memory.max", "max\n");
  Put("sys/fs/cgroup/a/memory.max", "20000\n");
  Put("sys/fs/cgroup/a/memory.current", "15000\n");
  Put("sys/fs/cgroup/a/memory.stat", "anon 4000\ninactive_file 1000\n");
  const MemoryLimit limit = ReadMemoryLimit(root_);
  EXPECT_EQ(limit.group_limit, 20000u);
  EXPECT_EQ(limit.group_available, 6000u);
  EXPECT_EQ(limit.Available(), 6000u);
}

TEST_F(MemoryLimitTest, ContainerSeesItsGroupAsTheRoot) {
  Put("proc/self/cgroup", "0::/\n");
  Put("sys/fs/cgroup/memory.max", "30000\n");
  Put("sys/fs/cgroup/memory.current", "10000\n");
  EXPECT_EQ(ReadMemoryLimit(root_).Available(), 20000u);
}

TEST_F(MemoryLimitTest, VersionOneOfControlGroups) {
  Put("proc/self/cgroup", "12:cpu,cpuacct:/x\n7:memory:/pod/c\n0::/\n");
  Put("sys/fs/cgroup/memory/pod/c/memory.limit_in_bytes", "40000\n");
  Put("sys/fs/cgroup/memory/pod/c/memory.usage_in_bytes", "50000\n");
  const MemoryLimit limit = ReadMemoryLimit(root_);
  EXPECT_EQ(limit.group_limit, 40000u);
  EXPECT_EQ(limit.Available(), 0u);
}

TEST_F(MemoryLimitTest, NothingReadableIsNoLimit) {
  EXPECT_EQ(ReadMemoryLimit((root_ / "nowhere").string()).Available(), UINT64_MAX);
}

}  // namespace
}  // namespace cairn::cache
