#pragma once
// Hints: blocks that will be asked for soon. Thread-safe.
//
// A hinted block counts as used at the time it is needed, plus a grace: so eviction takes others
// first, in every tier, without a lease that could block a writer. Blocks on disk are queued behind
// all demand. Both end by themselves: the queue forgets the move once the hint is over, and
// the time of use passes. The bytes that hints hold at a time are bounded.

#include <map>
#include <memory>

#include "services/cache/store/engine/cache_engine.h"
#include "services/cache/store/lease/session_table.h"
#include "services/cache/store/mover/promoters.h"
#include "services/cache/store/state/node_context.h"

namespace cairn::cache {

class PrefetchPath {
 public:
  PrefetchPath(NodeContext* context, SessionTable* sessions, Promoters* promoters);

  // As CacheEngine's.
  Result<PrefetchOutcome> Prefetch(const PrefetchRequest& request);

  // Moves for this session's hints are cancelled; their bytes count until their time has come.
  void EndSession(SessionId session);
  // Ends hints whose time has come.
  void Tick();
  uint64_t hinted_bytes() const;

 private:
  struct Hint {
    SessionId session = 0;
    uint64_t bytes = 0;
    std::shared_ptr<const void> waiter;  // The waiter of its moves.
  };

  // Protects and queues the blocks.
  Result<PrefetchOutcome> Take(const PrefetchRequest& request);
  // Asks for blocks of the tier in host, and adds to the result what becomes of them.
  void Queue(const NamespacePtr& ns, TierKind tier, std::span<const MoveQueue::Wanted> wanted,
             const std::weak_ptr<const void>& waiter, PrefetchOutcome* result);

  NodeContext& context_;
  SessionTable& sessions_;
  Promoters& promoters_;
  const uint64_t max_bytes_;
  // Held for a whole Take, outside the namespace's lock: two hints cannot take the same free bytes.
  mutable Mutex mu_;
  std::multimap<TimePoint, Hint> hints_ ABSL_GUARDED_BY(mu_);  // By their end.
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace cairn::cache
