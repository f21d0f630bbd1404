#include "services/cache/mover/evictor.h"

namespace cairn::cache {

Result<Extent> Evictor::Reserve(TierKind tier, uint32_t bytes) {
  Tier* const target = context_.tiers.Get(tier);
  for (;;) {
    auto extent = target->Reserve(bytes);
    if (extent.ok() || extent.status().code() != StatusCode::kResourceExhausted) return extent;
    if (!EvictOne(tier)) return extent;
  }
}

Result<absl::InlinedVector<uint64_t, 1>> Evictor::ReserveAll(TierKind tier, const PartPlaces& parts,
                                                             uint64_t keep_free) {
  absl::InlinedVector<uint64_t, 1> ids;
  if (keep_free > 0) {
    for (const PartPlace& part : parts) keep_free += part.bytes;
    for (;;) {
      const TierStats stats = context_.tiers.Get(tier)->GetStats();
      if (stats.capacity_bytes - stats.used_bytes >= keep_free) break;
      if (!EvictOne(tier)) {
        return Errorf(StatusCode::kResourceExhausted, "{} tier: {} bytes are kept for writes",
                      Name(tier), keep_free);
      }
    }
  }
  for (const PartPlace& part : parts) {
    const auto extent = Reserve(tier, part.bytes);
    if (!extent.ok()) {
      ReleaseAll(tier, parts, ids);
      return extent.status();
    }
    ids.push_back(extent->id);
  }
  return ids;
}

void Evictor::ReleaseAll(TierKind tier, const PartPlaces& parts, std::span<const uint64_t> ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    context_.tiers.Get(tier)->Release({ids[i], parts[i].bytes});
  }
}

bool Evictor::EvictOne(TierKind tier) {
  const size_t t = static_cast<size_t>(tier);
  for (;;) {
    NamespacePtr victim;
    uint64_t lowest = UINT64_MAX;
    const auto all = context_.registry.All();
    for (const NamespacePtr& ns : *all) {
      const uint64_t rank = ns->next_rank[t].load(std::memory_order_relaxed);
      if (rank >= lowest) continue;
      lowest = rank;
      victim = ns;
    }
    if (victim == nullptr) return false;
    NamespaceLock lock(*victim, context_.tiers);
    // It was dropped since the list was made: the reclaimer takes its index apart.
    if (victim->dropped.load(std::memory_order_relaxed)) continue;
    const auto evicted = victim->index.EvictOne(tier, &lock.released);
    if (!evicted) continue;  // Somebody was faster; the lock's end publishes a new rank.
    context_.counters.evicted_blocks[t].Add();
    context_.counters.evicted_bytes[t].Add(evicted->bytes);
    if (evicted->gone) {
      context_.gone.Remember(victim->fingerprint, evicted->key, RecentlyGone::Why::kEvicted);
    } else if (tier == TierKind::kHost) {
      context_.counters.demoted_blocks.Add();
    }
    context_.PublishLeft(*victim, evicted->key, tier, evicted->gone);
    return true;
  }
}

}  // namespace cairn::cache
