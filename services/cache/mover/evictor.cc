#include "services/cache/mover/evictor.h"

#include <algorithm>

#include "services/cache/block/record.h"

namespace cairn::cache {

namespace {

// Blocks that a reservation in lent segments evicts at most: what goes may lie in sealed ones, and
// then makes room for others only.
constexpr int kMaxEvictionsForLent = 64;

}  // namespace

Result<Extent> Evictor::Reserve(TierKind tier, uint32_t bytes, uint64_t below,
                                const RoomFor& room) {
  if (tier == TierKind::kHost) return ReserveHost(bytes, below, room);
  Tier* const target = context_.tiers.Get(tier);
  const bool groups = target == context_.tiers.persistent && below == UINT64_MAX;
  for (;;) {
    auto extent = target->Reserve(bytes);
    if (extent.ok() || extent.status().code() != StatusCode::kResourceExhausted) return extent;
    if (groups && EvictGroup()) continue;
    if (!EvictOne(tier, below)) return extent;
  }
}

// Who has less than its share of the segments evicts from anybody, others first from themselves:
// another tenant's blocks lie in other segments.
Result<Extent> Evictor::ReserveHost(uint32_t bytes, uint64_t below, const RoomFor& room) {
  HostTier* const host = context_.tiers.host;
  for (int evicted = 0;; ++evicted) {
    auto extent = host->ReserveFor(room, bytes);
    if (extent.ok() || extent.status().code() != StatusCode::kResourceExhausted) return extent;
    if (room.lending == Lending::kLent && evicted >= kMaxEvictionsForLent) return extent;
    if (!host->WantsMore(room) && EvictOne(TierKind::kHost, below, room.owner)) continue;
    if (!EvictOne(TierKind::kHost, below)) return extent;
  }
}

Result<Extents> Evictor::ReserveAll(TierKind tier, std::span<const uint32_t> lengths,
                                    uint64_t keep_free, uint64_t below, const RoomFor& room) {
  Extents extents;
  if (keep_free > 0) {
    for (const uint32_t length : lengths) keep_free += length;
    for (;;) {
      const TierStats stats = context_.tiers.Get(tier)->GetStats();
      if (stats.capacity_bytes - stats.used_bytes >= keep_free) break;
      if (!EvictOne(tier, below)) {
        return Errorf(StatusCode::kResourceExhausted, "{} tier: {} bytes are kept for writes",
                      Name(tier), keep_free);
      }
    }
  }
  for (const uint32_t length : lengths) {
    const auto extent = Reserve(tier, length, below, room);
    if (!extent.ok()) {
      ReleaseAll(tier, extents);
      return extent.status();
    }
    extents.push_back(*extent);
  }
  return extents;
}

void Evictor::ReleaseAll(TierKind tier, std::span<const Extent> extents) {
  for (const Extent& extent : extents) context_.tiers.Get(tier)->Release(extent);
}

bool Evictor::EvictOne(TierKind tier, uint64_t below, const std::optional<OwnerId>& owner) {
  for (;;) {
    NamespacePtr victim;
    uint64_t lowest = below;
    const auto all = context_.registry.All();
    for (const NamespacePtr& ns : *all) {
      const uint64_t rank = ns->next_rank[tier].load(std::memory_order_relaxed);
      if (rank >= lowest) continue;
      if (owner && context_.tiers.host->FindOwner(ns->spec.tenant) != *owner) continue;
      lowest = rank;
      victim = ns;
    }
    if (victim == nullptr) return false;
    NamespaceLock lock(*victim, context_.tiers);
    // It was dropped since the list was made: the reclaimer takes its index apart.
    if (victim->dropped.load(std::memory_order_relaxed)) continue;
    const auto evicted = victim->index.EvictOne(tier, &lock.released, below);
    if (!evicted) continue;  // Somebody was faster; the lock's end publishes a new rank.
    CountEvicted(*victim, *evicted, tier);
    return true;
  }
}

void Evictor::CountEvicted(const NamespaceState& ns, const BlockIndex::Evicted& evicted,
                           TierKind tier) {
  context_.counters.evicted_blocks[tier].Add();
  context_.counters.evicted_bytes[tier].Add(evicted.bytes);
  if (evicted.unused_prefetch) context_.counters.prefetched_wasted_blocks.Add();
  if (evicted.gone) {
    context_.gone.Remember(ns.fingerprint, evicted.key, RecentlyGone::Why::kEvicted);
  } else if (evicted.demoted) {
    context_.counters.demoted_blocks.Add();
  }
  context_.PublishLeft(ns, evicted.key, tier, evicted.gone);
}

bool Evictor::EvictGroup() {
  struct Member {
    NamespacePtr ns;
    BlockKey key;
    uint64_t extent;
    uint32_t last_use;
    uint64_t bytes;
  };
  const TierKind tier = context_.tiers.persistent->kind();
  const VictimGroup group = context_.tiers.persistent->NextVictims();
  const uint32_t now = context_.UseTicksNow();
  bool any = false;
  const auto evict = [&](const Member& m) {
    NamespaceLock lock(*m.ns, context_.tiers);
    const auto ref = m.ns->index.FindAlive(m.key);
    if (m.ns->dropped.load(std::memory_order_relaxed) || !ref ||
        !m.ns->index.MetaAt(*ref).in(tier) || m.ns->index.IsPinned(*ref)) {
      return;
    }
    CountEvicted(*m.ns, m.ns->index.EvictBlock(*ref, tier, &lock.released), tier);
    any = true;
  };
  std::vector<Member> hot;
  for (const VictimGroup::Member& member : group.members) {
    const auto record = DecodeRecord(member.record);
    if (!record.ok()) continue;
    Member m{context_.registry.Find(record->fingerprint), record->key, member.extent.id, 0, 0};
    if (m.ns == nullptr) continue;
    {
      NamespaceLock lock(*m.ns, context_.tiers);
      const auto ref = m.ns->index.FindAlive(m.key);
      if (!ref || !m.ns->index.MetaAt(*ref).in(tier)) continue;
      bool here = false;  // It may lie elsewhere since, under the same key.
      for (const PartPlace& part : m.ns->index.PartsOf(*ref)) {
        here |= part.extent[tier] == m.extent;
      }
      if (!here) continue;
      m.last_use = m.ns->index.MetaAt(*ref).last_use;
      m.bytes = m.ns->index.MetaAt(*ref).bytes[tier];
    }
    const uint32_t age = UseTicks(member.age);
    if (m.last_use > (now > age ? now - age : 0)) {
      hot.push_back(std::move(m));
    } else {
      evict(m);
    }
  }
  std::stable_sort(hot.begin(), hot.end(),
                   [](const Member& a, const Member& b) { return a.last_use > b.last_use; });
  uint64_t kept = 0;
  for (const Member& m : hot) {
    if (kept + m.bytes <= group.keep_bytes) {
      kept += m.bytes;
    } else {
      evict(m);
    }
  }
  return any;
}

}  // namespace cairn::cache
