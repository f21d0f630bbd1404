#pragma once
// Who watches what happens to blocks. Thread-safe; Publish never blocks on a watcher.

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "services/cache/engine/cache_engine.h"
#include "services/common/concurrency/mutex.h"

namespace cairn::cache {

class EventHub {
 public:
  explicit EventHub(size_t queue_capacity) : queue_capacity_(queue_capacity) {}

  // Sequence is set here. Called under the namespace's lock, so that a block's events have the
  // order of its changes.
  void Publish(CacheEvent event);
  // A queue that sees every event from now on. The hub outlives it.
  std::unique_ptr<EventQueue> Subscribe(const std::optional<Fingerprint>& fingerprint);
  // Events of blocks that are here already, for one queue made by Subscribe. They do not count
  // against its capacity. Called under the namespace's lock; then `EndSnapshot` once.
  void AddToSnapshot(EventQueue& queue, std::vector<CacheEvent> events);
  void EndSnapshot(EventQueue& queue);

  bool HasWatchers() const { return watchers_.load(std::memory_order_acquire) > 0; }
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  class Queue;
  const size_t queue_capacity_;
  std::atomic<size_t> watchers_{0};
  std::atomic<uint64_t> dropped_{0};
  Mutex mu_;
  uint64_t sequence_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<Queue*> queues_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::cache
