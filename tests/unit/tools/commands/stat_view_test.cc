#include "tools/cairn/commands/stat_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn::cli {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

client::NodeStats SomeStats() {
  client::NodeStats stats;
  stats.node_id = "n1";
  stats.version = "0.1.0";
  stats.disk_io_mode = "direct";
  stats.tiers = {{.tier = client::TierKind::kHost,
                  .capacity_bytes = 1 << 30,
                  .used_bytes = 1 << 29,
                  .blocks = 340,
                  .read_bytes = 0,
                  .written_bytes = 0,
                  .evicted_blocks = 0},
                 {.tier = client::TierKind::kDisk,
                  .capacity_bytes = 1ULL << 34,
                  .used_bytes = 1 << 29,
                  .blocks = 340,
                  .read_bytes = 5,
                  .written_bytes = 7,
                  .evicted_blocks = 0}};
  stats.matched_tokens = 3000;
  stats.missed_tokens = 1000;
  stats.misses[static_cast<size_t>(client::MissReason::kEvicted)] = 17;
  stats.leases = 2;
  return stats;
}

TEST(StatViewTest, TextShowsTiersHitsAndReasons) {
  const std::string text = StatText(SomeStats(), {}, {});
  EXPECT_THAT(text, HasSubstr("disk (direct I/O)"));
  EXPECT_THAT(text, HasSubstr("50.0 %"));
  EXPECT_THAT(text, HasSubstr("3,000 (75.0 %)"));
  EXPECT_THAT(text, HasSubstr("evicted"));
  EXPECT_THAT(text, HasSubstr("17"));
}

TEST(StatViewTest, HostTierShowsNoBytesReadOrWritten) {
  client::NodeStats stats = SomeStats();
  stats.tiers.resize(1);
  stats.tiers[0].read_bytes = 12345;
  const std::string text = StatText(stats, {}, {});
  const size_t row = text.find("host");
  ASSERT_NE(row, std::string::npos);
  EXPECT_THAT(text.substr(row, text.find('\n', row) - row),
              ContainsRegex("340 [^0-9]+ - [^0-9]+ - [^0-9]+ 0 "));
  EXPECT_EQ(StatJson(stats, {})["tiers"]["host"]["read_bytes"], 12345);
}

TEST(StatViewTest, ANodeWithoutMissesShowsNoTableOfThem) {
  EXPECT_THAT(StatText({}, {}, {}), Not(HasSubstr("missed because")));
}

TEST(StatViewTest, JsonHasEveryMissReason) {
  const Json without = StatJsonWithout(SomeStats(), "no administrator");
  EXPECT_TRUE(without["namespaces"].is_null());
  EXPECT_TRUE(without["tenants"].is_null());
  EXPECT_EQ(without["namespaces_left_out"], "no administrator");
  EXPECT_TRUE(StatJson(SomeStats(), {})["namespaces"].is_array());
  const Json json = StatJson(SomeStats(), {});
  EXPECT_EQ(json["misses"]["evicted"], 17);
  EXPECT_EQ(json["misses"].size(), client::kNodeMissReasonCount - 1);
  EXPECT_EQ(json["tiers"]["disk"]["blocks"], 340);
  EXPECT_EQ(json["leases"], 2);
}

TEST(StatViewTest, JsonHasEveryStatistic) {
  client::NodeStats stats = SomeStats();
  uint32_t next = 0;
  ForEachStatistic(stats, [&](const Statistic&, auto& value) { value = ++next; });
  ForEachStatistic(stats.tiers[1], [&](const Statistic&, auto& value) { value = ++next; });
  const Json json = StatJson(stats, {});
  ForEachStatistic(stats, [&](const Statistic& row, auto value) {
    if (row.name == "namespaces") return;  // Listed instead.
    EXPECT_EQ(json[std::string(row.name)], value) << row.name;
  });
  ForEachStatistic(stats.tiers[1], [&](const Statistic& row, auto value) {
    EXPECT_EQ(json["tiers"]["disk"][std::string(row.name)], value) << row.name;
  });
}

TEST(StatViewTest, NamespacesAreListed) {
  client::NamespaceInfo ns;
  ns.spec.model = "some-model";
  ns.blocks = 12;
  const std::vector<client::NamespaceInfo> list = {ns};
  EXPECT_THAT(StatText(SomeStats(), list, {}), HasSubstr("some-model"));
  EXPECT_EQ(StatJson(SomeStats(), list)["namespaces"][0]["blocks"], 12);
}

TEST(StatViewTest, TheLifeOfBlocksIsShown) {
  std::vector<client::NamespaceInfo> list(2);
  list[0].spec.recipe = "raw";
  list[0].block_life = std::chrono::hours(24);
  list[1].spec.recipe = "int8";
  const std::string text = StatText(SomeStats(), list, {});
  EXPECT_THAT(text, AllOf(HasSubstr("life of a block"), ContainsRegex("raw [^\n]* 1d"),
                          ContainsRegex("int8 [^\n]* -")));
  EXPECT_EQ(StatJson(SomeStats(), list)["namespaces"][0]["block_life_seconds"], 86400.0);
}

TEST(StatViewTest, PoolsAreListedUnderTheirNames) {
  client::NamespaceInfo ns;
  ns.spec.layout.form = OpaqueLayout{
      .description = "engine", .pools = {{"full", 16, 1, 9, true}, {"state", 544, 2, 9, false}}};
  EXPECT_THAT(StatText(SomeStats(), std::span(&ns, 1), {}), Not(HasSubstr("544 tokens")));
  ns.pools = {{.blocks = 34, .bytes = 4096}, {.blocks = 7, .bytes = 8192}};
  EXPECT_THAT(StatText(SomeStats(), std::span(&ns, 1), {}),
              AllOf(ContainsRegex("full [^\n]* 16 tokens [^\n]*34"),
                    ContainsRegex("state [^\n]* 544 tokens [^\n]*7")));
  const Json json = StatJson(SomeStats(), std::span(&ns, 1))["namespaces"][0]["pools"];
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[1]["pool"], "state");
  EXPECT_EQ(json[1]["block_tokens"], 544);
  EXPECT_EQ(json[1]["blocks"], 7);
  EXPECT_EQ(json[0]["bytes"], 4096);
}

TEST(StatViewTest, WhatPlacementLearnedIsShown) {
  client::NamespaceInfo ns;
  EXPECT_THAT(StatText(SomeStats(), std::span(&ns, 1), {}), Not(HasSubstr("learned group")));
  ns.remembered_blocks = 77;
  ns.learned = {
      {.name = "turn 1, 8 to 15 new blocks", .uses = 20, .block_seconds = 4000, .blocks = 9}};
  EXPECT_THAT(StatText(SomeStats(), std::span(&ns, 1), {}),
              AllOf(HasSubstr("turn 1, 8 to 15 new blocks"), HasSubstr("200")));
  const Json json = StatJson(SomeStats(), std::span(&ns, 1))["namespaces"][0];
  EXPECT_EQ(json["remembered_blocks"], 77);
  EXPECT_EQ(json["learned"][0]["group"], "turn 1, 8 to 15 new blocks");
  EXPECT_EQ(json["learned"][0]["blocks"], 9);
}

TEST(StatViewTest, FiguresAreSummedByTenant) {
  std::vector<client::NamespaceInfo> list(3);
  list[0].spec.tenant = list[1].spec.tenant = "team-a";
  list[2].spec.tenant = "team-b";
  for (client::NamespaceInfo& ns : list) {
    ns.blocks = 7;
    ns.host_blocks = 5;
    ns.evicted_host_blocks = 1000;
    ns.evicted_host_bytes = 4096;
  }
  list[0].tenant_host_bytes = list[1].tenant_host_bytes = 64 << 20;
  const Json json = StatJson(SomeStats(), list);
  ASSERT_EQ(json["tenants"].size(), 2u);
  const Json& a = json["tenants"][0];
  EXPECT_EQ(a["tenant"], "team-a");
  EXPECT_EQ(a["namespaces"], 2);
  EXPECT_EQ(a["blocks"], 14);
  EXPECT_EQ(a["host_blocks"], 10);
  EXPECT_EQ(a["own_host_bytes"], 64 << 20) << "of the tenant, not of each namespace";
  EXPECT_EQ(a["evicted_host_blocks"], 2000);
  EXPECT_EQ(a["evicted_host_bytes"], 8192);
  EXPECT_EQ(json["tenants"][1]["own_host_bytes"], 0);
  EXPECT_THAT(StatText(SomeStats(), list, {}), HasSubstr("evicted from RAM"));
}

TEST(StatViewTest, LimitsOfTenantsAreShown) {
  std::vector<client::NamespaceInfo> list(2);
  list[0].spec.tenant = "free";
  list[0].tenant_room = {{.tier = TierKind::kHost, .bytes = 123}};
  EXPECT_THAT(StatText(SomeStats(), list, {}), Not(HasSubstr("guaranteed")));
  list[1].spec.tenant = "team";
  list[1].tenant_room = {{.tier = TierKind::kHost, .bytes = 3 << 20, .most = 4 << 20},
                         {.tier = TierKind::kDisk, .bytes = 5 << 20, .guaranteed = 6 << 20}};
  EXPECT_THAT(StatText(SomeStats(), list, {}),
              AllOf(HasSubstr("guaranteed"), HasSubstr("4.00 MiB"), HasSubstr("6.00 MiB")));
  const Json tenants = StatJson(SomeStats(), list)["tenants"];
  EXPECT_EQ(tenants[0]["room"]["host"]["bytes"], 123);
  EXPECT_TRUE(tenants[0]["room"]["host"]["limit"].is_null());
  EXPECT_EQ(tenants[1]["room"]["host"]["limit"], 4 << 20);
  EXPECT_EQ(tenants[1]["room"]["disk"]["guaranteed"], 6 << 20);
}

}  // namespace
}  // namespace cairn::cli
