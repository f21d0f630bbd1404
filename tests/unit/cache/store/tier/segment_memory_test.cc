#include "services/cache/store/tier/segment_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "common/status/matchers.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace cairn::cache {
namespace {

constexpr uint64_t kBytes = 1 << 20;

class SegmentMemoryTest : public ::testing::Test {
 protected:
  SegmentMemoryTest() : fd_(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    EXPECT_EQ(ftruncate(fd_, kBytes), 0);
    own_ = static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0));
    EXPECT_NE(own_, MAP_FAILED);
    std::memset(own_, 'x', kBytes);
  }
  ~SegmentMemoryTest() override {
    munmap(own_, kBytes);
    if (fd_ >= 0) close(fd_);
  }
  int Give() { return *OpenForOthers(fd_); }

  int fd_;
  char* own_;
};

TEST_F(SegmentMemoryTest, TheKernelKnowsWhoHoldsIt) {
  EXPECT_FALSE(MayBeHeldByOthers(fd_)) << "the own descriptor and mapping do not count";
  const int given = Give();
  EXPECT_TRUE(MayBeHeldByOthers(fd_));
  const int copy = dup(given);
  close(given);
  EXPECT_TRUE(MayBeHeldByOthers(fd_)) << "a copy of the descriptor";
  void* map = mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, copy, 0);
  close(copy);
  EXPECT_TRUE(MayBeHeldByOthers(fd_)) << "a mapping without a descriptor";
  munmap(map, kBytes);
  EXPECT_FALSE(MayBeHeldByOthers(fd_));
}

TEST_F(SegmentMemoryTest, PunchedMemoryIsZeroUnlessItIsSealed) {
  ASSERT_TRUE(PunchAll(fd_, kBytes));
  for (uint64_t i = 0; i < kBytes; ++i) ASSERT_EQ(own_[i], 0);
  std::memset(own_, 'y', kBytes);
  ASSERT_EQ(fcntl(fd_, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
  EXPECT_FALSE(PunchAll(fd_, kBytes));
  EXPECT_EQ(own_[0], 'y');
}

TEST_F(SegmentMemoryTest, RetiredMemoryIsBoundedAndForgotten) {
  const int given = Give();
  RetiredMemories retired;
  retired.set_limit(kBytes);
  ASSERT_TRUE(retired.Take(kBytes));
  retired.Add(std::exchange(fd_, -1), kBytes);
  EXPECT_FALSE(retired.HasRoom(1));
  EXPECT_FALSE(retired.Take(1)) << "somebody holds it";
  EXPECT_EQ(retired.bytes(), kBytes);
  close(given);
  EXPECT_TRUE(retired.Take(kBytes)) << "nobody does, as the kernel says";
  retired.GiveBack(kBytes);
  EXPECT_EQ(retired.bytes(), 0u);
}

}  // namespace
}  // namespace cairn::cache
