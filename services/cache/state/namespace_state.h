#pragma once
// One generation of one namespace: its index under its lock.
//
// A drop or a new epoch replaces the whole object, so everything in it is hidden at once; the old
// one is reclaimed in the background when nobody reads it any more. One lock per namespace, never
// held across I/O: a match of 8192 blocks holds it for about 0.1 ms.

#include <atomic>
#include <memory>
#include <vector>

#include "common/concurrency/mutex.h"
#include "common/keys/part_codec.h"
#include "services/cache/block/part_grid.h"
#include "services/cache/block/recoder.h"
#include "services/cache/index/block_index.h"
#include "services/cache/index/pending_blocks.h"
#include "services/cache/state/ids.h"
#include "services/cache/state/tiers.h"

namespace cairn::cache {

class NamespaceState {
 public:
  NamespaceState(NamespaceSpec spec_in, const Fingerprint& fingerprint_in, uint64_t generation_in,
                 const EvictionPolicy* policy, uint64_t seed)
      : spec(std::move(spec_in)),
        fingerprint(fingerprint_in),
        generation(generation_in),
        whole(spec.layout.WholeRect()),
        codecs(PartCodecsOf(spec).value_or(PartCodecs{})),
        form{spec.layout, codecs.pushed, std::nullopt, codecs.selected},
        form_in(FormsOf(spec, codecs)),
        recoder(Recoder::Create(spec).value_or(nullptr)),
        index(whole, policy, seed),
        pending(whole) {
    for (auto& rank : next_rank) rank.store(UINT64_MAX, std::memory_order_relaxed);
  }

  // Constant after construction.
  const NamespaceSpec spec;
  const Fingerprint fingerprint;
  const uint64_t generation;
  const format::PartRect whole;
  const PartCodecs codecs;
  const PartForm form;                           // Of parts that writers bring.
  const ByTier<PartForm> form_in;                // Of parts that lie in a tier.
  const std::unique_ptr<const Recoder> recoder;  // nullptr unless the recipe is a ladder.

  // Atomics. `dropped` is written under `mu` and never falls; the others are published when a
  // NamespaceLock ends, for readers who need no exact value.
  std::atomic<bool> dropped{false};
  ByTier<std::atomic<uint64_t>> next_rank;
  std::atomic<uint64_t> blocks{0}, bytes{0}, memory_bytes{0}, incomplete_blocks{0};
  ByTier<std::atomic<uint64_t>> blocks_in;
  // The namespace's record is on disk; blocks are copied to disk only after it.
  std::atomic<bool> persisted{false};

  Mutex mu;
  BlockIndex index ABSL_GUARDED_BY(mu);
  PendingBlocks pending ABSL_GUARDED_BY(mu);

  // Namespaces of the tenant that differ in one field. By `similar_mu`.
  Mutex similar_mu;
  std::vector<std::weak_ptr<NamespaceState>> similar ABSL_GUARDED_BY(similar_mu);

 private:
  // Memory holds parts as writers brought them, and those that came back from disk.
  static ByTier<PartForm> FormsOf(const NamespaceSpec& spec, const PartCodecs& codecs) {
    const PartForm memory{spec.layout, codecs.pushed, codecs.on_disk, codecs.selected};
    const PartForm disk{spec.layout, codecs.on_disk, std::nullopt, codecs.selected};
    return {{memory, disk, memory}};  // By the numbers of TierKind.
  }
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
      state_.blocks_in[tier].store(state_.index.blocks_in(tier), kRelaxed);
    }
    state_.blocks.store(state_.index.blocks(), kRelaxed);
    state_.bytes.store(state_.index.bytes(), kRelaxed);
    state_.incomplete_blocks.store(state_.pending.incomplete_blocks(), kRelaxed);
    state_.memory_bytes.store(state_.index.MemoryBytes() + state_.pending.MemoryBytes(), kRelaxed);
  }

  NamespaceState& state_;
  const Tiers& tiers_;
};

}  // namespace cairn::cache
