#include "clients/cpp/src/local/chunk_map.h"

#include <algorithm>

#include "common/log/log.h"
#include "protocol/shm/decode.h"

namespace cairn::client::local {

Status ChunkMap::Add(const shm::ChunkEntry& entry, int fd) {
  const std::string uuid = shm::Text(entry.device.uuid);
  const std::vector<std::string> known = importer_->uuids();
  if (std::find(known.begin(), known.end(), uuid) == known.end()) {
    return Errorf(StatusCode::kDataLoss, "node: chunk {} of the GPU '{}', which was not asked for",
                  entry.id, uuid);
  }
  {
    MutexLock lock(mu_);
    if (chunks_.size() >= kMaxChunks) {
      return Errorf(StatusCode::kDataLoss, "node: more than {} chunks", kMaxChunks);
    }
    if (!chunks_.emplace(entry.id, Found{nullptr, entry.bytes}).second) {
      return Errorf(StatusCode::kDataLoss, "node: chunk {} came twice", entry.id);
    }
  }
  auto chunk = importer_->Import(uuid, fd, entry.bytes);
  if (!chunk.ok()) {
    log::Warn("cache_chunk_not_imported", {{"device", uuid}, {"reason", Message(chunk.status())}});
    return OkStatus();
  }
  MutexLock lock(mu_);
  chunks_[entry.id].chunk = *std::move(chunk);
  return OkStatus();
}

std::optional<ChunkMap::Found> ChunkMap::Find(uint32_t id) const {
  MutexLock lock(mu_);
  const auto it = chunks_.find(id);
  if (it == chunks_.end()) return std::nullopt;
  return it->second;
}

}  // namespace cairn::client::local
