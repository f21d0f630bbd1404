#pragma once
// One generation of one namespace: its index under its lock.
//
// A drop or a new epoch replaces the whole object, so everything in it is hidden at once; the old
// one is reclaimed in the background when nobody reads it any more. One lock per namespace, never
// held across I/O: a match of 8192 blocks holds it for about 0.1 ms.

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "common/concurrency/mutex.h"
#include "services/cache/store/block/stored_namespace.h"
#include "services/cache/store/index/block_index.h"
#include "services/cache/store/index/pending_blocks.h"
#include "services/cache/store/placement/policies.h"
#include "services/cache/store/state/ids.h"
#include "services/cache/store/state/memory_account.h"
#include "services/cache/store/state/node_tenant.h"
#include "services/cache/store/state/tiers.h"

namespace cairn::cache {

class NamespaceState {
 public:
  // `charge_in`: for what Cost says. All generations share it.
  NamespaceState(std::shared_ptr<const StoredNamespace> stored_in, uint64_t generation_in,
                 EvictionKind eviction, uint64_t seed,
                 std::shared_ptr<const MemoryCharge> charge_in = nullptr)
      : stored(std::move(stored_in)),
        charge(std::move(charge_in)),
        spec(stored->spec),
        fingerprint(stored->fingerprint),
        generation(generation_in),
        whole(spec.layout.WholeRect()),
        grid(spec.layout),
        // The last uses of pools together say which lengths are worth keeping: nothing else may
        // decide between them.
        index(grid, spec.layout.Pools().empty() ? MakePolicy(eviction, seed) : nullptr, seed),
        pending(grid) {
    for (auto& rank : next_rank) rank.store(UINT64_MAX, std::memory_order_relaxed);
    for (auto& rank : next_unleased_rank) rank.store(UINT64_MAX, std::memory_order_relaxed);
  }
  ~NamespaceState() {
    if (total_bytes_ != nullptr) total_bytes_->fetch_sub(counted_bytes_);
    if (tenant_ == nullptr) return;
    for (const TierKind tier : kTiersByRank) tenant_->Change(tier, 0, counted_room_[tier]);
  }
  NamespaceState(const NamespaceState&) = delete;
  NamespaceState& operator=(const NamespaceState&) = delete;

  // From now on `memory_bytes` counts in `total` too, and the room of blocks in that of the tenant,
  // until the namespace is dropped. Once, before others see it.
  void CountIn(std::shared_ptr<std::atomic<uint64_t>> total, std::shared_ptr<NodeTenant> tenant) {
    total_bytes_ = std::move(total);
    tenant_ = std::move(tenant);
  }
  // nullptr: nobody counts.
  const std::shared_ptr<NodeTenant>& tenant() const { return tenant_; }

  // OK, or why parts can be neither read nor written. Blocks of such a namespace lie on disk only.
  // NamespaceRegistry::Get hands out no namespace of this kind.
  const Status& readable() const { return stored->storage.status(); }
  // REQUIRES: readable().ok().
  const PartStorage& storage() const { return *stored->storage; }

  // The memory of a namespace without blocks, in bytes, in the engine and in its tables.
  static uint64_t Cost(const StoredNamespace& stored) {
    return stored.MemoryBytes() + sizeof(NamespaceState) + kTables;
  }
  // How long blocks live after their last use; 0: forever. At once, for all that are here.
  void SetLife(Duration life) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    block_life.store(life.count(), std::memory_order_relaxed);
    index.SetLife(life_ticks());
  }
  Duration life() const { return Duration(block_life.load(std::memory_order_relaxed)); }
  // At least 1 where there is an end.
  uint32_t life_ticks() const { return life().count() == 0 ? 0 : std::max(1u, UseTicks(life())); }
  // BlockIndex::NextRank, or NextUnleasedRank, as it was published last.
  uint64_t RankIn(TierKind tier, bool leased) const {
    return (leased ? next_rank : next_unleased_rank)[tier].load(std::memory_order_relaxed);
  }
  // Nobody has anything in it: it may be given back.
  bool Unused() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return index.blocks() == 0 && !index.HasPins() && pending.empty();
  }

  // Constant after construction.
  const std::shared_ptr<const StoredNamespace> stored;  // The same in all generations.
  const std::shared_ptr<const MemoryCharge> charge;
  const NamespaceSpec& spec;
  const Fingerprint& fingerprint;
  const uint64_t generation;
  const format::PartRect whole;
  const PoolGrid grid;

  // Atomics. `dropped` is written under `mu` and never falls; the others are published when a
  // NamespaceLock ends, for readers who need no exact value.
  std::atomic<bool> dropped{false};
  ByTier<std::atomic<uint64_t>> next_rank, next_unleased_rank;
  std::atomic<uint64_t> blocks{0}, bytes{0}, memory_bytes{0}, incomplete_blocks{0};
  ByTier<std::atomic<uint64_t>> blocks_in;
  // Blocks that left a tier to make room, since this generation began.
  ByTier<std::atomic<uint64_t>> evicted_blocks = {}, evicted_bytes = {};
  // The tenant as an owner of memory in host, and for which HostTier::owners_version that holds, in
  // the upper half: see Evictor::OwnerOf.
  mutable std::atomic<uint64_t> owner_cache{0};
  // Nanoseconds. Written under `mu`.
  std::atomic<int64_t> block_life{0};
  // The namespace's record is on disk; blocks are copied to disk only after it.
  std::atomic<bool> persisted{false};

  // Order of uses, for the registry, which guards it.
  uint64_t last_use = 0;

  mutable Mutex mu;
  BlockIndex index ABSL_GUARDED_BY(mu);
  PendingBlocks pending ABSL_GUARDED_BY(mu);

  // Namespaces of the tenant that differ in one field. By `similar_mu`.
  Mutex similar_mu;
  std::vector<std::weak_ptr<NamespaceState>> similar ABSL_GUARDED_BY(similar_mu);

 private:
  friend class NamespaceLock;
  static constexpr uint64_t kTables = 1024;  // Entries of maps and lists, and allocator's overhead.

  void PublishMemory() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const uint64_t bytes_now = index.MemoryBytes() + pending.MemoryBytes();
    memory_bytes.store(bytes_now, std::memory_order_relaxed);
    if (total_bytes_ == nullptr) return;
    const uint64_t counts = dropped.load(std::memory_order_relaxed) ? 0 : bytes_now;
    total_bytes_->fetch_add(counts - counted_bytes_, std::memory_order_relaxed);  // Wraps back.
    counted_bytes_ = counts;
  }

  // A dropped one will be gone soon: its tenant can do nothing to make it go.
  void PublishRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (tenant_ == nullptr) return;
    const bool counts = !dropped.load(std::memory_order_relaxed);
    for (const TierKind tier : kTiersByRank) {
      uint64_t now = counts ? index.room_in(tier) : 0;
      if (counts && tier == TierKind::kHost) now += pending.incomplete_bytes();
      if (now != counted_room_[tier]) tenant_->Change(tier, now, counted_room_[tier]);
      counted_room_[tier] = now;
    }
  }

  // Constant once others see the namespace.
  std::shared_ptr<std::atomic<uint64_t>> total_bytes_;
  std::shared_ptr<NodeTenant> tenant_;
  uint64_t counted_bytes_ ABSL_GUARDED_BY(mu) = 0;     // Its part of `total_bytes_`,
  ByTier<uint64_t> counted_room_ ABSL_GUARDED_BY(mu);  // and of `tenant_`.
};
using NamespacePtr = std::shared_ptr<NamespaceState>;

// Holds the lock of a namespace; then publishes its totals, unlocks, and gives back the extents
// that were collected meanwhile.
class ABSL_SCOPED_LOCKABLE NamespaceLock {
 public:
  NamespaceLock(NamespaceState& state, const Tiers& tiers) ABSL_EXCLUSIVE_LOCK_FUNCTION(state.mu)
      : state_(state), tiers_(tiers) {
    state_.mu.Lock();
  }
  ~NamespaceLock() ABSL_UNLOCK_FUNCTION() {
    Publish();
    state_.mu.Unlock();
    for (const TierExtent& e : released) tiers_.Get(e.tier)->Release(e.extent);
  }
  NamespaceLock(const NamespaceLock&) = delete;
  NamespaceLock& operator=(const NamespaceLock&) = delete;

  ReleaseList released;

 private:
  void Publish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mu) {
    constexpr auto kRelaxed = std::memory_order_relaxed;
    for (const TierKind tier : kTiersByRank) {
      state_.next_rank[tier].store(state_.index.NextRank(tier), kRelaxed);
      state_.next_unleased_rank[tier].store(state_.index.NextUnleasedRank(tier), kRelaxed);
      state_.blocks_in[tier].store(state_.index.blocks_in(tier), kRelaxed);
    }
    state_.blocks.store(state_.index.blocks(), kRelaxed);
    state_.bytes.store(state_.index.bytes(), kRelaxed);
    state_.incomplete_blocks.store(state_.pending.incomplete_blocks(), kRelaxed);
    state_.PublishMemory();
    state_.PublishRoom();
  }

  NamespaceState& state_;
  const Tiers& tiers_;
};

}  // namespace cairn::cache
