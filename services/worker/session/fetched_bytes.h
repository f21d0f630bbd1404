#pragma once
// Where fetched bytes came from.

#include <cstdint>
#include <optional>

#include "cairn/common/tier_kind.h"

namespace cairn::worker {

// Fetched bytes by the tier of the cache node that they came from.
struct BytesByTier {
  uint64_t host = 0;
  uint64_t disk = 0;
  uint64_t device = 0;
  uint64_t lent = 0;  // How many of these were used in place in the node's memory, without a copy.

  // nullopt: in no tier of the node, which got them from another place. They passed through its
  // memory, and count as the host tier's.
  uint64_t& Of(std::optional<TierKind> tier) {
    if (tier == TierKind::kDisk) return disk;
    return tier == TierKind::kDevice ? device : host;
  }
  uint64_t total() const { return host + disk + device; }
  BytesByTier& operator+=(const BytesByTier& other) {
    host += other.host;
    disk += other.disk;
    device += other.device;
    lent += other.lent;
    return *this;
  }
};

}  // namespace cairn::worker
