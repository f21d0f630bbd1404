#pragma once
// Chunks of GPUs that the node handed over, each imported once.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include "cairn/client/device_importer.h"
#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"
#include "protocol/shm/protocol.h"

namespace cairn::client::local {

// They stay mapped until it is destroyed, since the node never takes one back from a session.
// Thread-safe.
class ChunkMap {
 public:
  static constexpr size_t kMaxChunks = 65536;

  explicit ChunkMap(std::shared_ptr<DeviceImporter> importer) : importer_(std::move(importer)) {}

  // DATA_LOSS: an id that is there already, a GPU that the client did not name, or too many chunks.
  // A chunk that cannot be imported is noted as such, and logged.
  Status Add(const shm::ChunkEntry& entry, int fd);

  struct Found {
    std::shared_ptr<const DeviceChunk> chunk = {};  // Null: it could not be imported.
    uint64_t bytes = 0;
  };
  // nullopt: unknown.
  std::optional<Found> Find(uint32_t id) const;

 private:
  const std::shared_ptr<DeviceImporter> importer_;
  mutable Mutex mu_;
  std::unordered_map<uint32_t, Found> chunks_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::client::local
