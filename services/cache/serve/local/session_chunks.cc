#include "services/cache/serve/local/session_chunks.h"

#include <unistd.h>

#include <algorithm>

#include "protocol/shm/decode.h"

namespace cairn::cache {

SessionChunks::SessionChunks(DeviceTier* tier, std::string tenant,
                             std::span<const std::string> uuids, shm::Descriptor process,
                             LeftChunks* left)
    : tier_(*tier), tenant_(std::move(tenant)), process_(std::move(process)), left_(left) {
  for (uint32_t pool = 0; pool < tier_.pool_count(); ++pool) {
    reachable_.push_back(std::find(uuids.begin(), uuids.end(), tier_.uuid_of(pool)) != uuids.end());
  }
}

SessionChunks::~SessionChunks() {
  std::vector<DeviceTier::Place> chunks;
  for (const auto& [memory, place] : held_) chunks.push_back(place);
  left_->Keep(std::move(process_), std::move(chunks));
}

bool SessionChunks::Expose(const DeviceTier::Place& place, const Send& send) {
  if (held_.contains(place.memory)) return true;
  auto shared = tier_.Share(place, tenant_);
  if (!shared.ok()) return false;
  shm::Chunks message;
  message.header.type = static_cast<uint16_t>(shm::MessageType::kChunks);
  message.count = 1;
  message.entries[0].id = place.memory;
  message.entries[0].bytes = shared->bytes;
  shm::SetText(message.entries[0].device.uuid, tier_.uuid_of(place.pool));
  const Status sent = send(message, {&shared->descriptor, 1});
  close(shared->descriptor);
  if (!sent.ok()) {
    tier_.Unshare(place);
    return false;
  }
  held_.emplace(place.memory, place);
  return true;
}

}  // namespace cairn::cache
