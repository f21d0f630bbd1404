#pragma once
// Memory of a device that grows with what passes need. Nothing uses it while it grows. Not
// thread-safe.

#include <algorithm>
#include <cstdint>
#include <memory>

#include "services/worker/compute/device/device_weights.h"

namespace cairn::worker {

class GrowingMemory {
 public:
  // RESOURCE_EXHAUSTED says what for, and how much is free.
  Status Grow(const char* what, uint64_t bytes, const std::shared_ptr<device::Device>& device) {
    if (bytes <= memory_.bytes()) return OkStatus();
    const uint64_t more = std::max(bytes, 2 * memory_.bytes());
    memory_.Release();
    CAIRN_ASSIGN_OR_RETURN(memory_, AllocateFor(what, more, device));
    ++moves_;
    return OkStatus();
  }
  uint64_t address() const { return memory_.address(); }
  uint64_t bytes() const { return memory_.bytes(); }
  // How often it has become another memory: who noted an address asks.
  uint64_t moves() const { return moves_; }

 private:
  device::DeviceMemory memory_;
  uint64_t moves_ = 0;
};

}  // namespace cairn::worker
