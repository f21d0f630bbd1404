#include "services/cache/store/placement/group_memory.h"

#include <gtest/gtest.h>

#include "cairn/common/hash.h"

namespace cairn::cache {
namespace {

uint64_t HashOf(uint64_t n) {
  n *= 0x9e3779b97f4a7c15ull;
  n = (n ^ (n >> 29)) * 0xbf58476d1ce4e5b9ull;
  return n ^ (n >> 32);
}

TEST(GroupMemoryTest, RemembersWhatWasPutAndForgetsWhatWasTaken) {
  GroupMemory memory;
  EXPECT_FALSE(memory.Put(HashOf(1), 5, 7, 2, 5).has_value());
  EXPECT_FALSE(memory.Take(HashOf(1)).has_value()) << "it has no room yet";
  memory.Fit(1000);
  EXPECT_FALSE(memory.Put(HashOf(1), 5, 7, 2, 5).has_value());
  EXPECT_EQ(memory.size(), 1u);
  const auto found = memory.Take(HashOf(1));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->slot, 5);
  EXPECT_EQ(found->group, 7);
  EXPECT_EQ(found->uses, 2);
  EXPECT_FALSE(memory.Take(HashOf(1)).has_value());
  EXPECT_EQ(memory.size(), 0u);
}

TEST(GroupMemoryTest, AFullBucketForgetsTheOldestAndSaysSo) {
  GroupMemory memory;
  memory.Fit(8);
  ASSERT_EQ(memory.room(), 8u);
  // Slots wrap: 65,530 is older than 3.
  for (uint16_t i = 0; i < 8; ++i) {
    const auto slot = static_cast<uint16_t>(65530 + i);
    EXPECT_FALSE(memory.Put(HashOf(i), slot, 1, 0, slot).has_value());
  }
  const auto forgotten = memory.Put(HashOf(100), 3, 1, 0, 3);
  ASSERT_TRUE(forgotten.has_value());
  EXPECT_EQ(forgotten->slot, 65530);
  EXPECT_FALSE(memory.Take(HashOf(0)).has_value());
  EXPECT_TRUE(memory.Take(HashOf(1)).has_value());
}

TEST(GroupMemoryTest, GrowsWithoutForgetting) {
  GroupMemory memory;
  memory.Fit(8);
  for (uint64_t i = 0; i < 4; ++i) (void)memory.Put(HashOf(i), 1, static_cast<uint8_t>(i), 0, 1);
  memory.Fit(10'000);
  for (uint64_t i = 0; i < 4; ++i) {
    const auto found = memory.Take(HashOf(i));
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->group, i);
  }
}

}  // namespace
}  // namespace cairn::cache
