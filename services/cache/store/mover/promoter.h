#pragma once
// Copies blocks from one tier to another for readers who wait for them, for hints, and to where the
// next reader gets them sooner. Thread-safe.
//
//   Request -> queue -> [executor] pin, make room, load every part -> [any thread] verify, store,
//   show in the target -> progress.Notify
//
// A block that fails its hash leaves the source. One that finds no room in the target stays where
// it is: the reader then reads it directly from there. A hint's block makes room only at the cost
// of blocks that are likely to be used later than it.

#include <memory>

#include "services/cache/store/mover/evictor.h"
#include "services/cache/store/mover/move_queue.h"
#include "services/cache/store/mover/pump.h"
#include "services/cache/store/mover/transfer.h"
#include "services/cache/store/state/node_context.h"

namespace cairn::cache {

class Promoter {
 public:
  Promoter(NodeContext* context, Evictor* evictor, const Route& route);

  // `waiter`: when it dies, moves that have not begun and have no other are cancelled. Kick
  // afterwards.
  MoveQueue::PushedAll Request(const NamespacePtr& ns, std::span<const MoveQueue::Wanted> wanted,
                               MovePriority priority, const std::weak_ptr<const void>& waiter) {
    return queue_.PushAll(ns, wanted, priority, waiter);
  }
  void Kick() { pump_.Kick(); }
  // Waits or is under way.
  bool IsPending(const NamespaceState& ns, const BlockKey& key) const {
    return queue_.Contains(ns, key);
  }
  const Route& route() const { return route_; }
  const MoveQueue& queue() const { return queue_; }

 private:
  struct Operation;
  bool StartOne();
  // Pins the block of the operation and says what may make room for it. False: there is nothing to
  // move.
  bool Pin(Operation* operation, Victims* victims);
  void Finish(Operation& operation);
  // The rank below which a hint's block may evict others. Under the lock of its namespace.
  uint64_t RankBelowHint(const BlockMeta& hinted) const;

  NodeContext& context_;
  Evictor& evictor_;
  const Route route_;
  // Loads from a mapped source take no time that an estimate should know.
  const bool paced_;
  MoveQueue queue_;
  Pump pump_;
};

}  // namespace cairn::cache
