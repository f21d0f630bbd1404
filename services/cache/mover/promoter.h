#pragma once
// Copies blocks from disk to host for readers who wait for them. Thread-safe.
//
//   Request -> queue -> [executor] pin, make room, read every part -> [any thread] verify, show in
//   host -> progress.Notify
//
// A block that fails its hash leaves the disk tier. One that finds no room in host stays on disk:
// its reader reads it for himself.

#include <memory>

#include "services/cache/engine/node_context.h"
#include "services/cache/mover/evictor.h"
#include "services/cache/mover/move_queue.h"
#include "services/cache/mover/pump.h"

namespace cairn::cache {

class Promoter {
 public:
  Promoter(NodeContext* context, Evictor* evictor);

  // False when the queue is full, or there is no disk tier. `waiter`: when it dies, the move is
  // cancelled unless it has begun. Kick afterwards.
  bool Request(const NamespacePtr& ns, const BlockKey& key, MovePriority priority,
               std::weak_ptr<const void> waiter);
  void Kick() { pump_.Kick(); }
  // Waits or is under way.
  bool IsPending(const NamespaceState& ns, const BlockKey& key) const {
    return queue_.Contains(ns, key);
  }
  size_t depth() const { return queue_.depth(); }

 private:
  struct Operation;
  bool StartOne();
  void Finish(Operation& operation);
  void CountBusyTime(int change);

  NodeContext& context_;
  Evictor& evictor_;
  MoveQueue queue_;
  Pump pump_;
  Mutex busy_mu_;
  size_t active_ ABSL_GUARDED_BY(busy_mu_) = 0;
  TimePoint busy_since_ ABSL_GUARDED_BY(busy_mu_);
};

}  // namespace cairn::cache
