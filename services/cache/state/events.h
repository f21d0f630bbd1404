#pragma once
// The events that tell watchers what happened to a block.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/namespace_spec.h"
#include "cairn/common/status.h"
#include "services/cache/state/ids.h"
#include "services/cache/tier/tier.h"

namespace cairn::cache {

struct CacheEvent {
  enum class Kind : uint8_t {
    kStored = 1,
    kRemoved = 2,
    kTierAdded = 3,
    kTierRemoved = 4,
    kSnapshotEnd = 5,
    kNamespaceDropped = 6
  };
  Kind kind = Kind::kStored;
  uint64_t sequence = 0;
  Fingerprint fingerprint;
  BlockKey key;
  std::optional<BlockKey> parent;
  TierKind tier = TierKind::kHost;
};

// One watcher's bounded queue. Thread-safe. Destroying it unsubscribes.
class EventQueue {
 public:
  virtual ~EventQueue() = default;
  // Returns the next events, at most `max`. Empty: `deadline` passed on the node's clock.
  // RESOURCE_EXHAUSTED: the watcher was too slow, and the queue gives no more events.
  virtual Result<std::vector<CacheEvent>> Next(size_t max, TimePoint deadline) = 0;
  // Wakes a blocked Next, which then returns CANCELLED.
  virtual void Cancel() = 0;
};

}  // namespace cairn::cache
