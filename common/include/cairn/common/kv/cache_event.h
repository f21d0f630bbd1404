#pragma once
// An event in the life of a block of a node.

#include <cstdint>
#include <optional>

#include "cairn/common/hash.h"
#include "cairn/common/namespace_spec.h"
#include "cairn/common/tier_kind.h"

namespace cairn {

// The message Event of proto/cairn/v1/cache.proto, which says which fields each kind has.
struct CacheEvent {
  // The numbers are those of the wire.
  enum class Kind : uint8_t {
    kStored = 1,
    kRemoved = 2,
    kTierAdded = 3,
    kTierRemoved = 4,
    kSnapshotEnd = 5,
    kNamespaceDropped = 6,
  };
  Kind kind = Kind::kStored;
  uint64_t node_epoch = 0;
  uint64_t sequence = 0;
  Digest fingerprint = {};
  BlockKey key = {};
  std::optional<BlockKey> parent = {};
  TierKind tier = TierKind::kHost;
  // The number of the block's pool. 0 also in layouts without pools. Clients of a node are told it
  // with kStored alone.
  uint32_t pool = 0;
};

}  // namespace cairn
