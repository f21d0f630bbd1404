#pragma once
// The waiting moves of one (source, target): bounded, by priority, one entry per block.
// Thread-safe.

#include <deque>
#include <memory>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "services/cache/engine/namespace_state.h"
#include "services/common/concurrency/mutex.h"

namespace cairn::cache {

enum class MovePriority : uint8_t { kDemand = 0, kPrefetch = 1, kWriteBack = 2 };
inline constexpr size_t kMovePriorityCount = 3;

struct Move {
  NamespacePtr ns;
  BlockKey key;
};

class MoveQueue {
 public:
  struct Options {
    size_t capacity = 4096;  // Waiting moves, not counting those under way.
    size_t max_under_way = 4;
  };
  enum class Pushed { kQueued, kMerged, kFull };

  explicit MoveQueue(const Options& options) : options_(options) {}

  // A block that waits already is merged, and waits with the higher of the two priorities; one that
  // is under way is merged as well. `waiter`: who wants it; a move whose waiter is gone when its
  // turn comes is cancelled. `anyway`: it has none, and is never.
  Pushed Push(const NamespacePtr& ns, const BlockKey& key, MovePriority priority,
              std::weak_ptr<const void> waiter, bool anyway);
  // The next move, now under way; nullopt when nothing waits or enough are. Each must end in Done.
  std::optional<Move> Pop();
  void Done(const Move& move);

  bool Contains(const NamespaceState& ns, const BlockKey& key) const;
  size_t depth() const;  // Waiting.
  size_t under_way() const;

 private:
  using Id = std::pair<const NamespaceState*, BlockKey>;
  struct Entry {
    NamespacePtr ns;
    std::weak_ptr<const void> waiter;
    bool anyway = false;
    bool under_way = false;
    MovePriority priority = MovePriority::kDemand;
    uint64_t ticket = 0;  // Of its place in a line; older places are stale.
  };
  struct Place {
    Id id;
    uint64_t ticket;
  };

  const Options options_;
  mutable Mutex mu_;
  absl::flat_hash_map<Id, Entry> entries_ ABSL_GUARDED_BY(mu_);
  std::deque<Place> lines_[kMovePriorityCount] ABSL_GUARDED_BY(mu_);
  size_t waiting_ ABSL_GUARDED_BY(mu_) = 0;
  size_t under_way_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t next_ticket_ ABSL_GUARDED_BY(mu_) = 1;
};

}  // namespace cairn::cache
