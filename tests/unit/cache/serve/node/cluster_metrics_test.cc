#include "services/cache/serve/node/cluster_metrics.h"

#include <gmock/gmock.h>

#include "common/membership/static_discovery.h"
#include "services/cache/cluster/peer/testing/fake_peers.h"
#include "tests/simulation/cluster/light_engine.h"

namespace cairn::cache {
namespace {

using cairn::testing::LightEngine;
using ::testing::HasSubstr;

class ClusterMemoryTest : public ::testing::Test {
 protected:
  static Cluster::Options OptionsOf() {
    Cluster::Options options;
    options.self.caller = {.cluster = "test", .id = "self", .incarnation = 1};
    return options;
  }
  void SetUp() override {
    ns_.spec.layout.block_tokens = 512;  // Each block is a waymark.
    engine_.Know(ns_);
    cluster_.Attach(&engine_);
    ExportCluster(&cluster_, &discovery_, &account_, &registry_);
  }
  void TearDown() override { cluster_.Detach(); }
  void TickOften() {
    for (int i = 0; i < 100; ++i) cluster_.Tick();
  }
  uint64_t Used() {
    (void)registry_.Scrape();
    return account_.used(MemoryItem::kCluster);
  }

  cairn::testing::SimulatedNamespace ns_{.spec = {}, .fingerprint = Sha256::Of("namespace")};
  FakeClock clock_;
  ManualExecutor executor_;
  Timers timers_{&clock_};
  testing::FakePeers links_{&clock_};
  LightEngine engine_{{.capacity_blocks = 20'000}, &clock_, nullptr, 1, [](const std::string&) {}};
  membership::StaticDiscovery discovery_{{"a:1"}, &clock_};
  Cluster cluster_{
      OptionsOf(),
      {.links = &links_, .timers = &timers_, .executor = &executor_, .clock = &clock_}};
  MemoryAccount account_{MemoryAccount::Unbounded()};
  metrics::Registry registry_;
};

TEST_F(ClusterMemoryTest, WhatTheClusterRemembersIsMeasured) {
  TickOften();
  const uint64_t empty = Used();
  EXPECT_GT(empty, 0u);
  EXPECT_LT(empty, 1u << 20);
  std::vector<BlockKey> keys;
  for (int i = 0; i < 10'000; ++i) keys.push_back(Sha256::Of(std::to_string(i)));
  engine_.Store(ns_, keys);
  TickOften();
  EXPECT_EQ(cluster_.view().waymarks, keys.size());
  // The node owns its waymarks itself: they are there as its own, and in its directory.
  const uint64_t full = Used();
  EXPECT_GT(full - empty, keys.size() * 25);
  EXPECT_LT(full - empty, keys.size() * 250);
  EXPECT_EQ(full, cluster_.bytes());
}

TEST_F(ClusterMemoryTest, WrongBytesHaveASeriesBeforeThereAreAny) {
  const std::string text = registry_.Scrape();
  EXPECT_THAT(text, HasSubstr("cairn_cluster_wrong_reads_total 0"));
  EXPECT_THAT(text, HasSubstr("cairn_cluster_members{state=\"sent_wrong\"} 0"));
}

}  // namespace
}  // namespace cairn::cache
