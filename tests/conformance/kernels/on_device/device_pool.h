#pragma once
// Memory of a device in pieces of any size.

#include <mutex>
#include <vector>

#include "cairn/kernels/memory.h"
#include "common/device/device.h"

namespace cairn::kernels::testing {

// Takes chunks of the device one after another and never gives them back. Pieces follow each other
// in a chunk, and begin at its start again once all pieces have been freed: a test frees all that
// it has. Thread-safe.
class DevicePool final : public Memory {
 public:
  explicit DevicePool(std::shared_ptr<device::Device> device) : device_(std::move(device)) {}

  std::byte* Allocate(size_t bytes) override;
  void Free(std::byte* memory) override;

 private:
  struct Chunk {
    device::DeviceMemory memory;
    uint64_t used = 0;
  };
  static std::byte* Take(Chunk* chunk, uint64_t bytes);

  const std::shared_ptr<device::Device> device_;
  std::mutex mutex_;
  std::vector<Chunk> chunks_;
  uint64_t live_ = 0;
};

}  // namespace cairn::kernels::testing
