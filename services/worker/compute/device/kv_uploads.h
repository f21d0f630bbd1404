#pragma once
// Brings earlier keys and values from the host's pages to the device, through pinned memory of this
// class (the pool's is not pinned): while the device copies one half of it, the host fills the
// other one.
//
// Not thread-safe.

#include <array>
#include <memory>
#include <vector>

#include "common/device/device.h"

namespace cairn::worker {

class KvUploads {
 public:
  // `most_bytes`: of one Add.
  static Result<std::unique_ptr<KvUploads>> Create(const std::shared_ptr<device::Device>& device,
                                                   size_t most_bytes);

  // The bytes are read before it returns.
  Status Add(uint64_t to, const std::byte* from, size_t bytes);
  // Later work on `stream` begins when all that was added has arrived.
  Status OrderBefore(device::Stream* stream);
  // Waits until nothing is under way, and forgets what was not sent.
  Status Drain();

 private:
  struct Half {
    device::PinnedMemory memory;
    device::Event sent;
    size_t used = 0;
    bool under_way = false;  // The device may still read it.
    std::vector<device::CopyTask> tasks;
  };

  KvUploads() = default;
  // Sends the current half.
  Status Send();
  Half& current() { return halves_[current_]; }

  device::Stream stream_;
  device::Event drained_;
  std::array<Half, 2> halves_;
  size_t current_ = 0;
  bool added_ = false;  // Since the last OrderBefore.
};

}  // namespace cairn::worker
