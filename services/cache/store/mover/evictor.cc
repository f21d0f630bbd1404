#include "services/cache/store/mover/evictor.h"

#include <algorithm>
#include <utility>

#include "services/cache/store/block/record.h"
#include "services/cache/store/mover/common_guests.h"
#include "services/cache/store/mover/demoter.h"
#include "services/cache/store/mover/drainer.h"
#include "services/cache/store/mover/group_emptier.h"

namespace cairn::cache {

namespace {

// A reservation in host evicts one block after the other as long as both hold: fewer than this many
// blocks, or less than this many times what it needs. Blocks that lie in other segments, or next to
// leased ones, make room for others only.
constexpr int kBlocksPerReserve = 16;
constexpr uint64_t kBytesPerByte = 2;
// After them, this many of the same namespace, which are as large.
constexpr int kOwnBlocksPerReserve = 4;
// At last, where whole segments cannot be emptied, as much as this part of one.
constexpr uint64_t kPartOfASegment = 16;

}  // namespace

Evictor::Evictor(NodeContext* context)
    : context_(*context),
      demoter_(std::make_unique<Demoter>(context)),
      drainer_(std::make_unique<Drainer>(context, this)),
      emptier_(std::make_unique<GroupEmptier>(context, this)),
      guests_(std::make_unique<CommonGuests>(context, this)) {}

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

Result<HeldRoom> Evictor::Hold(const NamespaceState& ns, TierKind tier,
                               std::span<const uint32_t> lengths, Victims victims) {
  uint64_t bytes = 0;
  for (const uint32_t length : lengths) bytes += HostRoom(length);
  victims.guaranteed = true;  // Its own.
  const std::shared_ptr<NodeTenant>& tenant = ns.tenant();
  const auto of_tenant = [&tenant](const NamespaceState& other, uint64_t) {
    return other.tenant() == tenant;
  };
  uint64_t evicted = 0;
  for (int blocks = 0;; ++blocks) {
    if (auto held = HeldRoom::Take(tenant, tier, bytes)) return *std::move(held);
    if (blocks < kBlocksPerReserve || evicted < kBytesPerByte * bytes) {
      const uint64_t freed = EvictLowestOf(tier, victims, of_tenant);
      evicted += freed;
      if (freed > 0) continue;
    }
    context_.counters.over_limit.Add();
    return Errorf(StatusCode::kResourceExhausted,
                  "{} tier: tenant '{}' has {} bytes and wants {} more, its limit is {} (the "
                  "policy's limits), and too few of its blocks can go now",
                  Name(tier), tenant->name(), tenant->bytes(tier), bytes, tenant->most(tier));
  }
}

Result<Extent> Evictor::Reserve(TierKind tier, uint32_t bytes, const Victims& victims,
                                const RoomFor& room, NamespaceState* own) {
  if (tier == TierKind::kHost) return ReserveHost(bytes, victims, room, own);
  Tier* const target = context_.tiers.Get(tier);
  if (target->divided()) return ReserveDivided(target, bytes, victims, own);
  const bool groups = target == context_.tiers.persistent && victims.used_before == UINT64_MAX;
  for (;;) {
    auto extent = target->Reserve(bytes);
    if (extent.ok() || extent.status().code() != StatusCode::kResourceExhausted) return extent;
    // The tier writes what stays of a group a second time. If the oldest blocks are those that must
    // stay, each copy that wants room would have another group of them written.
    if (groups && (EvictOver(tier, victims.leased, std::nullopt) > 0 ||
                   (OldestMayGo(tier, victims) && EvictGroup(victims)))) {
      continue;
    }
    if (!EvictOne(tier, victims)) return extent;
  }
}

// A tenant's room is its own: its blocks make room for each other, within the bounds of host's.
Result<Extent> Evictor::ReserveDivided(Tier* target, uint32_t bytes, const Victims& victims,
                                       const NamespaceState* own) {
  static const std::string kNobody;
  const std::string& tenant = own != nullptr ? own->spec.tenant : kNobody;
  const TierKind tier = target->kind();
  const auto of_tenant = [&tenant](const NamespaceState& ns, uint64_t) {
    return ns.spec.tenant == tenant;
  };
  bool may_empty = victims.used_before == UINT64_MAX;
  uint64_t evicted = 0;
  for (int blocks = 0;; ++blocks) {
    auto extent = target->ReserveOf(tenant, bytes);
    if (extent.ok() || extent.status().code() != StatusCode::kResourceExhausted) return extent;
    if (std::exchange(may_empty, false) && emptier_->EmptyFor(tier, tenant)) continue;
    if (blocks >= kBlocksPerReserve && evicted >= kBytesPerByte * bytes) return extent;
    const uint64_t freed = EvictLowestOf(tier, victims, of_tenant);
    if (freed == 0) return extent;
    evicted += freed;
  }
}

// Blocks that others evict lie in their segments, so each owner makes room for itself.
Result<Extent> Evictor::ReserveHost(uint32_t bytes, const Victims& victims, const RoomFor& room,
                                    NamespaceState* own) {
  HostTier* const host = context_.tiers.host;
  // A caller that may only take the place of blocks below a rank does not take other places.
  const bool may_drain = victims.used_before == UINT64_MAX;
  const auto is_full = [](const Result<Extent>& extent) {
    return !extent.ok() && extent.status().code() == StatusCode::kResourceExhausted;
  };
  auto extent = host->ReserveFor(room, bytes);
  if (!is_full(extent)) return extent;
  // Evicts with `evict`, which says how many bytes went, as long as that is of use: until there is
  // room, or nothing to evict, or both bounds are reached.
  const auto make_room = [&](int most_blocks, uint64_t most_bytes, const auto& evict) {
    uint64_t evicted = 0;
    for (int blocks = 0; blocks < most_blocks || evicted < most_bytes; ++blocks) {
      const uint64_t freed = evict();
      if (freed == 0) return false;
      evicted += HostRoom(freed);
      extent = host->ReserveFor(room, bytes);
      if (!is_full(extent)) return true;
    }
    return false;
  };
  const auto lowest_of = [&](OwnerId owner) {
    return [this, victims, owner] {
      return owner == kCommon ? EvictAmongCommon(victims)
                              : EvictLowest(TierKind::kHost, victims, owner);
    };
  };
  const auto again = [&] {
    extent = host->ReserveFor(room, bytes);
    return !is_full(extent);
  };
  // It has room as soon as a segment is empty; until then, its own blocks make some.
  if (may_drain && host->HasLessThanItsShare(room)) {
    drainer_->DrainSoon(room);
    if (again()) return extent;
  }
  if (make_room(kBlocksPerReserve, kBytesPerByte * bytes, lowest_of(room.owner))) return extent;
  // Blocks that are smaller leave holes that are too small.
  if (own != nullptr && make_room(kOwnBlocksPerReserve, 0,
                                  [&] { return EvictFrom(*own, TierKind::kHost, victims); })) {
    return extent;
  }
  if (!may_drain) return extent;
  if (host->HasLessThanItsShare(room) && drainer_->Drain(room) && again()) return extent;
  if (drainer_->Compact(room) && again()) return extent;
  // The blocks of an owner that gets no segment are among the common ones, and take the place of
  // others there.
  const bool among_common = room.owner != kCommon && room.lending == Lending::kSealed &&
                            (host->OwnSegments(room).empty() || host->HasLessThanItsShare(room));
  const OwnerId last = among_common ? kCommon : room.owner;
  const uint64_t some = host->max_extent_bytes() / kPartOfASegment;
  (void)make_room(kBlocksPerReserve, some, lowest_of(last));
  return extent;
}

Result<Extents> Evictor::ReserveAll(TierKind tier, std::span<const uint32_t> lengths,
                                    uint64_t keep_free, const Victims& victims, const RoomFor& room,
                                    NamespaceState* own) {
  Extents extents;
  if (keep_free > 0) {
    for (const uint32_t length : lengths) keep_free += length;
    for (;;) {
      const TierStats stats = context_.tiers.Get(tier)->GetStats();
      if (stats.capacity_bytes - stats.used_bytes >= keep_free) break;
      if (!EvictOne(tier, victims)) {
        return Errorf(StatusCode::kResourceExhausted, "{} tier: {} bytes are kept for writes",
                      Name(tier), keep_free);
      }
    }
  }
  for (const uint32_t length : lengths) {
    const auto extent = Reserve(tier, length, victims, room, own);
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

uint64_t Evictor::EvictLowest(TierKind tier, const Victims& victims,
                              const std::optional<OwnerId>& owner) {
  if (const uint64_t bytes = EvictOver(tier, victims.leased, owner); bytes > 0) return bytes;
  return EvictLowestOf(tier, victims, [&](const NamespaceState& ns, uint64_t) {
    return !owner || OwnerOf(ns) == *owner;
  });
}

bool Evictor::MayGo(const NamespaceState& ns, TierKind tier, const Victims& victims) {
  const NodeTenant* const tenant = ns.tenant().get();
  return tenant == nullptr || victims.guaranteed || tenant == victims.beneficiary ||
         !tenant->IsGuaranteed(tier);
}

bool Evictor::OldestMayGo(TierKind tier, const Victims& victims) const {
  Victims all = victims;
  all.guaranteed = true;
  const auto any = [](const NamespaceState&, uint64_t) { return true; };
  const NamespacePtr oldest = FindLowest(tier, all, any).first;
  return oldest != nullptr && MayGo(*oldest, tier, victims);
}

template <typename May>
std::pair<NamespacePtr, uint64_t> Evictor::FindLowest(TierKind tier, const Victims& victims,
                                                      const May& may) const {
  NamespacePtr victim;
  uint64_t lowest = victims.used_before;
  const auto all = context_.registry.All();
  for (const NamespacePtr& ns : *all) {
    const uint64_t rank = ns->RankIn(tier, victims.leased);
    // If ranks are equal, always the same block, however the list is ordered: simulations repeat
    // runs.
    const bool lower = rank < lowest || (victim != nullptr && rank == lowest &&
                                         ns->fingerprint < victim->fingerprint);
    if (!lower || !MayGo(*ns, tier, victims) || !may(*ns, rank)) continue;
    lowest = rank;
    victim = ns;
  }
  return {std::move(victim), lowest};
}

uint64_t Evictor::EvictOver(TierKind tier, bool leased, const std::optional<OwnerId>& owner) {
  const uint32_t now = context_.UseTicksNow();
  for (;;) {
    uint32_t its_life = 0;  // The life of the last block that is over, which is the lowest.
    const auto is_over = [&](const NamespaceState& ns, uint64_t rank) {
      const uint32_t life = ns.life_ticks();
      if (life == 0 || rank >= now || now - rank <= life) return false;
      if (owner && OwnerOf(ns) != *owner) return false;
      its_life = life;
      return true;
    };
    const auto [victim, lowest] = FindLowest(tier, {.leased = leased, .guaranteed = true}, is_over);
    if (victim == nullptr) return 0;
    // Ranks are lower bounds: what was used since stays, and the lock's end published its rank.
    const uint64_t bytes =
        EvictFrom(*victim, tier, {.used_before = now - its_life, .leased = leased});
    if (bytes > 0) return bytes;
    if (victim->RankIn(tier, leased) == lowest) return 0;
  }
}

template <typename May>
uint64_t Evictor::EvictLowestOf(TierKind tier, const Victims& victims, May&& may) {
  for (;;) {
    const NamespacePtr victim = FindLowest(tier, victims, may).first;
    if (victim == nullptr) return 0;
    // Nothing: somebody was faster, and the lock's end published a new rank. Or it was dropped
    // since the list was made.
    if (const uint64_t bytes = EvictFrom(*victim, tier, victims); bytes > 0) return bytes;
  }
}

uint64_t Evictor::EvictAmongCommon(const Victims& victims) {
  const uint64_t guest = guests_->OldestUse();
  if (guest < victims.used_before) {
    const auto [own, rank] =
        FindLowest(TierKind::kHost, victims,
                   [this](const NamespaceState& ns, uint64_t) { return OwnerOf(ns) == kCommon; });
    if (own == nullptr || guest < rank) {
      if (const uint64_t bytes = guests_->EvictOldest(victims); bytes > 0) return bytes;
    }
  }
  return EvictLowest(TierKind::kHost, victims, kCommon);
}

uint64_t Evictor::EvictFrom(NamespaceState& ns, TierKind tier, const Victims& victims) {
  NamespaceLock lock(ns, context_.tiers);
  // The reclaimer takes the index of a dropped one apart.
  if (ns.dropped.load(std::memory_order_relaxed)) return 0;
  const auto evicted = ns.index.EvictOne(tier, &lock.released, victims.used_before,
                                         context_.UseTicksNow(), victims.leased);
  if (!evicted) return 0;
  CountEvicted(ns, *evicted, tier);
  return evicted->bytes;
}

void Evictor::CountEvicted(NamespaceState& ns, const BlockIndex::Evicted& evicted, TierKind tier) {
  context_.counters.evicted_blocks[tier].Add();
  context_.counters.evicted_bytes[tier].Add(evicted.bytes);
  context_.counters.evicted_age_seconds[tier].Add(
      Seconds(TimeSinceUse(evicted.last_use, context_.UseTicksNow())));
  ns.evicted_blocks[tier].fetch_add(1, std::memory_order_relaxed);
  ns.evicted_bytes[tier].fetch_add(evicted.bytes, std::memory_order_relaxed);
  if (evicted.unused_prefetch) context_.counters.prefetched_wasted_blocks.Add();
  if (evicted.over) context_.counters.expired_blocks.Add();
  if (evicted.gone) {
    context_.gone.Remember(
        ns.fingerprint, evicted.key,
        evicted.over ? RecentlyGone::Why::kExpired : RecentlyGone::Why::kEvicted);
  } else if (evicted.demoted) {
    context_.counters.demoted_blocks.Add();
  } else if (tier == TierKind::kHost) {
    demoter_->Note(ns, evicted.key);
  }
  context_.PublishLeft(ns, evicted.key, tier, evicted.gone, evicted.pool);
}

bool Evictor::EvictGroup(const Victims& victims) {
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
        !m.ns->index.MetaAt(*ref).in(tier) || m.ns->index.IsKept(*ref, tier)) {
      return;
    }
    CountEvicted(*m.ns, m.ns->index.EvictBlock(*ref, tier, &lock.released, now), tier);
    any = true;
  };
  std::vector<Member> hot;
  for (const VictimGroup::Member& member : group.members) {
    const auto record = DecodeRecord(member.record);
    if (!record.ok()) continue;
    Member m{context_.registry.Find(record->fingerprint), record->key, member.extent.id, 0, 0};
    if (m.ns == nullptr) continue;
    bool over = false;
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
      over = m.ns->index.IsOver(*ref, now);
    }
    // The tier moves it.
    if (!over && !MayGo(*m.ns, tier, victims)) continue;
    const uint32_t age = UseTicks(member.age);
    if (!over && m.last_use > (now > age ? now - age : 0)) {
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
