#pragma once
// The queue that tells a watcher what happened to blocks.

#include <cstddef>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/kv/cache_event.h"
#include "cairn/common/status.h"

namespace cairn::cache {

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
