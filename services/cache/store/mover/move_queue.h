#pragma once
// The waiting moves of one (source, target): bounded, by priority, one entry per block.
// Thread-safe.
//
// A full queue takes a move of higher priority and drops the youngest move of the lowest priority
// for it. It also forgets moves that nobody waits for any more.

#include <map>
#include <memory>
#include <optional>
#include <span>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "common/concurrency/mutex.h"
#include "services/cache/store/state/namespace_state.h"

namespace cairn::cache {

// kDemand: a reader waits. kPrefetch: one was announced. kWriteBack: a commit's first copies to
// disk. kRebalance: copies that can wait for all others.
enum class MovePriority : uint8_t { kDemand = 0, kPrefetch = 1, kWriteBack = 2, kRebalance = 3 };
inline constexpr size_t kMovePriorityCount = 4;

struct Move {
  NamespacePtr ns;
  BlockKey key;
  MovePriority priority = MovePriority::kDemand;
};

class MoveQueue {
 public:
  struct Options {
    size_t capacity = 4096;  // Waiting moves, not counting those under way.
    size_t max_under_way = 4;
    size_t max_prefetch_under_way = 2;  // Keeps places free for demand.
  };
  struct Wanted {
    BlockKey key;
    uint64_t bytes = 0;
  };
  enum class Pushed { kQueued, kMerged, kFull };
  struct PushedAll {
    size_t queued = 0;
    size_t merged = 0;
    // The queue was full from wanted[queued + merged] on; they were not looked at.
    size_t full = 0;
    // The bytes of moves that go before the last of these, these not counted.
    uint64_t bytes_ahead = 0;
  };
  struct Stats {
    uint64_t merged = 0;     // Requests for a block that waited or was under way already.
    uint64_t cancelled = 0;  // Moves that never began: nobody waited any more, or displaced.
  };

  explicit MoveQueue(const Options& options) : options_(options) {}

  // A block that already waits is merged and waits with the higher of the two priorities. A block
  // that is already being moved is merged too. `waiter`: who wants it. A move is cancelled if all
  // its waiters are gone when its turn comes. `anyway`: it has no waiter, and is never cancelled or
  // displaced.
  Pushed Push(const NamespacePtr& ns, const Wanted& wanted, MovePriority priority,
              std::weak_ptr<const void> waiter, bool anyway);
  // The same for many, in order, under one lock.
  PushedAll PushAll(const NamespacePtr& ns, std::span<const Wanted> wanted, MovePriority priority,
                    const std::weak_ptr<const void>& waiter);
  // Returns the next move, which then runs. nullopt: nothing waits, or enough moves run. Each move
  // must end with Done.
  std::optional<Move> Pop();
  void Done(const Move& move);

  bool Contains(const NamespaceState& ns, const BlockKey& key) const;
  size_t depth() const;  // Waiting.
  size_t depth(MovePriority priority) const;
  size_t under_way() const;
  // Waiting with this priority or a higher one, and under way.
  uint64_t BytesAhead(MovePriority priority) const;
  Stats GetStats() const;

 private:
  using Id = std::pair<const NamespaceState*, BlockKey>;
  struct Entry {
    NamespacePtr ns;
    absl::InlinedVector<std::weak_ptr<const void>, 1> waiters;
    uint64_t bytes = 0;
    uint64_t ticket = 0;  // Its place in the line of its priority.
    bool anyway = false;
    bool under_way = false;
    MovePriority priority = MovePriority::kDemand;
  };
  struct Line {
    std::map<uint64_t, Id> places;  // By ticket.
    uint64_t bytes = 0;
  };
  using Entries = absl::flat_hash_map<Id, Entry>;

  Pushed PushLocked(const NamespacePtr& ns, const Wanted& wanted, MovePriority priority,
                    std::weak_ptr<const void> waiter, bool anyway)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddWaiter(Entry& entry, std::weak_ptr<const void> waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool MakeRoom(MovePriority priority) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Enter(const Id& id, Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Leave(const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint64_t BytesAheadLocked(MovePriority priority) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static bool Wanting(const Entry& entry);

  const Options options_;
  mutable Mutex mu_;
  Entries entries_ ABSL_GUARDED_BY(mu_);
  Line lines_[kMovePriorityCount] ABSL_GUARDED_BY(mu_);
  size_t waiting_ ABSL_GUARDED_BY(mu_) = 0;
  size_t under_way_ ABSL_GUARDED_BY(mu_) = 0;
  size_t prefetches_under_way_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t under_way_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t next_ticket_ ABSL_GUARDED_BY(mu_) = 1;
  size_t refused_since_sweep_ ABSL_GUARDED_BY(mu_) = 0;
  Stats stats_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::cache
