#pragma once
// The memory of a GPU that moves of blocks go out of and come into. It is the only one that links
// know.
//
// Thread-safe. Whoever has a room keeps the buffer.

#include <cstdint>
#include <memory>

#include "common/concurrency/mutex.h"
#include "common/device/device.h"
#include "services/cache/store/tier/extent_allocator.h"

namespace cairn::cache {

class ExchangeBuffer : public std::enable_shared_from_this<ExchangeBuffer> {
 public:
  static constexpr uint64_t kPageBytes = 4096;
  // The buffer has a half for each direction: data that comes in never waits for data that goes
  // out.
  enum class Half : uint32_t { kIn = 0, kOut = 1 };

  // `bytes`: of both halves; rounded down to pages, and up to what the device allocates. Errors as
  // Device::Allocate.
  static Result<std::shared_ptr<ExchangeBuffer>> Create(std::shared_ptr<device::Device> device,
                                                        uint64_t bytes);

  uint64_t address() const { return memory_.address(); }
  uint64_t bytes() const { return 2 * half_pages_ * kPageBytes; }

  struct Room {
    uint64_t offset = 0;
    uint64_t bytes = 0;
    std::shared_ptr<void> keep;  // With the last copy the room is free again.
  };
  // `bytes`: at least 1. RESOURCE_EXHAUSTED: there is no room now, or never.
  Result<Room> Take(Half half, uint64_t bytes);
  uint64_t used_bytes() const;

 private:
  struct Taken;
  ExchangeBuffer(device::DeviceMemory memory, uint32_t half_pages);

  const device::DeviceMemory memory_;
  const uint64_t half_pages_;
  mutable Mutex mu_;
  ExtentAllocator pages_ ABSL_GUARDED_BY(mu_);
  const uint32_t out_pool_;
};

}  // namespace cairn::cache
