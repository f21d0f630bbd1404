// A third tier above host, which no file of the engine knows: blocks are copied there when they are
// read, are served from there, and its faults cost nothing but the way to the next tier.

#include "services/cache/store/placement/policies.h"
#include "tests/unit/cache/store/engine/engine_fixture.h"

namespace cairn::cache::testing {
namespace {

class ThreeTiersTest : public EngineTest {
 protected:
  void StartWithDevice(uint64_t device_bytes = 4 << 20, uint64_t host_bytes = 4 << 20) {
    Options options;
    options.host_bytes = host_bytes;
    options.device_bytes = device_bytes;
    Start(options);
  }
  // Where a block would be served from.
  std::optional<TierKind> TierOf(uint64_t n) {
    const MatchResult match = Match({TestKey(n)}, /*lease=*/false);
    if (match.tiers.empty()) return std::nullopt;
    return match.tiers[0].tier;
  }
  // Stores blocks that nobody reads, so that host evicts what it held before.
  void CrowdHost() {
    for (uint64_t n = 1000; n < 1040; ++n) ASSERT_OK(Store(n, std::nullopt));
  }
};

TEST_F(ThreeTiersTest, WhatIsReadIsCopiedToTheFasterTier) {
  StartWithDevice(4 << 20, 256 << 10);
  StoreChain(1, 4);
  EXPECT_EQ(TierOf(1), TierKind::kHost);
  EXPECT_EQ(ServeAndVerify(1, 4), 4u);
  for (uint64_t n = 1; n <= 4; ++n) EXPECT_EQ(TierOf(n), TierKind::kDevice) << n;
  CrowdHost();
  const uint64_t before = device_->GetStats().read_bytes;
  EXPECT_EQ(ServeAndVerify(1, 4), 4u);
  EXPECT_GE(device_->GetStats().read_bytes - before, 4u * 16384);
}

TEST_F(ThreeTiersTest, ReadersInHostMemoryReadThereWhatHostHasToo) {
  StartWithDevice();
  StoreChain(1, 4);
  EXPECT_EQ(ServeAndVerify(1, 4), 4u);
  EXPECT_EQ(TierOf(1), TierKind::kDevice);
  EXPECT_EQ(ServeAndVerify(1, 4), 4u);
  EXPECT_EQ(device_->GetStats().read_bytes, 0u);
}

TEST_F(ThreeTiersTest, ACopyUnderWayDelaysNoReader) {
  StartWithDevice();
  StoreChain(1, 4);
  device_->HoldCallbacks();
  EXPECT_EQ(ServeAndVerify(1, 4), 4u);
  EXPECT_EQ(TierOf(1), TierKind::kHost);
  device_->HoldCallbacks(false);
  EXPECT_GT(device_->RunHeld(), 0u);
  EXPECT_EQ(TierOf(1), TierKind::kDevice);
}

TEST_F(ThreeTiersTest, ATierThatCannotBeReadLeavesTheBlockToTheNext) {
  StartWithDevice(4 << 20, 256 << 10);
  StoreChain(1, 4);
  EXPECT_EQ(ServeAndVerify(1, 4), 4u);
  CrowdHost();
  device_->FailReads(1000, Errorf(StatusCode::kUnavailable, "device"));
  EXPECT_EQ(ServeAndVerify(1, 4), 4u);
  EXPECT_EQ(engine_->GetStats().corrupt_blocks, 0u);
  device_->FailReads(0, OkStatus());
  EXPECT_EQ(TierOf(1), TierKind::kDevice);
  EXPECT_EQ(ServeAndVerify(1, 4), 4u);
}

TEST_F(ThreeTiersTest, ADamagedCopyLeavesItsTierAndTheReaderGetsTheNext) {
  StartWithDevice(4 << 20, 256 << 10);
  StoreChain(1, 1);
  EXPECT_EQ(ServeAndVerify(1, 1), 1u);
  CrowdHost();
  device_->CorruptReads(1);
  EXPECT_EQ(ServeAndVerify(1, 1), 1u);
  EXPECT_EQ(engine_->GetStats().corrupt_blocks, 1u);
  EXPECT_EQ(TierOf(1), TierKind::kHost);
  EXPECT_EQ(ServeAndVerify(1, 1), 1u);
  EXPECT_EQ(TierOf(1), TierKind::kDevice);  // Copied there again.
}

TEST_F(ThreeTiersTest, LostBytesLeaveTheTierToo) {
  StartWithDevice(4 << 20, 256 << 10);
  StoreChain(1, 1);
  EXPECT_EQ(ServeAndVerify(1, 1), 1u);
  CrowdHost();
  device_->FailReads(1, Errorf(StatusCode::kNotFound, "device"));
  EXPECT_EQ(ServeAndVerify(1, 1), 1u);
  EXPECT_EQ(TierOf(1), TierKind::kHost);
}

TEST_F(ThreeTiersTest, AFailingWriteLeavesTheBlockWhereItIs) {
  StartWithDevice();
  StoreChain(1, 4);
  device_->FailWrites(1000, Errorf(StatusCode::kUnavailable, "device"));
  EXPECT_EQ(ServeAndVerify(1, 4), 4u);
  EXPECT_EQ(TierOf(1), TierKind::kHost);
  EXPECT_EQ(device_->GetStats().used_bytes, 0u);
}

TEST_F(ThreeTiersTest, TheFastestCopyServesAfterHostLetItGo) {
  StartWithDevice(4 << 20, 256 << 10);
  StoreChain(1, 4);
  EXPECT_EQ(ServeAndVerify(1, 4), 4u);
  CrowdHost();
  EXPECT_EQ(TierOf(1), TierKind::kDevice);
  EXPECT_EQ(ServeAndVerify(1, 4), 4u);
  EXPECT_EQ(disk_->GetStats().read_bytes, 0u);
  // Without the device, the disk still has it.
  device_->FailReads(1000, Errorf(StatusCode::kUnavailable, "device"));
  EXPECT_EQ(ServeAndVerify(1, 4), 4u);
  EXPECT_GT(disk_->GetStats().read_bytes, 0u);
}

TEST_F(ThreeTiersTest, AFullTierEvictsItsOwnCopiesOnly) {
  StartWithDevice(/*device_bytes=*/64 << 10);
  StoreChain(1, 3);
  EXPECT_EQ(ServeAndVerify(1, 3), 3u);
  EXPECT_EQ(TierOf(1), TierKind::kDevice);
  clock_.Advance(std::chrono::seconds(1));
  StoreChain(11, 13);
  EXPECT_EQ(ServeAndVerify(11, 13), 3u);
  EXPECT_EQ(TierOf(11), TierKind::kDevice);
  EXPECT_EQ(TierOf(3), TierKind::kHost);
  EXPECT_EQ(ServeAndVerify(1, 3), 3u);
}

TEST_F(ThreeTiersTest, ACrashLosesTheFastTierAndNothingElse) {
  StartWithDevice();
  StoreChain(1, 4);
  EXPECT_EQ(ServeAndVerify(1, 4), 4u);
  Flush();
  CrashAndRestart();
  EXPECT_EQ(TierOf(1), TierKind::kDisk);
  EXPECT_EQ(ServeAndVerify(1, 4), 4u);  // Promotes to host.
  EXPECT_EQ(ServeAndVerify(1, 4), 4u);  // Copies to the device.
  EXPECT_EQ(TierOf(1), TierKind::kDevice);
}

class EvictionPolicyTest : public EngineTest {
 protected:
  // Whether a block that was used twice, long ago, stays when blocks come that nobody uses.
  bool KeepsAnOldUsedBlock(EvictionKind eviction) {
    Options options;
    options.host_bytes = 256 << 10;
    options.disk = false;
    options.device_bytes = 0;
    options.engine.eviction = eviction;
    Start(options);
    EXPECT_OK(Store(1, std::nullopt));
    EXPECT_EQ(ServeAndVerify(1, 1), 1u);
    EXPECT_EQ(ServeAndVerify(1, 1), 1u);
    for (uint64_t n = 1000; n < 1040; ++n) {
      clock_.Advance(std::chrono::seconds(1));
      EXPECT_OK(Store(n, std::nullopt));
    }
    return Match({TestKey(1)}, /*lease=*/false).matched_blocks == 1;
  }
};

TEST_F(EvictionPolicyTest, TheDefaultEvictsTheLeastRecentlyUsed) {
  EXPECT_FALSE(KeepsAnOldUsedBlock(EngineOptions().eviction));
}

TEST_F(EvictionPolicyTest, TheEngineUsesThePolicyThatItIsGiven) {
  EXPECT_TRUE(KeepsAnOldUsedBlock(EvictionKind::kS3Fifo));
}

}  // namespace
}  // namespace cairn::cache::testing
