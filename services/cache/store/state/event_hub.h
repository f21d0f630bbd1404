#pragma once
// The watchers of blocks' events. Thread-safe; Publish never blocks on a watcher.

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"
#include "services/cache/store/state/events.h"
#include "services/cache/store/state/ids.h"
#include "services/cache/store/state/memory_account.h"

namespace cairn::cache {

// Which events a watcher gets.
struct EventFilter {
  std::optional<Fingerprint> fingerprint = std::nullopt;  // nullopt: of all namespaces.
  std::string tenant = {};                                // Empty: of all tenants.

  bool Takes(const Fingerprint& namespace_of, std::string_view tenant_of) const {
    return (!fingerprint || *fingerprint == namespace_of) &&
           (tenant.empty() || tenant == tenant_of);
  }
};

class EventHub {
 public:
  // `clock` and `memory` must outlive the hub. Events that wait are charged to
  // MemoryItem::kWatches.
  EventHub(size_t queue_capacity, uint64_t node_epoch, const Clock& clock, MemoryAccount* memory)
      : queue_capacity_(queue_capacity), node_epoch_(node_epoch), clock_(clock), memory_(*memory) {}

  // Sets the epoch and the sequence of the event. `tenant`: whose namespace it is. Called under the
  // namespace's lock, so that a block's events have the order of its changes.
  void Publish(CacheEvent event, std::string_view tenant);
  // Appends some of the blocks that are here; false after the last.
  using NextPage = std::function<bool(std::vector<CacheEvent>* events)>;

  // Returns a queue that gets every event from now on that `filter` takes. The hub must outlive it.
  // `snapshot`, if set, makes the events before these, page by page on demand, with the sequence of
  // this moment, and then a kSnapshotEnd. It is called without any lock of the hub, and filters by
  // itself.
  std::unique_ptr<EventQueue> Subscribe(const EventFilter& filter, NextPage snapshot = nullptr);

  bool HasWatchers() const { return watchers_.load(std::memory_order_acquire) > 0; }
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  class Queue;
  const size_t queue_capacity_;
  const uint64_t node_epoch_;
  const Clock& clock_;
  MemoryAccount& memory_;
  std::atomic<size_t> watchers_{0};
  std::atomic<uint64_t> dropped_{0};
  Mutex mu_;
  uint64_t sequence_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<Queue*> queues_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::cache
