#pragma once
// Chunks of GPUs whose sessions have ended while the process that imported them lives. It may keep
// its mapping, and then the device's memory stays taken, whatever is done with the chunk here. So
// such a chunk stays as it is, its tenant's, until the process has ended: otherwise the node would
// give the chunk other memory, and processes that come and go would take more than the capacity.
//
// What a process passes on to others is not seen.

#include <cstddef>
#include <vector>

#include "protocol/shm/socket.h"
#include "services/cache/store/tier/device/device_tier.h"

namespace cairn::cache {

// Belongs to the server's thread.
class LeftChunks {
 public:
  explicit LeftChunks(DeviceTier* tier) : tier_(tier) {}  // nullptr: there are no devices.
  // Gives all of them back.
  ~LeftChunks();
  LeftChunks(const LeftChunks&) = delete;
  LeftChunks& operator=(const LeftChunks&) = delete;

  // Gives the chunks back when the process has ended: at once if it is not known.
  void Keep(shm::Descriptor process, std::vector<DeviceTier::Place> chunks);
  // Looks which processes have ended. Call it from time to time.
  void Look();
  size_t count() const;

 private:
  struct Left {
    shm::Descriptor process;  // Readable when it has ended.
    std::vector<DeviceTier::Place> chunks;
  };

  void GiveBack(const std::vector<DeviceTier::Place>& chunks);

  DeviceTier* const tier_;
  std::vector<Left> left_;
};

}  // namespace cairn::cache
