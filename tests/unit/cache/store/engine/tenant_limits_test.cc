// Tenants with limits: what they may have in a tier, and what others cannot take away.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "services/cache/store/tier/host_room.h"
#include "tests/unit/cache/store/engine/engine_fixture.h"

namespace cairn::cache::testing {
namespace {

using ::testing::HasSubstr;

class TenantLimitsTest : public EngineTest {
 protected:
  // The room of one block of the fixture, in every tier.
  uint64_t Room() const { return HostRoom(TestPart(spec_.layout, 1, Whole()).size()); }

  void StartWithDisk(bool disk, uint64_t host_blocks = 64, uint64_t disk_blocks = 1024) {
    Options options;
    options.host_bytes = host_blocks * Room();
    options.disk = disk;
    options.disk_bytes = disk_blocks * Room();
    StartWithoutDevice(options);
  }
  void SetLimits() {
    engine_->SetTenantLimits([this](std::string_view tenant) {
      const auto it = limits_.find(std::string(tenant));
      return it == limits_.end() ? TenantLimits() : it->second;
    });
  }
  void Limit(const std::string& tenant, TierKind tier, uint64_t blocks) {
    limits_[tenant].most[tier] = blocks * Room();
    SetLimits();
  }
  void Guarantee(const std::string& tenant, TierKind tier, uint64_t blocks) {
    limits_[tenant].guaranteed[tier] = blocks * Room();
    SetLimits();
  }
  // What follows is this tenant's.
  void Be(const std::string& tenant, const std::string& model = "model") {
    NamespaceSpec spec = spec_;
    spec.tenant = tenant;
    spec.model = model;
    const auto opened = engine_->OpenNamespace(spec, false);
    ASSERT_OK(opened);
    ns_ = opened->fingerprint;
  }
  void Store(uint64_t first, uint64_t last) {
    for (uint64_t n = first; n <= last; ++n) {
      ASSERT_OK(EngineTest::Store(n, std::nullopt)) << n;
      clock_.Advance(std::chrono::milliseconds(20));
    }
  }
  uint64_t BlocksOf(const std::string& tenant, TierKind tier) const {
    for (const auto& room : engine_->GetTenants()) {
      if (room->name() == tenant) return room->bytes(tier) / Room();
    }
    return 0;
  }
  Result<MatchResult> Look(SessionId session) {
    const std::vector<BlockKey> keys = TestKeys(1, 1);
    MatchRequest request;
    request.session = session;
    request.fingerprint = ns_;
    request.keys = keys;
    return engine_->Match(request);
  }
  bool Has(uint64_t n) {
    const MatchResult match = Match({TestKey(n)});
    if (match.lease) {
      EXPECT_OK(engine_->Release(session_, {&*match.lease, 1}));
    }
    return match.matched_blocks == 1;
  }

  std::map<std::string, TenantLimits> limits_;
};

TEST_F(TenantLimitsTest, OverItsLimitItsOwnOldestBlocksGo) {
  StartWithDisk(false);
  Limit("a", TierKind::kHost, 8);
  Be("b");
  Store(1000, 1019);
  Be("a");
  Store(1, 20);
  EXPECT_EQ(BlocksOf("a", TierKind::kHost), 8u);
  for (uint64_t n = 1; n <= 20; ++n) EXPECT_EQ(Has(n), n > 12) << n;
  Be("b");
  for (uint64_t n = 1000; n <= 1019; ++n) EXPECT_TRUE(Has(n)) << n;
  EXPECT_EQ(engine_->GetStats().over_limit, 0u);
}

TEST_F(TenantLimitsTest, AllNamespacesOfATenantShareItsLimit) {
  StartWithDisk(false);
  Limit("a", TierKind::kHost, 8);
  Be("a", "one model");
  Store(1, 8);
  Be("a", "another");
  Store(101, 106);
  EXPECT_EQ(BlocksOf("a", TierKind::kHost), 8u);
  for (uint64_t n = 101; n <= 106; ++n) EXPECT_TRUE(Has(n)) << n;
  Be("a", "one model");
  for (uint64_t n = 1; n <= 8; ++n) EXPECT_EQ(Has(n), n > 6) << n;
}

TEST_F(TenantLimitsTest, WhoseBlocksCannotGoIsTold) {
  StartWithDisk(false);
  Limit("a", TierKind::kHost, 4);
  Be("a");
  Store(1, 4);
  // There is no slower tier, so leases keep them.
  const auto match = Match(TestKeys(1, 1));
  std::vector<LeaseId> leases = {*match.lease};
  for (uint64_t n = 2; n <= 4; ++n) leases.push_back(*Match({TestKey(n)}).lease);
  const Status refused = EngineTest::Store(5, std::nullopt);
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(refused), HasSubstr("tenant 'a'"));
  EXPECT_THAT(Message(refused), HasSubstr("its limit is"));
  EXPECT_EQ(engine_->GetStats().over_limit, 1u);
  EXPECT_EQ(BlocksOf("a", TierKind::kHost), 4u);
  // Others go on, and so does the tenant once something may go.
  Be("b");
  Store(1000, 1010);
  Be("a");
  EXPECT_OK(engine_->Release(session_, leases));
  Store(5, 5);
}

TEST_F(TenantLimitsTest, RoomThatIsReservedCounts) {
  StartWithDisk(false);
  Limit("a", TierKind::kHost, 4);
  Be("a");
  std::vector<ReservationId> reserved;
  for (uint64_t n = 1; n <= 4; ++n) {
    const auto id = Reserve(Part(n, std::nullopt));
    ASSERT_OK(id);
    reserved.push_back(*id);
  }
  EXPECT_EQ(Reserve(Part(5, std::nullopt)).status().code(), StatusCode::kResourceExhausted);
  EXPECT_OK(engine_->Abort(session_, reserved));
  EXPECT_EQ(BlocksOf("a", TierKind::kHost), 0u);
  Store(5, 8);
}

TEST_F(TenantLimitsTest, APartOfABlockCountsUntilItIsGivenUp) {
  StartWithDisk(false);
  Be("a");
  format::PartRect half = Whole();
  half.layer_end = kLayers / 2;
  ASSERT_OK(EngineTest::Store(1, std::nullopt, half));
  EXPECT_GT(engine_->GetTenants()[0]->bytes(TierKind::kHost) +
                engine_->GetTenants().back()->bytes(TierKind::kHost),
            0u);
  clock_.Advance(std::chrono::seconds(61));
  engine_->Tick();
  EXPECT_EQ(BlocksOf("a", TierKind::kHost), 0u);
}

TEST_F(TenantLimitsTest, ALimitOfTheDiskHoldsThere) {
  StartWithDisk(true);
  Limit("a", TierKind::kDisk, 8);
  Be("b");
  Store(1000, 1019);
  Be("a");
  Store(1, 20);
  Flush();
  EXPECT_EQ(BlocksOf("a", TierKind::kDisk), 8u);
  EXPECT_EQ(BlocksOf("b", TierKind::kDisk), 20u);
  EXPECT_EQ(BlocksOf("a", TierKind::kHost), 20u);
}

TEST_F(TenantLimitsTest, ATenantThatMayHaveNothingOnDiskHoldsUpNobodysFlush) {
  StartWithDisk(true);
  Limit("a", TierKind::kDisk, 0);
  Be("a");
  Store(1, 5);
  Be("b");
  Store(1000, 1004);
  Flush();
  EXPECT_EQ(BlocksOf("a", TierKind::kDisk), 0u);
  EXPECT_EQ(BlocksOf("b", TierKind::kDisk), 5u);
  EXPECT_EQ(engine_->GetStats().over_limit, 5u);
  EXPECT_EQ(engine_->GetStats().failed_copies, 0u) << "the disk is sound";
  EXPECT_EQ(engine_->GetStats().unflushed_bytes, 0u) << "nobody tries again";
}

TEST_F(TenantLimitsTest, TheRoomIsCountedAgainAfterARestart) {
  StartWithDisk(true);
  Be("a");
  Store(1, 12);
  Flush();
  CrashAndRestart();
  EXPECT_EQ(BlocksOf("a", TierKind::kDisk), 12u);
  Limit("a", TierKind::kDisk, 6);
  Be("a");
  Store(20, 21);
  Flush();
  EXPECT_LE(BlocksOf("a", TierKind::kDisk), 6u);
}

TEST_F(TenantLimitsTest, ALowerLimitTakesBlocksAwayAsOthersAreStored) {
  StartWithDisk(false);
  Be("a");
  Store(1, 40);
  Limit("a", TierKind::kHost, 4);
  EXPECT_EQ(BlocksOf("a", TierKind::kHost), 40u);
  Status last;
  for (uint64_t n = 101; n <= 110; ++n) {
    last = EngineTest::Store(n, std::nullopt);
    clock_.Advance(std::chrono::milliseconds(20));
  }
  EXPECT_OK(last);
  EXPECT_EQ(BlocksOf("a", TierKind::kHost), 4u);
  EXPECT_TRUE(Has(110));
}

TEST_F(TenantLimitsTest, OthersTakeNoRoomThatIsGuaranteed) {
  StartWithDisk(false, 32);
  Guarantee("a", TierKind::kHost, 10);
  Be("a");
  Store(1, 20);
  // The oldest blocks of all, and there is far too little room for what comes.
  Be("b");
  Store(1000, 1099);
  EXPECT_GE(BlocksOf("a", TierKind::kHost), 9u);
  EXPECT_LE(BlocksOf("a", TierKind::kHost), 10u);
  // It replaces its own blocks as before.
  Be("a");
  Store(101, 130);
  EXPECT_GE(BlocksOf("a", TierKind::kHost), 9u);
  for (uint64_t n = 125; n <= 130; ++n) EXPECT_TRUE(Has(n)) << n;
}

TEST_F(TenantLimitsTest, GuaranteedRoomOnDiskStays) {
  StartWithDisk(true, 64, 32);
  Guarantee("a", TierKind::kDisk, 10);
  Be("a");
  Store(1, 20);
  Flush();
  Be("b");
  for (uint64_t n = 1000; n < 1100; n += 10) {
    Store(n, n + 9);
    Flush();
  }
  EXPECT_GE(BlocksOf("a", TierKind::kDisk), 9u);
  EXPECT_LE(BlocksOf("a", TierKind::kDisk), 10u);
}

// The tier writes what stays of a group a second time. It must not write blocks that are guaranteed
// again and again, for copies of others that find no room.
TEST_F(TenantLimitsTest, GroupsAreAskedForOnlyIfTheOldestBlocksMayGo) {
  StartWithDisk(true, 64, 32);
  disk_->GroupVictims(4, 0, std::chrono::seconds(10));
  Guarantee("a", TierKind::kDisk, 1000);
  Be("a");
  Store(1, 30);
  Flush();
  ASSERT_EQ(BlocksOf("a", TierKind::kDisk), 30u);
  Be("b");
  Store(1000, 1029);
  for (int i = 0; i < 100; ++i) {
    clock_.Advance(std::chrono::milliseconds(100));
    engine_->Tick();
  }
  EXPECT_EQ(BlocksOf("a", TierKind::kDisk), 30u);
  EXPECT_LE(BlocksOf("b", TierKind::kDisk), 10u) << "there is no more room";
  EXPECT_EQ(disk_->victim_groups(), 0u);
  Be("a");
  Store(101, 104);
  Flush();
  EXPECT_GT(disk_->victim_groups(), 0u) << "its own may go";
}

TEST_F(TenantLimitsTest, WhatIsDroppedCountsNoLonger) {
  StartWithDisk(false);
  Limit("a", TierKind::kHost, 8);
  Be("a");
  Store(1, 8);
  ASSERT_OK(engine_->DropTenant("a"));
  EXPECT_EQ(BlocksOf("a", TierKind::kHost), 0u);
  Be("a");
  Store(1, 8);
  EXPECT_EQ(BlocksOf("a", TierKind::kHost), 8u);
}

TEST_F(TenantLimitsTest, NamespacesAreListedWithTheRoomOfTheirTenant) {
  StartWithDisk(true);
  Limit("a", TierKind::kHost, 8);
  Guarantee("a", TierKind::kDisk, 3);
  Be("a");
  Store(1, 5);
  Flush();
  Be("b");
  const auto room = [this](const std::string& tenant) {
    return engine_->ListNamespaces(tenant).at(0).tenant_room;
  };
  ASSERT_EQ(room("a").size(), 2u) << "there is no GPU";
  for (const TierRoom& tier : room("a")) {
    EXPECT_EQ(tier.bytes, 5 * Room());
    const bool host = tier.tier == TierKind::kHost;
    EXPECT_EQ(tier.most, host ? std::optional(8 * Room()) : std::nullopt);
    EXPECT_EQ(tier.guaranteed, host ? 0 : 3 * Room());
  }
  for (const TierRoom& tier : room("b")) EXPECT_EQ(tier.bytes, 0u);
}

TEST_F(TenantLimitsTest, WhatIsReadAndStoredTooFastIsRefusedUntilItsTimeHasCome) {
  StartWithDisk(false);
  Be("a");
  Store(1, 4);
  const uint64_t block = TestPart(spec_.layout, 1, Whole()).size();
  limits_["a"].bytes_per_second = 10 * block;
  SetLimits();
  clock_.Advance(std::chrono::seconds(2));
  // A second's bytes are there, in any mixture.
  for (uint64_t n = 11; n <= 14; ++n) ASSERT_OK(EngineTest::Store(n, std::nullopt)) << n;
  for (uint64_t n = 1; n <= 4; ++n) EXPECT_EQ(ServeAndVerify(n, n), 1u) << n;
  for (uint64_t n = 15; n <= 17; ++n) ASSERT_OK(EngineTest::Store(n, std::nullopt)) << n;
  const auto refused = Look(session_);
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(refused.status()), HasSubstr("tenant 'a'"));
  EXPECT_THAT(Message(refused.status()), HasSubstr("try again in 0.0"));
  EXPECT_EQ(EngineTest::Store(20, std::nullopt).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(engine_->Prefetch({.session = session_, .fingerprint = ns_, .keys = TestKeys(1, 1)})
                .status()
                .code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(engine_->GetStats().over_pace, 3u);
  const std::string a = "a";
  Be("b");
  Store(100, 110);
  Be(a);
  clock_.Advance(std::chrono::milliseconds(100));
  EXPECT_OK(EngineTest::Store(20, std::nullopt));
}

TEST_F(TenantLimitsTest, WhatIsReadInPlaceCountsForThePace) {
  StartWithDisk(false);
  limits_["a"].bytes_per_second = 1000;
  SetLimits();
  Be("a");
  const auto session = engine_->OpenSession("in place", "a");
  ASSERT_OK(session);
  ByTier<uint64_t> read;
  read[TierKind::kHost] = 3000;
  engine_->in_place()->CountInPlace(*session, read, 0);
  const auto refused = Look(*session);
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  clock_.Advance(std::chrono::seconds(2));
  EXPECT_OK(Look(*session));
}

TEST_F(TenantLimitsTest, ATenantHasNoMoreSessionsThanItMay) {
  StartWithDisk(false);
  limits_["a"].sessions = 2;
  SetLimits();
  const auto first = engine_->OpenSession("1", "a"), second = engine_->OpenSession("2", "a");
  ASSERT_OK(first);
  ASSERT_OK(second);
  const auto third = engine_->OpenSession("3", "a");
  EXPECT_EQ(third.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(third.status()), HasSubstr("2 of tenant 'a' are open, its limit is 2"));
  EXPECT_OK(engine_->OpenSession("4", "b"));
  engine_->CloseSession(*first);
  EXPECT_OK(engine_->OpenSession("5", "a"));
}

TEST_F(TenantLimitsTest, PromotionsToHostKeepToTheLimit) {
  StartWithDisk(true);
  Be("a");
  Store(1, 20);
  Flush();
  CrashAndRestart();
  Limit("a", TierKind::kHost, 5);
  Be("a");
  for (uint64_t n = 1; n <= 20; ++n) {
    EXPECT_EQ(ServeAndVerify(n, n), 1u) << n;
    EXPECT_LE(BlocksOf("a", TierKind::kHost), 5u);
  }
}

}  // namespace
}  // namespace cairn::cache::testing
