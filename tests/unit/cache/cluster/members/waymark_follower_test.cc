#include "services/cache/cluster/members/waymark_follower.h"

#include <gmock/gmock.h>

#include <set>

#include "tests/simulation/cluster/light_engine.h"

namespace cairn::cache {
namespace {

using cairn::testing::SimulatedNamespace;

SimulatedNamespace NamespaceOf(std::string_view name, uint32_t block_tokens) {
  SimulatedNamespace ns{.spec = {}, .fingerprint = Sha256::Of(name)};
  ns.spec.layout.block_tokens = block_tokens;
  return ns;
}

class WaymarkFollowerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    announcer_.SetOwners(std::make_shared<const OwnerMap>(std::vector<std::string>{"owner"}));
    while (!announcer_.Step()) {
    }
    engine_.Know(ns_);
  }
  static std::vector<BlockKey> Keys(int first, int end) {
    std::vector<BlockKey> keys;
    for (int n = first; n < end; ++n) keys.push_back(Sha256::Of(std::to_string(n)));
    return keys;
  }
  void Follow() {
    while (follower_.Step()) {
    }
  }
  // The owner's knowledge after all that it was told.
  const std::set<WaymarkHash>& Told() {
    while (const auto message = announcer_.Next("owner")) {
      if (message->begins) told_.clear();
      for (const AnnouncedWaymark& add : message->adds) EXPECT_TRUE(told_.insert(add.hash).second);
      for (const WaymarkHash hash : message->removes) EXPECT_EQ(told_.erase(hash), 1u);
    }
    return told_;
  }
  std::set<WaymarkHash> Hashes(const std::vector<BlockKey>& keys) const {
    std::set<WaymarkHash> hashes;
    for (const BlockKey& key : keys) hashes.insert(HashForWaymark(ns_.fingerprint, key));
    return hashes;
  }

  const SimulatedNamespace ns_ = NamespaceOf("namespace", 512);
  FakeClock clock_;
  cairn::testing::LightEngine engine_{
      {.capacity_blocks = 30, .events = 20}, &clock_, nullptr, 1, [](const std::string&) {}};
  Announcer announcer_{{}};
  WaymarkFollower follower_{&engine_, &announcer_, &clock_};
  std::set<WaymarkHash> told_;
};

TEST_F(WaymarkFollowerTest, WhatIsStoredAndEvictedIsTold) {
  engine_.Store(ns_, Keys(0, 10));
  Follow();
  EXPECT_EQ(Told(), Hashes(Keys(0, 10)));
  engine_.Store(ns_, Keys(10, 15));
  Follow();
  EXPECT_EQ(Told(), Hashes(Keys(0, 15)));
  EXPECT_EQ(follower_.restarts(), 0u);
}

TEST_F(WaymarkFollowerTest, OnlyWaymarksAreTold) {
  const SimulatedNamespace other = NamespaceOf("small blocks", 64);
  engine_.Know(other);
  const std::vector<BlockKey> keys = Keys(0, 30);
  engine_.Store(other, keys);
  Follow();
  size_t waymarks = 0;
  for (const BlockKey& key : keys)
    waymarks += IsWaymark(HashForWaymark(other.fingerprint, key), 64) ? 1 : 0;
  EXPECT_EQ(Told().size(), waymarks);
  EXPECT_LT(waymarks, keys.size() / 2);
}

TEST_F(WaymarkFollowerTest, AfterAQueueThatGaveUpTheRestIsFoundInTheSnapshot) {
  engine_.Store(ns_, Keys(0, 10));
  Follow();
  // More than the queue holds, and more than the engine: the first ones leave.
  engine_.Store(ns_, Keys(10, 40));
  Follow();
  EXPECT_EQ(follower_.restarts(), 1u);
  std::set<WaymarkHash> held;
  for (const BlockKey& key : Keys(0, 40)) {
    if (engine_.Has(ns_.fingerprint, key)) held.insert(HashForWaymark(ns_.fingerprint, key));
  }
  EXPECT_EQ(held.size(), 30u);
  EXPECT_EQ(Told(), held);
}

TEST_F(WaymarkFollowerTest, ABumpAndADropLeaveNothing) {
  engine_.Store(ns_, Keys(0, 10));
  Follow();
  ASSERT_TRUE(engine_.BumpEpoch(ns_.fingerprint).ok());
  Follow();
  EXPECT_TRUE(Told().empty());
  engine_.Store(ns_, Keys(0, 5));
  Follow();
  EXPECT_EQ(Told().size(), 5u);
  ASSERT_TRUE(engine_.DropNamespace(ns_.fingerprint).ok());
  Follow();
  EXPECT_TRUE(Told().empty());
  EXPECT_EQ(announcer_.waymarks(), 0u);
}

TEST_F(WaymarkFollowerTest, ADropThatTheQueueLostIsFoundInTheSnapshot) {
  engine_.Store(ns_, Keys(0, 10));
  Follow();
  ASSERT_TRUE(engine_.DropNamespace(ns_.fingerprint).ok());
  const SimulatedNamespace other = NamespaceOf("another", 512);
  engine_.Know(other);
  engine_.Store(other, Keys(100, 125));
  Follow();
  EXPECT_EQ(follower_.restarts(), 1u);
  EXPECT_EQ(announcer_.waymarks(), 25u);
}

}  // namespace
}  // namespace cairn::cache
