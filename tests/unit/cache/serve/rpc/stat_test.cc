// The engine's counts arrive at a client.

#include <map>

#include "cairn/client/connect.h"
#include "common/status/matchers.h"
#include "tests/unit/cache/serve/rpc/service_fixture.h"
#include "tests/unit/cache/store/state/distinct_statistics.h"

namespace cairn::cache {
namespace {

template <typename Stats>
std::map<std::string, double> Values(const Stats& stats) {
  std::map<std::string, double> values;
  ForEachStatistic(stats, [&](const Statistic& row, auto value) {
    values[std::string(row.name)] = static_cast<double>(value);
  });
  return values;
}

TEST_F(ServiceTest, EachStatisticOfTheEngineArrivesAtAClient) {
  const EngineStats sent = testing::DistinctStatistics();
  {
    MutexLock lock(engine.mu);
    engine.stats = sent;
  }
  const auto connected = client::Connect({.address = address, .path = client::PathChoice::kGrpc});
  ASSERT_OK(connected);
  const Result<client::NodeStats> got = (*connected)->Stat({.deadline = std::chrono::seconds(60)});
  ASSERT_OK(got);
  EXPECT_EQ(Values<NodeStatistics>(*got), Values<NodeStatistics>(sent));
  EXPECT_EQ(got->node_id, sent.node_id);
  EXPECT_EQ(got->node_epoch, sent.node_epoch);
  EXPECT_EQ(got->uptime_seconds, sent.uptime_seconds);
  EXPECT_EQ(got->disk_io_mode, sent.disk_io_mode);
  EXPECT_FALSE(got->version.empty());
  EXPECT_FALSE(got->draining);
  for (size_t i = 0; i < kNodeMissReasonCount; ++i) EXPECT_EQ(got->misses[i], sent.misses[i]) << i;
  ASSERT_EQ(got->tiers.size(), 2u);
  for (const TierStat& tier : got->tiers) {
    EXPECT_EQ(Values(tier), Values<TierStat>(*sent.tiers[tier.tier])) << Name(tier.tier);
  }
  EXPECT_EQ(got->tiers[0].tier, TierKind::kHost);
  EXPECT_EQ(got->tiers[1].tier, TierKind::kDisk);
}

TEST_F(ServiceTest, StatSaysThatTheNodeDrains) {
  const auto connected = client::Connect({.address = address, .path = client::PathChoice::kGrpc});
  ASSERT_OK(connected);
  rpc.draining = true;
  const auto got = (*connected)->Stat({.deadline = std::chrono::seconds(60)});
  ASSERT_OK(got);
  EXPECT_TRUE(got->draining);
}

}  // namespace
}  // namespace cairn::cache
