#include "services/cache/store/tier/extent_allocator.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace cairn::cache {
namespace {

TEST(ExtentAllocatorTest, FillsASegmentWithoutWaste) {
  ExtentAllocator allocator({100});
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(allocator.Reserve(10)) << i;
  EXPECT_FALSE(allocator.Reserve(1));
  EXPECT_EQ(allocator.used_pages(), 100u);
  EXPECT_EQ(allocator.largest_free_pages(), 0u);
  allocator.CheckConsistency();
}

TEST(ExtentAllocatorTest, RunsNeverSpanSegments) {
  ExtentAllocator allocator({64, 64, 10});
  EXPECT_FALSE(allocator.Reserve(65));
  EXPECT_EQ(allocator.largest_free_pages(), 64u);
  for (int i = 0; i < 2; ++i) {
    const auto page = allocator.Reserve(40);
    ASSERT_TRUE(page);
    EXPECT_EQ(*page / 64, (*page + 39) / 64);
  }
  EXPECT_FALSE(allocator.Reserve(40));
  EXPECT_TRUE(allocator.Reserve(10));
}

TEST(ExtentAllocatorTest, LowestAddressesFirst) {
  ExtentAllocator allocator({64, 64, 64});
  EXPECT_EQ(allocator.Reserve(8), 0u);
  EXPECT_EQ(allocator.Reserve(8), 8u);
}

TEST(ExtentAllocatorTest, NeighboursMergeInEveryOrder) {
  const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  for (const auto& order : orders) {
    ExtentAllocator allocator({30});
    uint32_t pages[3];
    for (auto& page : pages) page = *allocator.Reserve(10);
    for (int i : order) {
      allocator.Release(pages[i], 10);
      allocator.CheckConsistency();
    }
    EXPECT_EQ(allocator.largest_free_pages(), 30u);
    EXPECT_EQ(allocator.empty_segments(), 1u);
  }
}

TEST(ExtentAllocatorTest, EmptySegmentsAreSplitLast) {
  ExtentAllocator allocator({64, 64});
  const auto first = *allocator.Reserve(60);
  EXPECT_EQ(allocator.empty_segments(), 1u);
  // Fits the rest of the first segment, so the second one stays whole.
  EXPECT_TRUE(allocator.Reserve(4));
  EXPECT_EQ(allocator.empty_segments(), 1u);
  allocator.Release(first, 60);
  EXPECT_TRUE(allocator.Reserve(50));
  EXPECT_EQ(allocator.empty_segments(), 1u);
}

TEST(ExtentAllocatorTest, NoSizeStarvesAnother) {
  ExtentAllocator allocator({64});
  const auto small = *allocator.Reserve(1);
  EXPECT_TRUE(allocator.Reserve(17));
  EXPECT_TRUE(allocator.Reserve(33));
  EXPECT_TRUE(allocator.Reserve(13));
  EXPECT_FALSE(allocator.Reserve(1));
  allocator.Release(small, 1);
  EXPECT_TRUE(allocator.Reserve(1));
}

TEST(ExtentAllocatorTest, FindsTheOneRunOfItsClassThatFits) {
  // Runs of 64 and 71 pages share a class: only one of many is long enough.
  ExtentAllocator allocator({40 * 65 + 72});
  std::vector<uint32_t> short_runs;
  const auto fit = *allocator.Reserve(71);
  ASSERT_TRUE(allocator.Reserve(1));
  for (int i = 0; i < 40; ++i) {
    short_runs.push_back(*allocator.Reserve(64));
    ASSERT_TRUE(allocator.Reserve(1));
  }
  allocator.Release(fit, 71);
  for (uint32_t page : short_runs) allocator.Release(page, 64);
  EXPECT_EQ(allocator.Reserve(70), fit);
}

TEST(ExtentAllocatorTest, KnowsWhatIsReserved) {
  ExtentAllocator allocator({64});
  const auto a = *allocator.Reserve(10);
  const auto b = *allocator.Reserve(10);
  EXPECT_TRUE(allocator.IsReserved(a, 10));
  EXPECT_FALSE(allocator.IsReserved(a, 9));
  EXPECT_FALSE(allocator.IsReserved(a + 1, 9));
  EXPECT_FALSE(allocator.IsReserved(a + 9, 1));
  EXPECT_FALSE(allocator.IsReserved(1000, 1));
  allocator.Release(a, 10);
  EXPECT_FALSE(allocator.IsReserved(a, 10));
  allocator.Release(b, 10);
  EXPECT_FALSE(allocator.IsReserved(b, 10));
  // Reserved again as part of a longer run.
  ASSERT_TRUE(allocator.Reserve(30));
  EXPECT_FALSE(allocator.IsReserved(b, 10));
}

TEST(ExtentAllocatorDeathTest, DoubleReleaseAborts) {
  ExtentAllocator allocator({64});
  const auto page = *allocator.Reserve(4);
  allocator.Release(page, 4);
  EXPECT_DEATH(allocator.Release(page, 4), "IsReserved");
}

// Random operations against a map of what is taken.
TEST(ExtentAllocatorTest, ModelOfRandomOperations) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 rng(seed);
    const std::vector<uint32_t> segments = {512, 512, 300, 1};
    ExtentAllocator allocator(segments);
    std::map<uint32_t, uint32_t> taken;
    uint64_t used = 0;
    for (int step = 0; step < 3000; ++step) {
      if (taken.empty() || rng() % 100 < 55) {
        const auto pages = static_cast<uint32_t>(rng() % 8 == 0 ? 1 + rng() % 300 : 1 + rng() % 20);
        const uint32_t largest = allocator.largest_free_pages();
        const auto page = allocator.Reserve(pages);
        ASSERT_EQ(page.has_value(), pages <= largest);
        if (!page) continue;
        const auto after = taken.lower_bound(*page);
        ASSERT_TRUE(after == taken.end() || *page + pages <= after->first);
        ASSERT_TRUE(after == taken.begin() ||
                    std::prev(after)->first + std::prev(after)->second <= *page);
        taken[*page] = pages;
        used += pages;
      } else {
        auto it = taken.begin();
        std::advance(it, rng() % taken.size());
        allocator.Release(it->first, it->second);
        used -= it->second;
        taken.erase(it);
      }
      ASSERT_EQ(allocator.used_pages(), used);
      if (step % 100 == 0) allocator.CheckConsistency();
    }
    for (const auto& [page, pages] : taken) allocator.Release(page, pages);
    allocator.CheckConsistency();
    EXPECT_EQ(allocator.empty_segments(), segments.size());
  }
}

}  // namespace
}  // namespace cairn::cache
