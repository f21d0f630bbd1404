#include "services/cache/store/state/node_tenant.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace cairn::cache {
namespace {

constexpr TierKind kHost = TierKind::kHost;

TenantLimits Most(uint64_t bytes) {
  TenantLimits limits;
  limits.most[kHost] = bytes;
  return limits;
}

TEST(NodeTenantTest, ItGivesNoMoreThanTheLimit) {
  const auto room = std::make_shared<NodeTenant>("a");
  room->SetLimits(Most(100));
  auto first = HeldRoom::Take(room, kHost, 60);
  ASSERT_TRUE(first);
  EXPECT_FALSE(HeldRoom::Take(room, kHost, 41));
  EXPECT_TRUE(HeldRoom::Take(room, kHost, 40)) << "and it is given back at once";
  EXPECT_EQ(room->bytes(kHost), 60u);
  EXPECT_TRUE(HeldRoom::Take(room, TierKind::kDisk, UINT64_MAX / 2)) << "another tier";
  first.reset();
  EXPECT_EQ(room->bytes(kHost), 0u);
  EXPECT_FALSE(HeldRoom::Take(room, kHost, 101));
  EXPECT_FALSE(HeldRoom::Take(room, kHost, UINT64_MAX));
}

TEST(NodeTenantTest, ALimitThatIsTooLowForWhatIsThereGivesNothing) {
  const auto room = std::make_shared<NodeTenant>("a");
  room->Change(kHost, 500, 0);
  room->SetLimits(Most(100));
  EXPECT_FALSE(HeldRoom::Take(room, kHost, 1));
  room->Change(kHost, 50, 500);
  EXPECT_TRUE(HeldRoom::Take(room, kHost, 50));
}

TEST(NodeTenantTest, HeldRoomMovesAndIsGivenBackOnce) {
  const auto room = std::make_shared<NodeTenant>("a");
  HeldRoom one = *HeldRoom::Take(room, kHost, 10);
  HeldRoom other = *HeldRoom::Take(room, kHost, 5);
  other = std::move(one);
  EXPECT_EQ(room->bytes(kHost), 15u);
  one = HeldRoom();
  EXPECT_EQ(room->bytes(kHost), 10u);
  other = HeldRoom();
  EXPECT_EQ(room->bytes(kHost), 0u);
  EXPECT_TRUE(HeldRoom::Take(nullptr, kHost, UINT64_MAX)) << "nobody counts";
}

TEST(NodeTenantTest, RoomIsGuaranteedUpToItsEnd) {
  NodeTenant room("a");
  EXPECT_FALSE(room.IsGuaranteed(kHost));
  TenantLimits limits;
  limits.guaranteed[kHost] = 100;
  room.SetLimits(limits);
  room.Change(kHost, 100, 0);
  EXPECT_TRUE(room.IsGuaranteed(kHost));
  EXPECT_FALSE(room.IsGuaranteed(TierKind::kDisk));
  room.Change(kHost, 101, 100);
  EXPECT_FALSE(room.IsGuaranteed(kHost));
}

TEST(NodeTenantTest, ThreadsTogetherStayWithinTheLimit) {
  const auto room = std::make_shared<NodeTenant>("a");
  room->SetLimits(Most(1000));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&room] {
      for (int i = 0; i < 10'000; ++i) {
        const auto held = HeldRoom::Take(room, kHost, 300);
        EXPECT_LE(room->bytes(kHost), 1000u);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(room->bytes(kHost), 0u);
}

TEST(NodeTenantsTest, ATenantHasOneRoomAsLongAsSomebodyHasIt) {
  NodeTenants rooms;
  auto one = rooms.Get("a");
  EXPECT_EQ(rooms.Get("a"), one);
  EXPECT_NE(rooms.Get("b"), one);
  EXPECT_EQ(rooms.All().size(), 1u);
  one->Change(kHost, 10, 0);
  one.reset();
  EXPECT_EQ(rooms.Get("a")->bytes(kHost), 0u);
}

TEST(NodeTenantsTest, LimitsHoldForThoseThatAreThereAndThoseThatCome) {
  NodeTenants rooms;
  const auto before = rooms.Get("a");
  rooms.SetLimits([](std::string_view tenant) { return Most(tenant == "a" ? 10 : 20); });
  EXPECT_EQ(before->most(kHost), 10u);
  EXPECT_EQ(rooms.Get("b")->most(kHost), 20u);
  rooms.SetLimits(nullptr);
  EXPECT_EQ(before->most(kHost), UINT64_MAX);
}

// Strangers who open namespaces of many tenants, one after the other, must not make it grow.
TEST(NodeTenantsTest, ThoseThatNobodyHasAreForgotten) {
  NodeTenants rooms;
  const auto kept = rooms.Get("kept");
  for (int i = 0; i < 10'000; ++i) rooms.Get("tenant" + std::to_string(i));
  EXPECT_EQ(rooms.All().size(), 1u);
  EXPECT_LE(rooms.known(), 65u);
  EXPECT_EQ(rooms.Get("kept"), kept);
}

}  // namespace
}  // namespace cairn::cache
