#pragma once
// Copies blocks from disk to host for readers who wait for them, and for hints. Thread-safe.
//
//   Request -> queue -> [executor] pin, make room, read every part -> [any thread] verify, show in
//   host -> progress.Notify
//
// A block that fails its hash leaves the disk tier. One that finds no room in host stays on disk:
// its reader reads it for himself. A hint's block makes room only at the cost of blocks that are
// likely to be used later than it.

#include <memory>

#include "services/cache/mover/evictor.h"
#include "services/cache/mover/move_queue.h"
#include "services/cache/mover/pump.h"
#include "services/cache/state/node_context.h"

namespace cairn::cache {

class Promoter {
 public:
  Promoter(NodeContext* context, Evictor* evictor);

  // All full when there is no disk tier. `waiter`: when it dies, moves that have not begun and have
  // no other are cancelled. Kick afterwards.
  MoveQueue::PushedAll Request(const NamespacePtr& ns, std::span<const MoveQueue::Wanted> wanted,
                               MovePriority priority, const std::weak_ptr<const void>& waiter);
  void Kick() { pump_.Kick(); }
  // Waits or is under way.
  bool IsPending(const NamespaceState& ns, const BlockKey& key) const {
    return queue_.Contains(ns, key);
  }
  const MoveQueue& queue() const { return queue_; }

 private:
  struct Operation;
  bool StartOne();
  void Finish(Operation& operation);
  // What a hint's block may evict. Under the lock of its namespace.
  uint64_t RankBelowHint(const BlockMeta& hinted) const;

  NodeContext& context_;
  Evictor& evictor_;
  MoveQueue queue_;
  Pump pump_;
};

}  // namespace cairn::cache
