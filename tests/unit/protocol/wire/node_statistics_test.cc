#include "protocol/wire/node_statistics.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace cairn::wire {
namespace {

template <typename Stats>
std::map<std::string, double> Values(const Stats& stats) {
  std::map<std::string, double> values;
  ForEachStatistic(stats, [&](const Statistic& row, auto value) {
    values[std::string(row.name)] = static_cast<double>(value);
  });
  return values;
}

// Gives each row a number of its own.
template <typename Stats>
void Number(Stats* stats) {
  uint32_t next = 0;
  ForEachStatistic(*stats, [&](const Statistic&, auto& value) { value = ++next; });
}

TEST(NodeStatisticsTest, EachRowCrossesTheWire) {
  NodeStatistics sent;
  Number(&sent);
  sent.node_id = "node";
  sent.node_epoch = 7;
  sent.uptime_seconds = 8.5;
  sent.disk_io_mode = "io_uring/direct";
  for (size_t i = 1; i < kNodeMissReasonCount; ++i) sent.misses[i] = 100 + i;
  v1::StatResponse message;
  ToProto(sent, &message);
  NodeStatistics got;
  FromProto(message, &got);
  EXPECT_EQ(Values(got), Values(sent));
  EXPECT_GE(Values(got).size(), 20u);
  EXPECT_EQ(got.node_id, "node");
  EXPECT_EQ(got.node_epoch, 7u);
  EXPECT_EQ(got.uptime_seconds, 8.5);
  EXPECT_EQ(got.disk_io_mode, "io_uring/direct");
  EXPECT_TRUE(std::equal(std::begin(got.misses), std::end(got.misses), std::begin(sent.misses)));
}

// Old and new nodes and clients talk to each other.
TEST(NodeStatisticsTest, TheFieldsHaveTheNumbersThatTheyHadBefore) {
  const auto* message = v1::StatResponse::descriptor();
  const std::map<std::string, int> numbers = {
      {"namespaces", 6},          {"blocks", 7},
      {"incomplete_blocks", 8},   {"leases", 9},
      {"reservations", 10},       {"reserved_bytes", 11},
      {"sessions", 12},           {"unflushed_bytes", 13},
      {"index_bytes", 14},        {"matched_tokens", 15},
      {"missed_tokens", 16},      {"fetched_bytes", 17},
      {"pushed_bytes", 18},       {"fetched_host_bytes", 19},
      {"fetched_disk_bytes", 20}, {"prefill_seconds_saved", 23},
      {"promoted_blocks", 24},    {"corrupt_blocks", 25},
      {"prefetched_blocks", 27},  {"prefetched_used_blocks", 28}};
  for (const auto& [name, number] : numbers) {
    const auto* field = message->FindFieldByName(name);
    ASSERT_NE(field, nullptr) << name;
    EXPECT_EQ(field->number(), number) << name;
    EXPECT_TRUE(Values(NodeStatistics()).contains(name)) << name;
  }
}

TEST(NodeStatisticsTest, EachRowOfATierCrossesTheWire) {
  TierStat sent;
  Number(&sent);
  sent.tier = TierKind::kDisk;
  v1::TierStat message;
  ToProto(sent, &message);
  const std::optional<TierStat> got = FromProto(message);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->tier, TierKind::kDisk);
  EXPECT_EQ(Values(*got), Values(sent));
}

TEST(NodeStatisticsTest, ATierThatThisVersionDoesNotKnowIsNone) {
  v1::TierStat message;
  message.set_tier(static_cast<v1::TierKind>(42));
  EXPECT_FALSE(FromProto(message));
}

}  // namespace
}  // namespace cairn::wire
