#pragma once
// The chunks of GPUs that one same-node session has. They stay its own until it ends: whoever
// imported a chunk can read and write it as long as the mapping exists, which the node cannot see.
//
// The server's thread owns it; CanRead may be called by others.

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "protocol/shm/protocol.h"
#include "services/cache/serve/local/left_chunks.h"
#include "services/cache/store/engine/in_place.h"
#include "services/cache/store/tier/device/device_tier.h"

namespace cairn::cache {

class SessionChunks final : public DeviceReach {
 public:
  // `uuids`: of the GPUs whose memory the client can import. `tenant`: whose chunks it gets.
  // `process`: of the client; not valid: the chunks are given back when the session ends. Else they
  // then go to `left`, which outlives this.
  SessionChunks(DeviceTier* tier, std::string tenant, std::span<const std::string> uuids,
                shm::Descriptor process, LeftChunks* left);
  ~SessionChunks() override;
  SessionChunks(const SessionChunks&) = delete;
  SessionChunks& operator=(const SessionChunks&) = delete;

  bool CanRead(uint64_t extent) const override { return reachable_[tier_.PlaceOf(extent).pool]; }
  // Sends the chunk by `send`, unless the client has it. False: it cannot have it.
  using Send = std::function<Status(const shm::Chunks& message, std::span<const int> descriptors)>;
  bool Expose(const DeviceTier::Place& place, const Send& send);

  size_t count() const { return held_.size(); }

 private:
  DeviceTier& tier_;
  const std::string tenant_;
  shm::Descriptor process_;
  LeftChunks* const left_;
  std::vector<bool> reachable_;                 // By pool. Constant.
  std::map<uint32_t, DeviceTier::Place> held_;  // By the id of the memory.
};

}  // namespace cairn::cache
