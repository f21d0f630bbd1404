// The engine over the device tier on a fake device: what is copied there, who gets room, and what a
// lost or damaged device costs. The fake reports accesses that no wait orders.

#include <unistd.h>

#include "services/cache/store/tier/device/device_tier.h"
#include "tests/support/fake_device/fake_devices.h"
#include "tests/unit/cache/store/engine/engine_fixture.h"

namespace cairn::cache::testing {
namespace {

constexpr uint64_t kChunk = 128 << 10;  // Six blocks.

class DeviceEngineTest : public EngineTest {
 protected:
  void StartOnDevice(uint64_t chunks, uint64_t host_bytes = 4 << 20, uint32_t devices = 1,
                     bool disk = true) {
    fake_.emplace(device::fake::FakeOptions{.seed = 5, .devices = devices});
    Options options;
    options.host_bytes = host_bytes;
    options.disk = disk;
    options.make_device = [this, chunks](HostTier* host) {
      DeviceTierOptions tier;
      tier.pool = {.capacity_bytes = chunks * kChunk, .chunk_bytes = kChunk, .slot_bytes = 8 << 10};
      tier.poll_interval = std::chrono::microseconds(10);
      tier_ =
          *DeviceTier::Create(tier, {.driver = fake_->driver(), .host = host, .clock = &clock_});
      return tier_.get();
    };
    Start(options);
  }
  void TearDown() override {
    EngineTest::TearDown();
    tier_.reset();
  }
  std::optional<TierKind> TierOf(uint64_t n) {
    const auto found = engine_->Exists(ns_, {{TestKey(n)}});
    EXPECT_OK(found);
    return found->at(0);
  }
  // Copies end on the tier's thread.
  template <typename Condition>
  void Await(Condition&& condition, const char* what) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!condition()) {
      ASSERT_LT(std::chrono::steady_clock::now(), end) << what;
      std::this_thread::yield();
    }
  }
  void AwaitOnDevice(uint64_t first, uint64_t last) {
    Await(
        [&] {
          for (uint64_t n = first; n <= last; ++n) {
            if (TierOf(n) != TierKind::kDevice) return false;
          }
          return true;
        },
        "blocks on the device");
  }
  void ReadOntoDevice(uint64_t first, uint64_t last) {
    EXPECT_EQ(ServeAndVerify(first, last), last - first + 1);
    AwaitOnDevice(first, last);
  }
  void CrowdHost() {
    for (uint64_t n = 1000; n < 1040; ++n) ASSERT_OK(Store(n, std::nullopt));
  }
  // From now on the test's namespace is one of this tenant.
  void Become(const std::string& tenant) {
    spec_.tenant = tenant;
    const auto opened = engine_->OpenNamespace(spec_, false);
    ASSERT_OK(opened);
    ns_ = opened->fingerprint;
  }

  std::optional<device::fake::FakeDevices> fake_;
  std::unique_ptr<DeviceTier> tier_;
};

TEST_F(DeviceEngineTest, WhatIsReadIsCopiedWhereItLiesAndServesReadersWithoutAGpu) {
  StartOnDevice(4, 256 << 10);
  StoreChain(1, 4);
  ReadOntoDevice(1, 4);
  EXPECT_EQ(tier_->GetDeviceStats()[0].detour_bytes, 0u) << "segments of host are pinned";
  EXPECT_GT(tier_->pinned_bytes(), 0u);
  CrowdHost();
  const uint64_t before = tier_->GetStats().read_bytes;
  EXPECT_EQ(ServeAndVerify(1, 4), 4u);
  EXPECT_GE(tier_->GetStats().read_bytes - before, 4u * 16384);
  EXPECT_EQ(disk_->GetStats().read_bytes, 0u);
}

TEST_F(DeviceEngineTest, AFullDeviceGivesWhatWasNotUsedForTheLongestTime) {
  StartOnDevice(1);
  for (uint64_t first = 1; first <= 21; first += 4) {
    StoreChain(first, first + 3);
    ReadOntoDevice(first, first + 3);
    clock_.Advance(std::chrono::seconds(1));
  }
  EXPECT_EQ(TierOf(1), TierKind::kHost);
  EXPECT_GT(engine_->GetStats().tiers[TierKind::kDevice]->evicted_blocks, 0u);
  EXPECT_EQ(ServeAndVerify(1, 4), 4u);
}

TEST_F(DeviceEngineTest, AFlippedBitInAChunkIsFoundAndTheNextTierServes) {
  StartOnDevice(1, 256 << 10);
  StoreChain(1, 1);
  ReadOntoDevice(1, 1);
  CrowdHost();
  const auto shared = tier_->Share(tier_->PlaceOf(0), spec_.tenant);
  ASSERT_OK(shared);
  {
    const auto chunk = fake_->Open()->Import(shared->descriptor, shared->bytes);
    ASSERT_OK(chunk);
    reinterpret_cast<uint8_t*>(chunk->address())[9000] ^= 4;
  }
  close(shared->descriptor);
  EXPECT_EQ(ServeAndVerify(1, 1), 1u);
  EXPECT_EQ(engine_->GetStats().corrupt_blocks, 1u);
  EXPECT_GT(disk_->GetStats().read_bytes, 0u);
  tier_->Unshare(tier_->PlaceOf(0));
}

TEST_F(DeviceEngineTest, ALostDeviceLosesItsCopiesAndTheNodeServesOn) {
  StartOnDevice(2, 256 << 10);
  StoreChain(1, 4);
  ReadOntoDevice(1, 4);
  Flush();
  CrowdHost();
  fake_->control().lose(0);
  // Whoever reads before the node has noticed gets the next tier.
  EXPECT_EQ(ServeAndVerify(1, 4), 4u);
  engine_->Tick();
  for (uint64_t n = 1; n <= 4; ++n) EXPECT_NE(TierOf(n), TierKind::kDevice) << n;
  EXPECT_EQ(BlocksIn(TierKind::kDevice), 0u);
  EXPECT_EQ(engine_->GetStats().lost_blocks, 4u);
  EXPECT_EQ(engine_->GetStats().corrupt_blocks, 0u);
  StoreChain(11, 14);
  EXPECT_EQ(ServeAndVerify(11, 14), 4u);
  EXPECT_EQ(ServeAndVerify(1, 4), 4u);
}

TEST_F(DeviceEngineTest, OneOfTwoDevicesIsLostAndTheOtherKeepsItsBlocks) {
  StartOnDevice(2, 4 << 20, /*devices=*/2);
  StoreChain(1, 8);
  ReadOntoDevice(1, 8);
  const uint64_t on_first = tier_->GetDeviceStats()[0].extents;
  ASSERT_GT(on_first, 0u);
  ASSERT_LT(on_first, 8u);
  fake_->control().lose(0);
  EXPECT_OK(Store(20, std::nullopt));
  EXPECT_EQ(ServeAndVerify(20, 20), 1u);
  Await([&] { return tier_->losses() == 1; }, "the loss");
  engine_->Tick();
  EXPECT_EQ(engine_->GetStats().lost_blocks, on_first);
  EXPECT_EQ(ServeAndVerify(1, 8), 8u);
}

TEST_F(DeviceEngineTest, ALastCopyGoesBackToHostBeforeTheDeviceMakesRoom) {
  StartOnDevice(1, 512 << 10, /*devices=*/1, /*disk=*/false);
  StoreChain(1, 3);
  ReadOntoDevice(1, 3);
  // Host lets go of them: now the device has the last copies.
  clock_.Advance(std::chrono::seconds(1));
  for (uint64_t n = 1000; n < 1040; ++n) ASSERT_OK(Store(n, std::nullopt));
  clock_.Advance(std::chrono::seconds(1));
  EXPECT_EQ(ServeAndVerify(1, 3), 3u);  // Used again: worth more than what is in host.
  StoreChain(11, 13);
  ReadOntoDevice(11, 13);
  // Read from the device by the readers, and then on the way to host.
  Await(
      [&] {
        engine_->Tick();
        return tier_->GetStats().read_bytes > 2 * 3 * 16384;
      },
      "the way back");
  // Everything on the device is evicted by others, and nothing is lost.
  for (uint64_t first = 21; first <= 26; first += 5) {
    StoreChain(first, first + 4);
    ReadOntoDevice(first, first + 4);
    engine_->Tick();
  }
  EXPECT_EQ(ServeAndVerify(1, 3), 3u);
}

TEST_F(DeviceEngineTest, ATenantWithoutRoomGetsAChunkOfOneThatHasMore) {
  StartOnDevice(2);
  Become("a");
  StoreChain(1, 12);
  ReadOntoDevice(1, 12);
  clock_.Advance(std::chrono::seconds(2));
  Become("b");
  StoreChain(1, 2);
  ReadOntoDevice(1, 2);
  Become("a");
  uint32_t left = 0;
  for (uint64_t n = 1; n <= 12; ++n) left += TierOf(n) == TierKind::kDevice ? 1 : 0;
  EXPECT_EQ(left, 6u) << "one chunk of two";
  EXPECT_EQ(ServeAndVerify(1, 12), 12u);
}

TEST_F(DeviceEngineTest, ALeasedChunkStaysWithItsTenant) {
  StartOnDevice(1);
  Become("a");
  StoreChain(1, 3);
  ReadOntoDevice(1, 3);
  const MatchResult match = Match(TestKeys(1, 3));
  ASSERT_TRUE(match.lease);
  clock_.Advance(std::chrono::seconds(2));
  Become("b");
  StoreChain(1, 2);
  EXPECT_EQ(ServeAndVerify(1, 2), 2u);
  Become("a");
  for (uint64_t n = 1; n <= 3; ++n) EXPECT_EQ(TierOf(n), TierKind::kDevice);
  EXPECT_OK(engine_->Release(session_, {&*match.lease, 1}));
}

TEST_F(DeviceEngineTest, ABlockForAnotherMembersDeviceIsFoundThereAndStays) {
  StartOnDevice(4);
  StoreChain(1, 2);
  ASSERT_OK(Store(3, 2));
  ReadOntoDevice(1, 2);
  const auto read = engine_->for_peers()->ReadStored(ns_, TestKey(2));
  ASSERT_OK(read);
  const auto block = (*read)->OnDevice();
  ASSERT_TRUE(block.has_value());
  EXPECT_EQ(block->block.parent, TestKey(1));
  ASSERT_EQ(block->block.parts.size(), block->extents.size());
  // It is dropped meanwhile, and what takes its place does not take its extents.
  ASSERT_OK(engine_->BumpEpoch(ns_));
  StoreChain(1, 2);
  for (size_t i = 0; i < block->extents.size(); ++i) {
    std::vector<std::byte> bytes(block->extents[i].length);
    std::atomic<bool> done{false};
    tier_->Read(block->extents[i], bytes, [&](const Status& status) {
      EXPECT_OK(status);
      done = true;
    });
    Await([&] { return done.load(); }, "the copy");
    EXPECT_EQ(bytes, TestPart(spec_.layout, 2, block->block.parts[i].rect));
  }
  // One that lies elsewhere is not there.
  const auto other = engine_->for_peers()->ReadStored(ns_, TestKey(1));
  ASSERT_OK(other);
  EXPECT_FALSE((*other)->OnDevice().has_value());
}

}  // namespace
}  // namespace cairn::cache::testing
