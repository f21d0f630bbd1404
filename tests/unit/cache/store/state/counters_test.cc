#include "services/cache/store/state/counters.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace cairn::cache {
namespace {

bool IsCounted(StatisticKind kind) {
  return kind == StatisticKind::kCounted || kind == StatisticKind::kCountedSeconds;
}

void Count(Counter& counter, uint64_t n) { counter.Add(n); }
void Count(SecondsCounter& counter, uint64_t n) { counter.Add(static_cast<double>(n)); }

// Fills in the names of the counters that are there, and counts a number of its own on each.
#define CAIRN_COUNT(kind, name, ...) \
  CAIRN_IF_COUNTED(kind, Count(counters.name, ++last); expected[#name] = static_cast<double>(last);)
#define CAIRN_COUNT_IN_HOST(kind, name, ...)                            \
  CAIRN_IF_COUNTED(kind, Count(counters.name[TierKind::kHost], ++last); \
                   expected[#name] = static_cast<double>(last);)

TEST(CountersTest, EachCountArrivesInItsStatistic) {
  Counters counters;
  uint64_t last = 0;
  std::map<std::string, double> expected;
  CAIRN_NODE_STATISTICS(CAIRN_COUNT)
  CAIRN_ENGINE_STATISTICS(CAIRN_COUNT)
  EngineStats stats;
  counters.CopyTo(&stats);
  ForEachStatistic(stats, [&](const Statistic& row, auto value) {
    const std::string name(row.name);
    EXPECT_EQ(expected.contains(name), IsCounted(row.kind)) << name;
    EXPECT_DOUBLE_EQ(static_cast<double>(value), expected[name]) << name;
  });
}

TEST(CountersTest, EachCountOfATierArrivesInThatTier) {
  Counters counters;
  uint64_t last = 0;
  std::map<std::string, double> expected;
  CAIRN_TIER_STATISTICS(CAIRN_COUNT_IN_HOST)
  CAIRN_ENGINE_TIER_STATISTICS(CAIRN_COUNT_IN_HOST)
  EngineStats stats;
  stats.tiers[TierKind::kHost].emplace();
  stats.tiers[TierKind::kDisk].emplace();
  counters.CopyTo(&stats);
  ForEachStatistic(*stats.tiers[TierKind::kHost], [&](const Statistic& row, auto value) {
    EXPECT_DOUBLE_EQ(static_cast<double>(value), expected[std::string(row.name)]) << row.name;
  });
  ForEachStatistic(*stats.tiers[TierKind::kDisk], [](const Statistic& row, auto value) {
    EXPECT_EQ(static_cast<double>(value), 0) << row.name;
  });
  EXPECT_FALSE(stats.tiers[TierKind::kDevice]);
  EXPECT_GE(last, 2u);
}

TEST(CountersTest, FetchedBytesAndMissesArriveByTierAndReason) {
  Counters counters;
  counters.fetched_from[TierKind::kHost].Add(3);
  counters.fetched_from[TierKind::kDisk].Add(4);
  for (size_t i = 0; i < kNodeMissReasonCount; ++i) counters.misses[i].Add(10 + i);
  EngineStats stats;
  counters.CopyTo(&stats);
  EXPECT_EQ(stats.fetched_host_bytes, 3u);
  EXPECT_EQ(stats.fetched_disk_bytes, 4u);
  for (size_t i = 0; i < kNodeMissReasonCount; ++i) EXPECT_EQ(stats.misses[i], 10 + i);
}

}  // namespace
}  // namespace cairn::cache
