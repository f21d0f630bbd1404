#pragma once
// The device tier: blocks in the memory of GPUs, one pool for each.
//
//   promotion ─► Write ─► copy engine ─► chunk in VRAM ─► Read ─► host      (this process)
//                                            └─► Share ─► descriptor ─► a session on this machine
//
// The node runs no kernels, only copies, and nothing of it waits for a device: one thread asks for
// events. A device that is lost stays lost: its extents cannot be read any more (IsLost), nothing
// is written there, and the other tiers go on.
//
// An extent's id says in which pool it lies, and where. Thread-safe.

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/clock.h"
#include "common/device/driver.h"
#include "common/device/event_poller.h"
#include "services/cache/store/tier/device/device_pool.h"
#include "services/cache/store/tier/device/host_pins.h"
#include "services/cache/store/tier/host_tier.h"
#include "services/cache/store/tier/tier.h"

namespace cairn::cache {

struct DeviceTierOptions {
  // Ordinals, or beginnings of uuids. Empty: all devices.
  std::vector<std::string> devices = {};
  DevicePoolOptions pool = {};  // The options of each device.
  bool pin_host = true;         // Pin segments of the host tier, instead of copying through slots.
  // How often events are asked for while copies are under way. 0: by Step alone, without a thread.
  Duration poll_interval = std::chrono::microseconds(50);
};

// The statistics of one device.
struct DeviceTierStats : DevicePoolStats {
  std::string uuid;
  std::string name;
  bool lost = false;
};

class DeviceTier final : public Tier {
 public:
  struct Dependencies {
    std::shared_ptr<device::Driver> driver;
    // The tier whose memory is copied most. Before it goes, the tier goes. nullptr: nothing is
    // pinned.
    HostTier* host = nullptr;
    const Clock* clock = nullptr;  // Required.
  };
  // INVALID_ARGUMENT and NOT_FOUND name the setting. FAILED_PRECONDITION: there is no device.
  static Result<std::unique_ptr<DeviceTier>> Create(const DeviceTierOptions& options,
                                                    const Dependencies& dependencies);
  // REQUIRES: no read or write is under way.
  ~DeviceTier() override;

  TierKind kind() const override { return TierKind::kDevice; }
  Result<Extent> Reserve(uint32_t length) override { return ReserveOf({}, length); }
  Result<Extent> ReserveOf(std::string_view tenant, uint32_t length) override;
  std::optional<TenantGroup> GroupToEmpty(std::string_view tenant) override;
  bool divided() const override { return true; }
  void Release(const Extent& extent) override;
  void Write(const Extent& extent, std::string_view record, std::span<const std::byte> source,
             IoCallback done) override;
  void Read(const Extent& extent, std::span<std::byte> destination, IoCallback done) override;
  std::span<std::byte> Map(const Extent&) override { return {}; }
  uint32_t max_extent_bytes() const override;
  TierStats GetStats() const override;
  uint64_t losses() const override;
  bool IsLost(const Extent& extent) const override { return PoolOf(extent.id).lost(); }

  // ---- For sessions on this machine ----

  struct Place {
    uint32_t pool = 0;
    uint32_t chunk = 0;
    uint32_t memory = 0;  // Id of the chunk's memory: never 0, never used again.
    uint64_t offset = 0;
  };
  Place PlaceOf(uint64_t extent_id) const;
  const std::string& uuid_of(uint32_t pool) const { return pools_[pool]->info().uuid; }
  size_t pool_count() const { return pools_.size(); }
  // As DevicePool's.
  Result<DevicePool::Shared> Share(const Place& place, std::string_view tenant) {
    return pools_[place.pool]->Share(place.chunk, place.memory, tenant);
  }
  void Unshare(const Place& place) { pools_[place.pool]->Unshare(place.chunk, place.memory); }

  // ---- For moves to and from GPUs of other members ----

  const std::shared_ptr<device::Device>& device_of(uint32_t pool) const {
    return pools_[pool]->device();
  }
  // Copies extents to other memory of `pool`'s device, one to each address. UNIMPLEMENTED, by
  // `done`: one of them lies on another device. The extents are not released before.
  void CopyOut(uint32_t pool, std::span<const Extent> extents, std::span<const uint64_t> addresses,
               IoCallback done);
  // Copies from memory of `pool`'s device that is not the tier's. `host` stays valid until `done`
  // has run.
  void CopyToHost(uint32_t pool, uint64_t address, std::span<std::byte> host, IoCallback done) {
    pools_[pool]->CopyToHost(address, host, std::move(done));
  }

  std::vector<DeviceTierStats> GetDeviceStats() const;
  // Pinned memory of the host tier.
  uint64_t pinned_bytes() const { return pins_ == nullptr ? 0 : pins_->pinned_bytes(); }
  uint64_t pin_refusals() const { return pins_ == nullptr ? 0 : pins_->refusals(); }

  // Asks each device whether it is there, at most once in kLookEvery: one that is lost while nobody
  // copies is noticed, too. Call it from time to time, on one thread.
  static constexpr Duration kLookEvery = std::chrono::seconds(2);
  void Tick();

  // Asks for events once. For owners without the thread. Returns how many copies ended.
  size_t Step() { return poller_.Step(); }

 private:
  // Above every offset of a pool.
  static constexpr int kPoolShift = 48;

  DeviceTier() = default;
  Status Open(const DeviceTierOptions& options, const Dependencies& dependencies);
  const DevicePool& PoolOf(uint64_t id) const { return *pools_[id >> kPoolShift]; }
  DevicePool& PoolOf(uint64_t id) { return *pools_[id >> kPoolShift]; }
  static uint64_t OffsetOf(uint64_t id) { return id & ((uint64_t{1} << kPoolShift) - 1); }
  void Count(std::atomic<uint64_t>* bytes, uint64_t length, const Status& status);

  std::atomic<uint32_t> next_memory_{1};
  device::EventPoller poller_;
  std::unique_ptr<HostPins> pins_;
  std::vector<std::unique_ptr<DevicePool>> pools_;  // Constant after Open.
  std::unique_ptr<device::PollingThread> thread_;
  const Clock* clock_ = nullptr;
  TimePoint next_look_{};  // By Tick alone.
  std::atomic<uint64_t> read_bytes_{0}, written_bytes_{0}, io_errors_{0};
};

}  // namespace cairn::cache
