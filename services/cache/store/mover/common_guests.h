#pragma once
// Blocks of tenants with segments of their own that lie among the common ones of host: what they
// stored before their first session on this machine, and what found no room in their segments.
//
// Tenants without segments have no other place, so they must be able to take this one. The index of
// a namespace does not know where its blocks lie, and its oldest one may lie in a segment of its
// tenant, where it makes room for nobody else. So a look at all blocks finds the guests. Those that
// were not used for the longest time are kept in a list, which is used up before the next look.
//
// Thread-safe.

#include <atomic>
#include <deque>
#include <optional>

#include "common/concurrency/mutex.h"
#include "services/cache/store/mover/evictor.h"
#include "services/cache/store/mover/pump.h"
#include "services/cache/store/state/node_context.h"

namespace cairn::cache {

class CommonGuests {
 public:
  CommonGuests(NodeContext* context, Evictor* evictor);

  // When the oldest guest of the list was last used, in ticks. UINT64_MAX: none is known, also if
  // the last look, less than a second ago, found none, or if there are more blocks in host memory
  // than anybody but the executor looks at.
  uint64_t OldestUse();
  // Evicts the oldest guest, if it is one of `victims`. The bytes that went; 0: none is known.
  uint64_t EvictOldest(const Victims& victims);

 private:
  struct Guest {
    NamespacePtr ns;
    BlockKey key;
    uint64_t last_use = 0;
    bool more_below = false;  // Blocks after it on its path.
  };

  // Finds guests if the list is empty.
  void Refill();
  void Look();
  // Some part of it lies in a common segment.
  bool LiesAmongCommon(const BlockIndex& index, BlockRef ref) const;
  // The bytes that went. 0: it was used, moved or pinned since it was found. nullopt: it is leased,
  // and may not go for that.
  std::optional<uint64_t> Evict(const Guest& guest, bool leased);

  NodeContext& context_;
  Evictor& evictor_;
  std::atomic<bool> looking_{false};
  std::atomic<TimePoint> next_look_{};
  Mutex mu_;
  std::deque<Guest> oldest_first_ ABSL_GUARDED_BY(mu_);
  Pump pump_;
};

}  // namespace cairn::cache
