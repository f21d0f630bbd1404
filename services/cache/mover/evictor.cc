#include "services/cache/mover/evictor.h"

#include <algorithm>
#include <utility>

#include "services/cache/block/record.h"
#include "services/cache/mover/drainer.h"

namespace cairn::cache {

namespace {

// A reservation in host evicts one block after the other as long as both hold: fewer than this many
// blocks, or less than this many times what it needs. Blocks that lie in other segments, or beside
// leased ones, make room for others only.
constexpr int kBlocksPerReserve = 16;
constexpr uint64_t kBytesPerByte = 2;

}  // namespace

Evictor::Evictor(NodeContext* context)
    : context_(*context), drainer_(std::make_unique<Drainer>(context, this)) {}

Evictor::~Evictor() = default;

OwnerId Evictor::OwnerOf(const NamespaceState& ns) const {
  const HostTier& host = *context_.tiers.host;
  // First the version: an owner that comes meanwhile makes the answer stale, not the next one.
  const uint64_t version = host.owners_version();
  const uint64_t cached = ns.owner_cache.load(std::memory_order_relaxed);
  if (cached >> 32 == version) return static_cast<OwnerId>(cached);
  const OwnerId owner = host.FindOwner(ns.spec.tenant);
  ns.owner_cache.store(version << 32 | owner, std::memory_order_relaxed);
  return owner;
}

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

// What others evict lies in their segments, so each makes room for itself.
Result<Extent> Evictor::ReserveHost(uint32_t bytes, uint64_t below, const RoomFor& room) {
  HostTier* const host = context_.tiers.host;
  // Who may only take the place of blocks below a rank does not take other places.
  const bool may_drain = below == UINT64_MAX;
  bool asked = false, drained = false, compacted = false;
  uint64_t evicted = 0;
  for (int blocks = 0, common = 0;;) {
    auto extent = host->ReserveFor(room, bytes);
    if (extent.ok() || extent.status().code() != StatusCode::kResourceExhausted) return extent;
    if (may_drain && !std::exchange(asked, true) && host->HasLessThanItsShare(room)) {
      // It has room as soon as a segment is empty; until then, its own blocks make some.
      drainer_->DrainSoon(room);
      continue;
    }
    if (blocks < kBlocksPerReserve || evicted < kBytesPerByte * bytes) {
      if (const uint64_t freed = EvictLowest(TierKind::kHost, below, room.owner); freed > 0) {
        ++blocks;
        evicted += freed;
        continue;
      }
    }
    if (!may_drain) return extent;
    if (!std::exchange(drained, true) && host->HasLessThanItsShare(room) && drainer_->Drain(room)) {
      continue;
    }
    if (!std::exchange(compacted, true) && drainer_->Compact(room)) continue;
    // It gets no segment, so its blocks lie among the common ones, and take their place like those
    // of others.
    const bool among_common = room.owner != kCommon && room.lending == Lending::kSealed;
    if (among_common && common < kBlocksPerReserve && host->HasLessThanItsShare(room) &&
        EvictLowest(TierKind::kHost, below, kCommon) > 0) {
      ++common;
      continue;
    }
    return extent;
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

uint64_t Evictor::EvictLowest(TierKind tier, uint64_t below, const std::optional<OwnerId>& owner) {
  for (;;) {
    NamespacePtr victim;
    uint64_t lowest = below;
    const auto all = context_.registry.All();
    for (const NamespacePtr& ns : *all) {
      const uint64_t rank = ns->next_rank[tier].load(std::memory_order_relaxed);
      if (rank >= lowest) continue;
      if (owner && OwnerOf(*ns) != *owner) continue;
      lowest = rank;
      victim = ns;
    }
    if (victim == nullptr) return 0;
    NamespaceLock lock(*victim, context_.tiers);
    // It was dropped since the list was made: the reclaimer takes its index apart.
    if (victim->dropped.load(std::memory_order_relaxed)) continue;
    const auto evicted = victim->index.EvictOne(tier, &lock.released, below);
    if (!evicted) continue;  // Somebody was faster; the lock's end publishes a new rank.
    CountEvicted(*victim, *evicted, tier);
    return evicted->bytes;
  }
}

void Evictor::CountEvicted(NamespaceState& ns, const BlockIndex::Evicted& evicted, TierKind tier) {
  context_.counters.evicted_blocks[tier].Add();
  context_.counters.evicted_bytes[tier].Add(evicted.bytes);
  ns.evicted_blocks[tier].fetch_add(1, std::memory_order_relaxed);
  ns.evicted_bytes[tier].fetch_add(evicted.bytes, std::memory_order_relaxed);
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
