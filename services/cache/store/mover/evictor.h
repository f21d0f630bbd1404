#pragma once
// Makes room in a tier: the namespace whose leaf was not used for the longest time gives a block,
// the one that its policy names. In host, tenants whose clients read in place have segments of
// their own, so their blocks make room for themselves only; a tenant that has less than its share
// gets a segment of others, which drainer.h empties. Those of their blocks that lie among the
// common ones make room there (common_guests.h). In the device tier, chunks are divided in the same
// way (group_emptier.h). Thread-safe.

#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "services/cache/store/state/node_context.h"

namespace cairn::cache {

// The extents of the parts of a block, in their order.
using Extents = absl::InlinedVector<Extent, 1>;

// Which blocks may go so that others find room.
struct Victims {
  // Only those that were last used before this tick. Unless that is any, they go one by one: no
  // segment, chunk or group of extents is emptied.
  uint64_t used_before = UINT64_MAX;
  // Copies of leased blocks, too. A copy that could do without room does not take theirs: readers
  // of more than a tier holds would push each other out.
  bool leased = true;
  // For whom there will be room: the blocks of its tenant may go, and those of tenants that are not
  // guaranteed the room that they take. nullptr: only the latter.
  const NodeTenant* beneficiary = nullptr;
  // Those of all tenants.
  bool guaranteed = false;
};

class CommonGuests;
class Demoter;
class Drainer;
class GroupEmptier;

class Evictor {
 public:
  explicit Evictor(NodeContext* context);
  ~Evictor();

  // Takes room, evicting as much as it needs. RESOURCE_EXHAUSTED when everything left is being read
  // where it lies, is leased and in no slower tier, waits for its copy to disk, or belongs to
  // blocks that are not complete. `room`: for whom, in the host tier. There it evicts bytes of the
  // order of `bytes`, and if that is of no use, at most twice a segment, twice. `own`: the
  // namespace of the block, whose blocks are as large: if those of others leave no hole that is
  // large enough, one of these does. In a tier that is divided among tenants, it says whose room is
  // taken, and only blocks of the same tenant make some.
  Result<Extent> Reserve(TierKind tier, uint32_t bytes, const Victims& victims = {},
                         const RoomFor& room = {}, NamespaceState* own = nullptr);
  // Room in the tier for extents, which counts for the namespace's tenant from now on. Over its
  // limit, as many of its own blocks go there as it needs, within the bounds of Reserve in host.
  // RESOURCE_EXHAUSTED, which names the tenant and the limit: none may go, or these were not
  // enough. Call it before Reserve.
  Result<HeldRoom> Hold(const NamespaceState& ns, TierKind tier, std::span<const uint32_t> lengths,
                        Victims victims = {});
  // Room for every part of a block, or nothing; in order. `lengths`: of the parts. `keep_free`:
  // bytes of the tier that must be free then.
  Result<Extents> ReserveAll(TierKind tier, std::span<const uint32_t> lengths,
                             uint64_t keep_free = 0, const Victims& victims = {},
                             const RoomFor& room = {}, NamespaceState* own = nullptr);
  void ReleaseAll(TierKind tier, std::span<const Extent> extents);
  // Evicts one block. False when there is none to evict.
  bool EvictOne(TierKind tier, const Victims& victims = {}) {
    return EvictLowest(tier, victims, std::nullopt) > 0;
  }
  // The same, and says how many bytes went. `owner`, if set: only of its tenant; kCommon: of all
  // tenants without segments of their own. Looks at every namespace's published rank:
  // O(namespaces + log blocks).
  uint64_t EvictLowest(TierKind tier, const Victims& victims, const std::optional<OwnerId>& owner);
  // Evicts one block whose life is over, the one that was not used for the longest time. The bytes
  // that went; 0: there is none. O(namespaces + log blocks). `owner`: as EvictLowest's.
  uint64_t EvictOver(TierKind tier, bool leased, const std::optional<OwnerId>& owner);
  // The owner whose segments the tenant's blocks may lie in; kCommon: no one. No lock unless owners
  // came or went since the last call for this namespace.
  OwnerId OwnerOf(const NamespaceState& ns) const;
  // REQUIRES: ns.mu is held.
  void CountEvicted(NamespaceState& ns, const BlockIndex::Evicted& evicted, TierKind tier);
  // Sealed room of the namespace's tenant in host; other tiers go by the namespace.
  RoomFor RoomOf(const NamespaceState& ns, TierKind tier = TierKind::kHost) const {
    if (tier != TierKind::kHost) return {};
    return {OwnerOf(ns), Lending::kSealed};
  }

  // Saves last copies in a tier that is faster than host.
  Demoter* demoter() { return demoter_.get(); }

  // Evicts what the persistent tier wants to be rid of together, but for leased blocks and, as far
  // as the tier lets them stay, those that were used since they were written there. A block may go
  // before what builds on it: that is older still, and goes next. Only the tenants of `victims`
  // count. False when nothing went.
  bool EvictGroup(const Victims& victims = {});

  // Whether the tenant's room in the tier may be taken.
  static bool MayGo(const NamespaceState& ns, TierKind tier, const Victims& victims);

 private:
  Result<Extent> ReserveHost(uint32_t bytes, const Victims& victims, const RoomFor& room,
                             NamespaceState* own);
  Result<Extent> ReserveDivided(Tier* target, uint32_t bytes, const Victims& victims,
                                const NamespaceState* own);
  // Evicts the block that was not used for the longest time of those that make room among the
  // common ones: of tenants without segments of their own, or of others that lie there.
  uint64_t EvictAmongCommon(const Victims& victims);
  // The namespace, of those for which `may(namespace, rank)` is true, whose lowest block ranks
  // lowest of all, and below that of `victims`; its rank. nullptr: none. The answer is the last one
  // for which `may` was true.
  template <typename May>
  std::pair<NamespacePtr, uint64_t> FindLowest(TierKind tier, const Victims& victims,
                                               const May& may) const;
  // Whether the tenants of `victims` let the block go that ranks lowest in the tier.
  bool OldestMayGo(TierKind tier, const Victims& victims) const;
  // EvictLowest of the namespaces for which `may(namespace, rank)` is true.
  template <typename May>
  uint64_t EvictLowestOf(TierKind tier, const Victims& victims, May&& may);
  // Evicts the namespace's lowest block. The bytes that went.
  uint64_t EvictFrom(NamespaceState& ns, TierKind tier, const Victims& victims);

  NodeContext& context_;
  const std::unique_ptr<Demoter> demoter_;
  const std::unique_ptr<Drainer> drainer_;
  const std::unique_ptr<GroupEmptier> emptier_;
  const std::unique_ptr<CommonGuests> guests_;
};

}  // namespace cairn::cache
