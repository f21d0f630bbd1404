// The device tier on the fake device: whose bytes lie where, what is pinned, and what its faults
// cost. The fake reports every access that no wait orders, and fails the test.

#include "services/cache/store/tier/device/device_tier.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>

#include "common/status/matchers.h"
#include "tests/support/fake_device/fake_devices.h"

namespace cairn::cache {
namespace {

using ::cairn::testing::StatusIs;
using device::Code;
using device::fake::FakeDevices;
using device::fake::FakeOptions;
using ::testing::_;
using ::testing::HasSubstr;

constexpr uint64_t kChunk = 128 << 10;
constexpr uint64_t kSegment = 2 << 20;

std::vector<std::byte> Bytes(size_t count, int value) {
  return std::vector<std::byte>(count, static_cast<std::byte>(value));
}

// A host tier, devices, and the tier over both. Steps by itself, on the test's thread.
class Rig {
 public:
  explicit Rig(const FakeOptions& options = {}, uint64_t chunks = 4)
      : fake(options),
        host(*HostTier::Create({.capacity_bytes = 4 * kSegment,
                                .segment_bytes = kSegment,
                                .prefault = false,
                                .check_memory = false})) {
    DeviceTierOptions tier_options;
    tier_options.pool = {.capacity_bytes = chunks * kChunk,
                         .chunk_bytes = kChunk,
                         .slot_bytes = 16 << 10,
                         .slots = 2};
    tier_options.poll_interval = Duration(0);
    auto made = DeviceTier::Create(tier_options,
                                   {.driver = fake.driver(), .host = host.get(), .clock = &clock});
    EXPECT_OK(made);
    tier = *std::move(made);
  }
  // Starts a call, and steps until it has ended.
  template <typename Call>
  Status Wait(Call&& call) {
    std::optional<Status> result;
    call([&](Status status) { result = std::move(status); });
    for (int i = 0; i < 10000 && !result; ++i) tier->Step();
    return result ? *result : Errorf(StatusCode::kDeadlineExceeded, "no callback");
  }
  Status Write(const Extent& extent, std::span<const std::byte> bytes) {
    return Wait([&](IoCallback done) { tier->Write(extent, {}, bytes, std::move(done)); });
  }
  Status Read(const Extent& extent, std::span<std::byte> bytes) {
    return Wait([&](IoCallback done) { tier->Read(extent, bytes, std::move(done)); });
  }
  // The bytes that the device holds there.
  std::vector<std::byte> ReadAll(const Extent& extent) {
    std::vector<std::byte> bytes(extent.length);
    EXPECT_OK(Read(extent, bytes));
    return bytes;
  }
  Extent Put(std::string_view tenant, uint32_t length, int value) {
    const auto extent = tier->ReserveOf(tenant, length);
    EXPECT_OK(extent);
    if (!extent.ok()) return {};
    EXPECT_OK(Write(*extent, Bytes(length, value)));
    return *extent;
  }
  DeviceTierStats stats(size_t device = 0) const { return tier->GetDeviceStats()[device]; }

  FakeDevices fake;
  FakeClock clock;
  std::unique_ptr<HostTier> host;
  std::unique_ptr<DeviceTier> tier;
};

TEST(DeviceTierTest, BytesOfTheHostTierAreCopiedWhereTheyLie) {
  Rig rig;
  const Extent from = *rig.host->Reserve(100'000), to = *rig.host->Reserve(100'000);
  std::memset(rig.host->Map(from).data(), 5, from.length);
  const Extent extent = *rig.tier->Reserve(100'000);
  ASSERT_OK(rig.Write(extent, rig.host->Map(from)));
  ASSERT_OK(rig.Read(extent, rig.host->Map(to)));
  EXPECT_EQ(std::memcmp(rig.host->Map(from).data(), rig.host->Map(to).data(), from.length), 0);
  EXPECT_EQ(rig.stats().detour_bytes, 0u);
  EXPECT_EQ(rig.tier->pinned_bytes(), kSegment) << "only the segment that was copied";
  EXPECT_EQ(rig.fake.stats().pageable_copies, 0u);
}

TEST(DeviceTierTest, OtherBytesTakeTheDetourPieceByPiece) {
  Rig rig;
  const Extent extent = *rig.tier->Reserve(100'000);
  std::vector<std::byte> bytes(100'000);
  std::mt19937_64 rng(1);
  for (auto& byte : bytes) byte = static_cast<std::byte>(rng());
  ASSERT_OK(rig.Write(extent, bytes));
  EXPECT_EQ(rig.ReadAll(extent), bytes);
  EXPECT_EQ(rig.stats().detour_bytes, 200'000u);
  EXPECT_EQ(rig.fake.stats().pageable_copies, 0u);
}

TEST(DeviceTierTest, WhereNothingCanBePinnedCopiesStillArrive) {
  Rig rig({.pinned_bytes = 0});
  const Extent from = *rig.host->Reserve(50'000);
  std::memset(rig.host->Map(from).data(), 6, from.length);
  const Extent extent = *rig.tier->Reserve(50'000);
  ASSERT_OK(rig.Write(extent, rig.host->Map(from)));
  EXPECT_EQ(rig.ReadAll(extent), Bytes(50'000, 6));
  EXPECT_EQ(rig.tier->pinned_bytes(), 0u);
  EXPECT_EQ(rig.tier->pin_refusals(), 1u) << "it asks again only after a while";
  EXPECT_GT(rig.stats().detour_bytes, 0u);
}

TEST(DeviceTierTest, ASegmentIsUnpinnedBeforeItsMemoryChanges) {
  Rig rig;
  const OwnerId owner = *rig.host->AddOwner("tenant");
  const auto copy = [&](const Extent& from, int value) {
    std::memset(rig.host->Map(from).data(), value, from.length);
    const Extent extent = *rig.tier->Reserve(from.length);
    EXPECT_OK(rig.Write(extent, rig.host->Map(from)));
    EXPECT_EQ(rig.ReadAll(extent), Bytes(from.length, value));
    rig.tier->Release(extent);
  };
  // Every segment holds common bytes, was copied, and then becomes the tenant's.
  std::deque<Extent> common;
  for (int i = 0; i < 4; ++i) {
    common.push_back(*rig.host->Reserve(kSegment - 4096));
    copy({common.back().id, 10'000}, i + 1);
  }
  EXPECT_EQ(rig.tier->pinned_bytes(), 4 * kSegment);
  for (; !common.empty(); common.pop_front()) rig.host->Release(common.front());
  const Extent first = *rig.host->ReserveFor({owner, Lending::kSealed}, 10'000);
  EXPECT_EQ(rig.tier->pinned_bytes(), 3 * kSegment);
  copy(first, 9);
  EXPECT_EQ(rig.tier->pinned_bytes(), 4 * kSegment);
  // Handed out and taken back: now the address gets other memory.
  const HostTier::Place place = rig.host->PlaceOf(first.id);
  const auto shared = rig.host->Share(place.index, place.id, owner);
  ASSERT_OK(shared);
  close(shared->fd);
  rig.host->Release(first);
  std::vector<Extent> lent;
  for (int i = 0; i < 4; ++i) {
    const auto extent = rig.host->ReserveFor({owner, Lending::kLent}, kSegment);
    ASSERT_OK(extent);
    copy({extent->id, 20'000}, 20 + i);
    lent.push_back(*extent);
  }
  EXPECT_EQ(rig.tier->pinned_bytes(), 4 * kSegment);
}

TEST(DeviceTierTest, ATenantsChunkNeverShowsBytesOfAnother) {
  Rig rig;
  std::vector<Extent> of_a;
  for (int i = 0; i < 4; ++i) of_a.push_back(rig.Put("a", kChunk, 7));
  EXPECT_THAT(rig.tier->ReserveOf("b", 1), StatusIs(StatusCode::kResourceExhausted, _));
  for (const Extent& extent : of_a) rig.tier->Release(extent);
  // A session of b sees the whole chunk.
  const Extent extent = rig.Put("b", 1000, 8);
  const DeviceTier::Place place = rig.tier->PlaceOf(extent.id);
  const auto shared = rig.tier->Share(place, "b");
  ASSERT_OK(shared);
  const auto imported = rig.fake.Open()->Import(shared->descriptor, shared->bytes);
  ASSERT_OK(imported);
  close(shared->descriptor);
  const auto* const seen = reinterpret_cast<const uint8_t*>(imported->address());
  EXPECT_EQ(seen[place.offset], 8);
  EXPECT_TRUE(std::all_of(seen + place.offset + 1000, seen + kChunk, [](int b) { return b == 0; }));
  rig.tier->Unshare(place);
}

TEST(DeviceTierTest, AChunkThatASessionHasStaysWithItsTenantAndGetsOtherMemoryAfterwards) {
  Rig rig({}, /*chunks=*/1);
  const Extent extent = rig.Put("a", kChunk, 7);
  const DeviceTier::Place place = rig.tier->PlaceOf(extent.id);
  EXPECT_THAT(rig.tier->Share(place, "b"), StatusIs(StatusCode::kNotFound, HasSubstr("tenant")));
  const auto shared = rig.tier->Share(place, "a");
  ASSERT_OK(shared);
  EXPECT_EQ(rig.stats().shared_chunks, 1u);
  // The session's view. It keeps that after it has hung up.
  const auto device = rig.fake.Open();
  auto imported = device->Import(shared->descriptor, shared->bytes);
  ASSERT_OK(imported);
  close(shared->descriptor);
  const auto* const seen = reinterpret_cast<const uint8_t*>(imported->address());
  EXPECT_EQ(seen[0], 7);

  rig.tier->Release(extent);
  EXPECT_THAT(rig.tier->ReserveOf("b", 1), StatusIs(StatusCode::kResourceExhausted, _));
  rig.tier->Unshare(place);
  const Extent next = rig.Put("b", kChunk, 8);
  EXPECT_EQ(rig.ReadAll(next), Bytes(kChunk, 8));
  EXPECT_EQ(seen[0], 7) << "nothing of the next tenant";
  EXPECT_NE(rig.tier->PlaceOf(next.id).memory, place.memory);
  EXPECT_THAT(rig.tier->Share(place, "a"), StatusIs(StatusCode::kNotFound, _));
}

TEST(DeviceTierTest, AnotherProcessReadsAChunkByItsDescriptor) {
  Rig rig;
  const Extent extent = rig.Put("a", 1000, 7);
  const DeviceTier::Place place = rig.tier->PlaceOf(extent.id);
  const auto shared = rig.tier->Share(place, "a");
  ASSERT_OK(shared);
  const auto device = rig.fake.Open();
  const pid_t child = fork();
  if (child == 0) {
    const auto imported = device->Import(shared->descriptor, shared->bytes);
    if (!imported.ok()) _exit(1);
    const auto* const bytes = reinterpret_cast<const uint8_t*>(imported->address());
    _exit(bytes[place.offset] == 7 && bytes[place.offset + 999] == 7 ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  close(shared->descriptor);
  rig.tier->Unshare(place);
}

TEST(DeviceTierTest, ADeviceThatDoesNotExportKeepsItsChunksToItself) {
  Rig rig({.exports = false});
  const Extent extent = rig.Put("a", 1000, 7);
  EXPECT_EQ(rig.ReadAll(extent), Bytes(1000, 7));
  EXPECT_THAT(rig.tier->Share(rig.tier->PlaceOf(extent.id), "a"),
              StatusIs(StatusCode::kUnimplemented, _));
}

TEST(DeviceTierTest, MemoryThatIsShortAtStartIsUsedWhenItIsThere) {
  Rig rig({.memory_bytes = 2 * kChunk});
  rig.Put("a", kChunk, 1);
  const auto other = rig.fake.Open();
  auto taken = other->Allocate(kChunk, false);
  ASSERT_OK(taken);
  EXPECT_THAT(rig.tier->ReserveOf("a", kChunk),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("device tier")));
  EXPECT_EQ(rig.stats().shortages, 1u);
  taken->Release();
  EXPECT_THAT(rig.tier->ReserveOf("a", kChunk), StatusIs(StatusCode::kResourceExhausted, _))
      << "it does not ask the device each time";
  rig.clock.Advance(DevicePool::kRetryAfter);
  rig.Put("a", kChunk, 2);
  EXPECT_EQ(rig.stats().chunks, 2u);
}

TEST(DeviceTierTest, ExtentsSpreadOverAllDevices) {
  Rig rig({.devices = 2}, /*chunks=*/2);
  for (int i = 0; i < 4; ++i) rig.Put("a", kChunk, i);
  EXPECT_EQ(rig.stats(0).used_bytes, 2 * kChunk);
  EXPECT_EQ(rig.stats(1).used_bytes, 2 * kChunk);
  EXPECT_EQ(rig.tier->GetStats().capacity_bytes, 4 * kChunk);
}

// Every operation on the way of a write and of a read.
const char* const kOperations[] = {"allocate", "fill",  "create_event", "copy",
                                   "record",   "query", "work"};

TEST(DeviceTierTest, ADeviceThatIsLostInAnyOperationCostsItsOwnBytesOnly) {
  for (const char* const operation : kOperations) {
    SCOPED_TRACE(operation);
    Rig rig({.devices = 2}, /*chunks=*/3);
    const Extent first = rig.Put("a", 1000, 1), second = rig.Put("a", 1000, 2);
    rig.fake.control().fail(operation, 0, 1, Code::kLost);
    // A new tenant needs a chunk. It is the first device's turn.
    const auto extent = rig.tier->ReserveOf("b", kChunk);
    if (extent.ok()) (void)rig.Write(*extent, Bytes(kChunk, 3));
    EXPECT_EQ(rig.tier->losses(), 1u);
    EXPECT_NE(rig.tier->IsLost(first), rig.tier->IsLost(second));
    const Extent& lost = rig.tier->IsLost(first) ? first : second;
    const Extent& left = rig.tier->IsLost(first) ? second : first;
    std::vector<std::byte> bytes(1000);
    EXPECT_THAT(rig.Read(lost, bytes), StatusIs(StatusCode::kUnavailable, _));
    EXPECT_EQ(rig.ReadAll(left), Bytes(1000, left == first ? 1 : 2));
    EXPECT_EQ(rig.tier->GetStats().capacity_bytes, 3 * kChunk);
    rig.Put("c", 500, 4);
  }
}

TEST(DeviceTierTest, AnOperationThatFailsOnceFailsOneCall) {
  for (const char* const operation : kOperations) {
    SCOPED_TRACE(operation);
    Rig rig;
    const Extent before = rig.Put("a", 1000, 1);
    rig.fake.control().fail(operation, 0, 1, Code::kOther);
    const auto extent = rig.tier->ReserveOf("b", kChunk);
    if (extent.ok()) {
      const Status written = rig.Write(*extent, Bytes(kChunk, 3));
      EXPECT_EQ(written.ok(), std::string(operation) == "record") << ToString(written);
    }
    EXPECT_EQ(rig.tier->losses(), 0u);
    EXPECT_EQ(rig.ReadAll(before), Bytes(1000, 1));
    EXPECT_EQ(rig.ReadAll(rig.Put("b", 2000, 4)), Bytes(2000, 4));
  }
}

TEST(DeviceTierTest, ALossUnderWayEndsEveryCopy) {
  Rig rig;
  std::vector<Extent> extents;
  for (int i = 0; i < 8; ++i) extents.push_back(*rig.tier->Reserve(60'000));
  const std::vector<std::byte> bytes = Bytes(60'000, 1);
  size_t ended = 0;
  for (const Extent& extent : extents) {
    rig.tier->Write(extent, {}, bytes, [&](const Status& status) {
      EXPECT_THAT(status, StatusIs(StatusCode::kUnavailable, _));
      ++ended;
    });
  }
  rig.fake.control().lose(0);
  for (int i = 0; i < 100 && ended < extents.size(); ++i) rig.tier->Step();
  EXPECT_EQ(ended, extents.size());
  EXPECT_THAT(rig.tier->Reserve(1), StatusIs(StatusCode::kUnavailable, HasSubstr("lost")));
  EXPECT_EQ(rig.tier->GetStats().capacity_bytes, 0u);
}

TEST(DeviceTierTest, ALossIsNoticedWhileNobodyCopies) {
  Rig rig({.devices = 2});
  rig.tier->Tick();
  rig.fake.control().lose(1);
  rig.clock.Advance(DeviceTier::kLookEvery);
  rig.tier->Tick();
  EXPECT_EQ(rig.tier->losses(), 1u);
  EXPECT_FALSE(rig.stats(0).lost);
  EXPECT_TRUE(rig.stats(1).lost);
}

TEST(DeviceTierTest, SettingsThatDoNotFitAreNamed) {
  FakeDevices fake;
  FakeClock clock;
  const auto create = [&](DeviceTierOptions options) {
    options.poll_interval = Duration(0);
    return DeviceTier::Create(options, {.driver = fake.driver(), .host = nullptr, .clock = &clock});
  };
  EXPECT_THAT(create({.pool = {.capacity_bytes = 1 << 20, .chunk_bytes = 1000}}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("device.chunk: got 1000")));
  EXPECT_THAT(create({.pool = {.capacity_bytes = 1 << 20, .chunk_bytes = 4096}}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("a multiple of 65536")));
  EXPECT_THAT(create({.pool = {.capacity_bytes = 4096}}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("device.capacity: got 4096")));
  EXPECT_THAT(create({.devices = {"3"}, .pool = {.capacity_bytes = 64 << 20}}),
              StatusIs(StatusCode::kNotFound, HasSubstr("device.ids: device '3'")));
  EXPECT_THAT(create({.devices = {"0", "0"}, .pool = {.capacity_bytes = 64 << 20}}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("twice")));
}

// Tenants come and go, blocks are written, read and dropped, sessions hold chunks for a while.
TEST(DeviceTierTest, AtEverySeedEachExtentHoldsItsOwnBytesAndNoWaitIsMissing) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    Rig rig({.seed = seed, .devices = static_cast<uint32_t>(1 + seed % 2)}, /*chunks=*/3);
    std::mt19937_64 rng(seed);
    struct Kept {
      Extent extent;
      int value;
    };
    std::deque<Kept> kept;
    std::deque<DeviceTier::Place> shared;
    for (int round = 0; round < 150; ++round) {
      const std::string tenant(1, static_cast<char>('a' + rng() % 3));
      const auto length = static_cast<uint32_t>(1 + rng() % 50'000);
      const auto extent = rig.tier->ReserveOf(tenant, length);
      if (extent.ok()) {
        const int value = static_cast<int>(rng() % 255 + 1);
        ASSERT_OK(rig.Write(*extent, Bytes(length, value)));
        kept.push_back({*extent, value});
        if (rng() % 8 == 0) {
          const DeviceTier::Place place = rig.tier->PlaceOf(extent->id);
          const auto descriptor = rig.tier->Share(place, tenant);
          ASSERT_OK(descriptor);
          close(descriptor->descriptor);
          shared.push_back(place);
        }
      }
      while (!kept.empty() && (kept.size() > 6 || !extent.ok())) {
        const Kept& oldest = kept.front();
        ASSERT_EQ(rig.ReadAll(oldest.extent), Bytes(oldest.extent.length, oldest.value));
        rig.tier->Release(oldest.extent);
        kept.pop_front();
        if (rng() % 2 == 0) break;
      }
      if (shared.size() > 2) {
        rig.tier->Unshare(shared.front());
        shared.pop_front();
      }
    }
    for (const auto& place : shared) rig.tier->Unshare(place);
  }
}

TEST(DeviceTierTest, ExtentsAreCopiedToOtherMemoryOfTheirDevice) {
  Rig rig({.devices = 2});
  const Extent first = rig.Put("a", 5000, 1), second = rig.Put("a", 300, 2);
  const auto pool = static_cast<uint32_t>(rig.tier->PlaceOf(first.id).pool);
  auto memory = rig.tier->device_of(pool)->Allocate(16 << 10, /*exportable=*/false);
  ASSERT_OK(memory);
  const auto copy = [&](const Extent& extent, uint64_t address) {
    return rig.Wait([&](IoCallback done) {
      rig.tier->CopyOut(pool, {&extent, 1}, {&address, 1}, std::move(done));
    });
  };
  ASSERT_OK(copy(first, memory->address() + 256));
  std::vector<std::byte> bytes(5000);
  ASSERT_OK(rig.Wait([&](IoCallback done) {
    rig.tier->CopyToHost(pool, memory->address() + 256, bytes, std::move(done));
  }));
  EXPECT_EQ(bytes, Bytes(5000, 1));
  // The emptiest device got the second one.
  EXPECT_THAT(copy(second, memory->address()), StatusIs(StatusCode::kUnimplemented, _));
  rig.fake.control().lose(pool);
  EXPECT_THAT(copy(first, memory->address()), StatusIs(StatusCode::kUnavailable, _));
  rig.tier->Release(first);
  rig.tier->Release(second);
}

}  // namespace
}  // namespace cairn::cache
