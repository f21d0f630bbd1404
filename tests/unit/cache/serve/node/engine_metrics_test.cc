#include "services/cache/serve/node/engine_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/cache/serve/rpc/fake_engine.h"
#include "tests/unit/cache/store/state/distinct_statistics.h"

namespace cairn::cache {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class EngineMetricsTest : public ::testing::Test {
 protected:
  std::string Scrape() {
    metrics::Registry registry;
    ExportEngine(&engine_, &registry);
    return registry.Scrape();
  }

  FakeEngine engine_;
};

// A line like `name{src="client",dst="host"} 7`.
std::string Series(const Statistic& row, std::string_view tier, double value) {
  std::string labels = tier.empty() ? "" : fmt::format("tier=\"{}\"", tier);
  for (std::string_view rest = row.labels; !rest.empty();) {
    const std::string_view pair = rest.substr(0, rest.find(','));
    const size_t equals = pair.find('=');
    labels += fmt::format("{}{}=\"{}\"", labels.empty() ? "" : ",", pair.substr(0, equals),
                          pair.substr(equals + 1));
    rest.remove_prefix(std::min(rest.size(), pair.size() + 1));
  }
  if (!labels.empty()) labels = "{" + labels + "}";
  return fmt::format("\n{}{} {:.0f}\n", row.metric, labels, value);
}

void ExpectShown(const std::string& scrape, const Statistic& row, std::string_view tier,
                 double value) {
  if (row.metric.empty()) return;
  const bool now = row.kind == StatisticKind::kNow || row.kind == StatisticKind::kRate;
  EXPECT_THAT(scrape, HasSubstr(Series(row, tier, value))) << row.name;
  EXPECT_THAT(scrape,
              HasSubstr(fmt::format("# TYPE {} {}\n", row.metric, now ? "gauge" : "counter")))
      << row.name;
  EXPECT_EQ(row.metric.ends_with("_total"), !now) << row.metric;
}

TEST_F(EngineMetricsTest, EachStatisticWithAMetricIsShown) {
  engine_.stats = testing::DistinctStatistics();
  const std::string scrape = Scrape();
  ForEachStatistic(engine_.stats, [&](const Statistic& row, auto value) {
    ExpectShown(scrape, row, "", static_cast<double>(value));
  });
  for (const TierKind tier : {TierKind::kHost, TierKind::kDisk}) {
    ForEachStatistic(*engine_.stats.tiers[tier], [&](const Statistic& row, auto value) {
      ExpectShown(scrape, row, Name(tier), static_cast<double>(value));
    });
  }
  for (size_t i = 1; i < kNodeMissReasonCount; ++i) {
    EXPECT_THAT(scrape,
                HasSubstr(fmt::format("cairn_miss_blocks_total{{reason=\"{}\"}} {}\n",
                                      Name(static_cast<MissReason>(i)), engine_.stats.misses[i])));
  }
  EXPECT_THAT(scrape, Not(HasSubstr("device")));
}

TEST_F(EngineMetricsTest, BytesBetweenTiersAreThoseOfTheDisk) {
  engine_.stats.tiers[TierKind::kDisk].emplace();
  engine_.stats.tiers[TierKind::kDisk]->read_bytes = 5;
  engine_.stats.tiers[TierKind::kDisk]->written_bytes = 6;
  const std::string scrape = Scrape();
  EXPECT_THAT(scrape, HasSubstr("cairn_transfer_bytes_total{src=\"disk\",dst=\"host\"} 5\n"));
  EXPECT_THAT(scrape, HasSubstr("cairn_transfer_bytes_total{src=\"host\",dst=\"disk\"} 6\n"));
}

TEST_F(EngineMetricsTest, ANodeWithoutADiskShowsItsTransfersAsZero) {
  EXPECT_THAT(Scrape(), HasSubstr("cairn_transfer_bytes_total{src=\"host\",dst=\"disk\"} 0\n"));
}

TEST_F(EngineMetricsTest, TheLargestTenantsHaveSeriesAndAllOthersShareOne) {
  const auto add = [this](const std::string& tenant, uint64_t bytes) {
    NamespaceInfo info;
    info.spec.tenant = tenant;
    info.bytes = bytes;
    info.blocks = 1;
    engine_.namespaces.push_back(info);
  };
  EXPECT_THAT(Scrape(), HasSubstr("cairn_tenant_bytes{tenant=\"other\"} 0\n"));
  for (uint64_t i = 1; i <= 40; ++i) add("tenant" + std::to_string(i), i * 1000);
  add("tenant1", 100'000);  // Has two namespaces, and is the largest now.
  add("other", 1'000'000);  // Its name says nothing.
  add("a\"b\n}", 200'000);  // Neither does this one.
  const std::string scrape = Scrape();
  EXPECT_THAT(scrape, HasSubstr("cairn_tenant_bytes{tenant=\"tenant1\"} 101000\n"));
  EXPECT_THAT(scrape, HasSubstr("cairn_tenant_blocks{tenant=\"tenant1\"} 2\n"));
  EXPECT_THAT(scrape, HasSubstr("cairn_tenant_bytes{tenant=\"a\\\"b\\n}\"} 200000\n"));
  size_t series = 0;
  for (size_t at = 0; (at = scrape.find("cairn_tenant_bytes{", at)) != std::string::npos; ++at) {
    ++series;
  }
  // `other` is one of the 32 largest by itself.
  EXPECT_EQ(series, 32u);
  // tenant12 is the smallest of those that are shown.
  EXPECT_THAT(scrape, HasSubstr("{tenant=\"tenant12\"} 12000\n"));
  EXPECT_THAT(scrape, Not(HasSubstr("tenant11")));
  // 2 to 11.
  EXPECT_THAT(scrape, HasSubstr("cairn_tenant_bytes{tenant=\"other\"} 1065000\n"));
}

TEST_F(EngineMetricsTest, RowsWithTheSameMetricShareItsHelp) {
  const std::string scrape = Scrape();
  const std::string help = "# HELP cairn_transfer_bytes_total ";
  const size_t at = scrape.find(help);
  ASSERT_NE(at, std::string::npos);
  EXPECT_THAT(scrape.substr(at), ::testing::StartsWith(help + "Bytes moved between two places.\n"));
  EXPECT_EQ(scrape.find(help, at + 1), std::string::npos);
  EXPECT_THAT(scrape, HasSubstr("# HELP cairn_leases Leases that clients hold.\n"));
}

}  // namespace
}  // namespace cairn::cache
