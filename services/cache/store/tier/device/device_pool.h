#pragma once
// The memory of one device: chunks of one tenant each, and the copies to and from them.
//
// The memory of a chunk is allocated when the chunk is first needed. It is zeroed before a tenant
// gets it, on the stream of the copies that come after. Memory that a session had is not used
// again: whoever kept a mapping of it sees nothing of the next tenant.
//
// Thread-safe.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"
#include "common/device/device.h"
#include "common/device/event_poller.h"
#include "services/cache/store/tier/device/chunk_pool.h"
#include "services/cache/store/tier/device/copy_lane.h"
#include "services/cache/store/tier/device/host_pins.h"
#include "services/cache/store/tier/device/inner_copies.h"
#include "services/cache/store/tier/tier.h"

namespace cairn::cache {

struct DevicePoolOptions {
  uint64_t capacity_bytes = 0;  // Rounded down to chunks; at least one.
  uint64_t chunk_bytes = 64 << 20;
  // The bytes of the pinned slots for copies of memory that is not pinned.
  uint64_t slot_bytes = 4 << 20;
  uint32_t slots = 4;  // In each direction.
};

struct DevicePoolStats {
  uint64_t capacity_bytes = 0;  // 0 when the device is lost.
  uint64_t used_bytes = 0;
  uint64_t memory_bytes = 0;   // Allocated on the device.
  uint64_t chunks = 0;         // With memory.
  uint64_t shared_chunks = 0;  // That sessions have.
  uint64_t extents = 0;
  uint64_t shortages = 0;     // Times that the device had no memory for a chunk.
  uint64_t detour_bytes = 0;  // Copied through slots.
};

class DevicePool {
 public:
  static constexpr Duration kRetryAfter = std::chrono::seconds(10);  // After a shortage.

  struct Dependencies {
    std::shared_ptr<device::Device> device;
    device::EventPoller* poller = nullptr;
    HostPins* pins = nullptr;
    const Clock* clock = nullptr;
    std::atomic<uint32_t>* next_memory = nullptr;  // Ids of chunks' memories.
  };
  // RESOURCE_EXHAUSTED, PERMISSION_DENIED, UNAVAILABLE: the device's answer.
  static Result<std::unique_ptr<DevicePool>> Create(const DevicePoolOptions& options,
                                                    const Dependencies& dependencies);
  ~DevicePool();

  const device::DeviceInfo& info() const { return device_->info(); }
  const std::shared_ptr<device::Device>& device() const { return device_; }
  bool lost() const { return device_->lost(); }
  // Asks the device something, so that it says if it is lost.
  void Look() { (void)device_->GetMemoryState(); }

  // An offset in the pool: chunk times the bytes of a chunk, and an offset in the chunk.
  // RESOURCE_EXHAUSTED: there is no room that the tenant may have.
  Result<uint64_t> Reserve(std::string_view tenant, uint32_t length);
  void Release(uint64_t offset, uint32_t length);
  // `host` stays valid until `done` has run.
  void Write(uint64_t offset, std::span<const std::byte> host, IoCallback done);
  void Read(uint64_t offset, std::span<std::byte> host, IoCallback done);
  // Copies reserved bytes to other memory of the device, of which `to` gives the addresses.
  struct Inner {
    uint64_t offset = 0;
    uint64_t bytes = 0;
    uint64_t to = 0;
  };
  void CopyOut(std::span<const Inner> copies, IoCallback done);
  // Copies from memory of the device that is not the pool's. `host` stays valid until `done` has
  // run.
  void CopyToHost(uint64_t address, std::span<std::byte> host, IoCallback done) {
    from_device_->Submit(address, host, std::move(done));
  }

  struct ChunkPlace {
    uint32_t chunk = 0;
    uint32_t memory = 0;  // Id of the chunk's memory: never 0, never used again.
    uint64_t offset = 0;  // In the chunk.
  };
  // The place of reserved bytes.
  ChunkPlace PlaceOf(uint64_t offset) const;
  struct Shared {
    int descriptor = -1;  // The caller's.
    uint64_t bytes = 0;
  };
  // For a session of the tenant. Counts the session, until Unshare. NOT_FOUND: the chunk has other
  // memory by now, or is another tenant's. UNIMPLEMENTED: the device does not export.
  Result<Shared> Share(uint32_t chunk, uint32_t memory, std::string_view tenant);
  // REQUIRES: nobody of the session can use the memory any more, as far as the system can tell.
  void Unshare(uint32_t chunk, uint32_t memory);

  bool HasLessThanItsShare(std::string_view tenant) const;
  // The tenants whose blocks a tenant's room could take, and the offsets of a chunk that is best
  // emptied.
  struct ToEmpty {
    uint32_t chunk = 0;
    std::string tenant;
  };
  std::optional<ToEmpty> ChunkToEmpty(std::string_view for_tenant) const;
  uint64_t chunk_bytes() const { return options_.chunk_bytes; }
  uint64_t pool_bytes() const { return chunk_count_ * options_.chunk_bytes; }

  DevicePoolStats GetStats() const;

 private:
  struct Chunk {
    device::DeviceMemory memory;
    uint32_t id = 0;        // The id of the memory.
    bool exported = false;  // Since it has this memory.
  };

  DevicePool(const DevicePoolOptions& options, const Dependencies& dependencies);
  Status Open();
  // Gives the tenant one chunk more. RESOURCE_EXHAUSTED: there is none.
  Status Grow(std::string_view tenant);
  // Memory for a claimed chunk, zeroed before anything that is written there later.
  Status Prepare(uint32_t chunk);
  uint64_t AddressOf(uint64_t offset) const;

  const DevicePoolOptions options_;
  const uint32_t chunk_count_;
  const std::shared_ptr<device::Device> device_;
  device::EventPoller& poller_;
  HostPins* const pins_;
  const Clock& clock_;
  std::atomic<uint32_t>& next_memory_;
  std::unique_ptr<CopyLane> to_device_, from_device_;
  std::unique_ptr<InnerCopies> inner_;

  mutable Mutex mu_;
  ChunkPool pool_ ABSL_GUARDED_BY(mu_);
  // The state of a claimed chunk: the thread that claimed it changes it.
  std::vector<Chunk> chunks_ ABSL_GUARDED_BY(mu_);
  uint64_t shortages_ ABSL_GUARDED_BY(mu_) = 0;
  TimePoint short_until_ ABSL_GUARDED_BY(mu_){};
};

}  // namespace cairn::cache
