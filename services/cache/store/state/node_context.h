#pragma once
// The objects that the parts of the engine share. Outlives them all; every member is thread-safe or
// constant.

#include <memory>

#include "cairn/common/clock.h"
#include "common/concurrency/executor.h"
#include "common/concurrency/in_flight.h"
#include "common/concurrency/wakeup.h"
#include "services/cache/store/index/recently_gone.h"
#include "services/cache/store/state/arrivals.h"
#include "services/cache/store/state/bump_log.h"
#include "services/cache/store/state/counters.h"
#include "services/cache/store/state/engine_options.h"
#include "services/cache/store/state/event_hub.h"
#include "services/cache/store/state/events.h"
#include "services/cache/store/state/memory_account.h"
#include "services/cache/store/state/namespace_registry.h"
#include "services/cache/store/state/read_pace.h"
#include "services/cache/store/state/tiers.h"
#include "services/cache/store/tier/read_line.h"

namespace cairn::cache {

struct NodeContext {
  NodeContext(const EngineOptions& options_in, const Tiers& tiers_in, const Clock* clock_in,
              Executor* executor_in, uint64_t node_epoch = 0, MemoryAccount* memory_in = nullptr);

  uint32_t UseTicksNow() const { return UseTicksAt(clock->Now()); }
  // Ticks begin long before the node: blocks that an earlier process stored have a last use, too.
  uint32_t UseTicksAt(TimePoint time) const { return UseTicks(time - start + kTicksBefore); }
  int64_t UnixSecondsNow() const;
  // When a block was used last that was used at this tick, and back. A use that lies further back
  // than ticks reach counts as one at the first tick.
  int64_t UnixSecondsOf(uint32_t last_use) const;
  uint32_t UseTicksOf(int64_t unix_seconds) const;
  // Memory of the index: all namespaces and what is shared. Asked for each part that is reserved.
  uint64_t IndexBytes() const;
  // Memory of the persistent tier's map of extents. Together with IndexBytes it is bounded by
  // max_index_bytes. Recovery bounds the index alone: what was there before the start stays.
  uint64_t MapBytes() const {
    return tiers.persistent == nullptr ? 0 : tiers.persistent->MapBytes();
  }
  // RESOURCE_EXHAUSTED: the namespace's tenant has read and written so much lately that it may
  // begin nothing new. Says for how long.
  Status CheckPace(const NamespaceState& ns);
  // Bytes of the namespace were read or reserved for a session.
  void Spend(const NamespaceState& ns, uint64_t bytes) const {
    if (ns.tenant() != nullptr && ns.tenant()->pace.rate() != TenantPace::kNoLimit) {
      ns.tenant()->pace.Spend(bytes, clock->Now());
    }
  }
  // Called under the namespace's lock.
  void Publish(CacheEvent::Kind kind, const NamespaceState& ns, const BlockKey& key, TierKind tier,
               const std::optional<BlockKey>& parent = std::nullopt, uint32_t pool = 0);
  // A block of `pool` left `tier`; `gone`: its last one.
  void PublishLeft(const NamespaceState& ns, const BlockKey& key, TierKind tier, bool gone,
                   uint32_t pool);
  // Bytes of a block failed their hash in `tier`: it leaves that tier if it still lies at `extent`
  // there, and is counted. Takes the namespace's lock. True when another tier still has it.
  bool RemoveCorrupt(NamespaceState& ns, const BlockKey& key, TierKind tier, uint64_t extent);
  // Takes a block whose life is over out of all tiers, so that it can be stored again. False: there
  // is none, or somebody reads or leases it. Called under the namespace's lock; `released` as
  // BlockIndex's.
  bool DropIfOver(NamespaceState& ns, const BlockKey& key, ReleaseList* released)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(ns.mu);
  // Bytes match their hashes whichever block they belong to. So this asks the tier's own record, if
  // the tier keeps records, whose extent it is. DATA_LOSS: another block's. Call it where a part
  // was read, since it may read a little too.
  Status CheckOwner(const NamespaceState& ns, const BlockKey& key, const PartPlace& part,
                    TierKind tier) const;

  // Longer than any life of blocks.
  static constexpr Duration kTicksBefore = kLongestBlockLife + std::chrono::hours(24);

  const EngineOptions options;
  const Tiers tiers;
  const Clock* const clock;
  Executor* const executor;
  // The account of the whole node; one without bounds where its owner gave none.
  const std::unique_ptr<MemoryAccount> own_memory;
  MemoryAccount& memory;
  const TimePoint start;
  const uint64_t seed;  // The seed of the key maps.
  NamespaceRegistry registry;
  BumpLog bumps;
  // Orders what is written about namespaces on disk. Held across PutMeta; never together with a
  // namespace's lock held before.
  Mutex meta_mu;
  RecentlyGone gone;
  EventHub events;
  Counters counters;
  // Disk: reads of promotions and of fetches past the host tier. Host: a sample of verified slices.
  ByTier<ReadPace> pace;
  // The lines of blocks to read, for promotions and for fetches past the host tier.
  ByTier<ReadLine> reads;
  Wakeup progress;
  Arrivals arrivals;
  InFlight in_flight;
};

}  // namespace cairn::cache
