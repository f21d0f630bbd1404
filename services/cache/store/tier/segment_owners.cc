#include "services/cache/store/tier/segment_owners.h"

#include <algorithm>
#include <utility>

#include "services/cache/store/tier/host_room.h"

namespace cairn::cache {
namespace {

uint32_t PagesOf(uint32_t length) {
  return static_cast<uint32_t>(HostRoom(length) / kHostPageBytes);
}

}  // namespace

SegmentOwners::SegmentOwners(const SegmentGrid& grid, uint32_t max_owners,
                             SegmentMemories* memories)
    : grid_(grid),
      memories_(*memories),
      states_(std::make_unique<State[]>(grid.count())),
      allocator_(grid.Pages()),
      draining_(allocator_.AddPool()),
      changing_(allocator_.AddPool()),
      orphan_(allocator_.AddPool()),
      owners_(max_owners) {
  for (uint32_t i = 0; i < grid.count(); ++i) states_[i].id = next_id_++;
}

Result<OwnerId> SegmentOwners::AddOwner(std::string_view name) {
  MutexLock lock(mu_);
  if (const auto known = owners_.Use(name)) return *known;
  if (owners_.full()) {
    const auto idle = owners_.LongestIdle();
    if (!idle) {
      return Errorf(StatusCode::kResourceExhausted,
                    "tenants with sessions on this machine: {} have some, the limit is {}",
                    owners_.size(), owners_.max());
    }
    GiveBackOwner(*idle);
  }
  const OwnerId id = owners_.Add(name);
  pools_[id] = {NewPool(), NewPool()};
  had_owners_.store(true, std::memory_order_release);
  version_.fetch_add(1, std::memory_order_release);
  return id;
}

void SegmentOwners::RemoveOwner(OwnerId owner) {
  MutexLock lock(mu_);
  if (!owners_.Leave(owner)) return;
  // It stays while it has blocks here, so that a client that starts again finds them in its reach.
  if (!CountSegments().contains(owner)) GiveBackOwner(owner);
}

// The blocks that it stored stay where they lie. Nobody may get room among them while somebody may
// still map them.
void SegmentOwners::GiveBackOwner(OwnerId owner) {
  owners_.Erase(owner);
  const ByLending gone = pools_.at(owner);
  pools_.erase(owner);
  for (uint32_t i = 0; i < grid_.count(); ++i) {
    State& state = states_[i];
    if (OwnerOfIndex(i) != owner) continue;
    if (!state.handed_out) {
      state.owner.store(kCommon, std::memory_order_relaxed);
      state.lending.store(Lending::kSealed, std::memory_order_relaxed);
    }
    const Pool pool = allocator_.pool_of(i);
    if (pool != draining_ && pool != changing_) allocator_.SetPool(i, HomePool(i));
  }
  if (drain_ && drain_->over && drain_->owner == owner) {
    allocator_.SetPool(drain_->index, HomePool(drain_->index));
    drain_.reset();
  }
  free_pools_.insert(free_pools_.end(), gone.begin(), gone.end());
  version_.fetch_add(1, std::memory_order_release);
}

SegmentOwners::Pool SegmentOwners::NewPool() {
  if (free_pools_.empty()) return allocator_.AddPool();
  const Pool pool = free_pools_.back();
  free_pools_.pop_back();
  return pool;
}

OwnerId SegmentOwners::FindOwner(std::string_view name) const {
  if (!had_owners_.load(std::memory_order_acquire)) return kCommon;
  MutexLock lock(mu_);
  return owners_.Find(name);
}

size_t SegmentOwners::owners() const {
  MutexLock lock(mu_);
  return owners_.size();
}

SegmentOwners::Pool SegmentOwners::PoolOf(const RoomFor& room) const {
  const auto it = pools_.find(room.owner);
  // A reservation may have begun before its owner was given back.
  return it == pools_.end() ? 0 : it->second[static_cast<size_t>(room.lending)];
}

SegmentOwners::Pool SegmentOwners::HomePool(uint32_t index) const {
  if (!memories_.IsThere(index)) return orphan_;
  const OwnerId owner = OwnerOfIndex(index);
  if (owner == kCommon) return 0;
  return owners_.Has(owner) ? PoolOf({owner, states_[index].lending.load()}) : orphan_;
}

std::optional<Extent> SegmentOwners::TakePages(Pool pool, uint32_t length) {
  const std::optional<uint32_t> page = allocator_.Reserve(PagesOf(length), pool);
  if (!page) return std::nullopt;
  const Extent extent{*page * kHostPageBytes, length};
  states_[grid_.SegmentOf(extent.id)].used = true;
  asked_bytes_ += length;
  ++extents_;
  return extent;
}

SegmentOwners::Taken SegmentOwners::Take(RoomFor* room, uint32_t length) {
  MutexLock lock(mu_);
  if (!owners_.Has(room->owner)) room->owner = kCommon;
  // Common segments are never lent.
  if (room->owner == kCommon && room->lending == Lending::kLent) return {};
  if (auto extent = TakePages(PoolOf(*room), length)) return {.extent = extent};
  // Without owners and drains, all segments are common.
  return {.may_claim = had_owners_.load(std::memory_order_relaxed) || drain_.has_value()};
}

std::optional<Extent> SegmentOwners::TakeElsewhere(const RoomFor& room, uint32_t length) {
  MutexLock lock(mu_);
  if (room.lending == Lending::kLent || !owners_.Has(room.owner)) return std::nullopt;
  if (auto extent = TakePages(0, length)) return extent;
  return TakePages(PoolOf({room.owner, Lending::kLent}), length);
}

void SegmentOwners::Release(const Extent& extent) {
  CAIRN_CHECK(extent.length > 0 && extent.id % kHostPageBytes == 0 && extent.id < grid_.capacity());
  const auto page = static_cast<uint32_t>(extent.id / kHostPageBytes);
  MutexLock lock(mu_);
  CAIRN_CHECK(allocator_.IsReserved(page, PagesOf(extent.length)));
  allocator_.Release(page, PagesOf(extent.length));
  asked_bytes_ -= extent.length;
  --extents_;
}

SegmentOwners::Freshness SegmentOwners::FreshnessFor(const RoomFor& room, uint32_t index) const {
  const State& state = states_[index];
  const bool same_owner = OwnerOfIndex(index) == room.owner;
  if (!memories_.IsThere(index)) return Freshness::kReplace;
  if (state.handed_out && (!same_owner || room.lending != state.lending.load())) {
    return Freshness::kReplace;
  }
  // Common memory is shown to nobody, so it may be anybody's.
  const bool others_bytes = state.used && !same_owner && room.owner != kCommon;
  return others_bytes ? Freshness::kPunch : Freshness::kAsItIs;
}

// The one that needs least: fresh pages take 6 x the time of a copy. Pages used before are better
// than untouched ones.
std::optional<SegmentOwners::Claim> SegmentOwners::FindEmpty(const RoomFor& room) {
  const Pool wanted = PoolOf(room);
  std::optional<Claim> found;
  for (uint32_t i = 0; i < grid_.count(); ++i) {
    const Pool pool = allocator_.pool_of(i);
    if (pool == wanted || pool == changing_ || !allocator_.IsEmpty(i)) continue;
    const bool for_another = drain_ && drain_->index == i && drain_->owner != room.owner;
    if (pool == draining_ && (for_another || !drain_->over)) continue;
    const Freshness freshness = FreshnessFor(room, i);
    if (found && freshness >= found->freshness) continue;
    const bool lent = states_[i].lending.load() == Lending::kLent;
    if (freshness == Freshness::kReplace && !memories_.CanReplace(i, lent)) continue;
    found = Claim{i, freshness, OwnerOfIndex(i), lent};
    if (freshness == Freshness::kAsItIs) break;
  }
  return found;
}

void SegmentOwners::Assign(uint32_t index, const RoomFor& room) {
  State& state = states_[index];
  const OwnerId owner = owners_.Has(room.owner) ? room.owner : kCommon;
  state.owner.store(owner, std::memory_order_relaxed);
  state.lending.store(owner == kCommon ? Lending::kSealed : room.lending,
                      std::memory_order_relaxed);
  allocator_.SetPool(index, HomePool(index));
  if (drain_ && drain_->index == index) drain_.reset();
}

std::optional<SegmentOwners::Claim> SegmentOwners::BeginClaim(const RoomFor& room) {
  MutexLock lock(mu_);
  const std::optional<Claim> claim = FindEmpty(room);
  if (!claim) return std::nullopt;
  if (claim->freshness == Freshness::kAsItIs) {
    Assign(claim->index, room);
    return claim;
  }
  if (drain_ && drain_->index == claim->index) drain_.reset();
  allocator_.SetPool(claim->index, changing_);
  // Nobody gets to see it either.
  states_[claim->index].owner.store(kCommon, std::memory_order_relaxed);
  return claim;
}

void SegmentOwners::EndClaim(const Claim& claim, const RoomFor& room, bool fresh) {
  MutexLock lock(mu_);
  State& state = states_[claim.index];
  if (!fresh) {
    state.owner.store(claim.owner_before, std::memory_order_relaxed);
    allocator_.SetPool(claim.index, HomePool(claim.index));
    return;
  }
  state.used = false;
  if (claim.freshness == Freshness::kReplace) {
    state.id.store(next_id_++, std::memory_order_relaxed);
    state.handed_out = false;
  }
  Assign(claim.index, room);
}

// Segments that are draining, change hands or have no owner count as nobody's.
std::map<OwnerId, uint32_t> SegmentOwners::CountSegments() const {
  std::map<OwnerId, uint32_t> counts;
  for (uint32_t i = 0; i < grid_.count(); ++i) {
    const Pool pool = allocator_.pool_of(i);
    if (pool == draining_ || pool == changing_ || pool == orphan_) continue;
    ++counts[OwnerOfIndex(i)];
  }
  return counts;
}

bool SegmentOwners::HasLessThanItsShare(const RoomFor& room) const {
  if (!had_owners_.load(std::memory_order_acquire)) return false;
  MutexLock lock(mu_);
  std::map<OwnerId, uint32_t> counts = CountSegments();
  const uint64_t own = counts[room.owner];
  return own * counts.size() < grid_.count();
}

void SegmentOwners::SortByUse(std::vector<uint32_t>* indexes) const {
  std::vector<std::pair<uint32_t, uint32_t>> by_use;
  for (const uint32_t i : *indexes) by_use.emplace_back(allocator_.used_pages_in(i), i);
  std::sort(by_use.begin(), by_use.end());
  std::transform(by_use.begin(), by_use.end(), indexes->begin(),
                 [](const auto& entry) { return entry.second; });
}

std::vector<uint32_t> SegmentOwners::DrainCandidates(const RoomFor& room) const {
  std::vector<uint32_t> indexes;
  MutexLock lock(mu_);
  std::map<OwnerId, uint32_t> counts = CountSegments();
  const uint32_t own = counts[room.owner];
  for (uint32_t i = 0; i < grid_.count(); ++i) {
    const Pool pool = allocator_.pool_of(i);
    if (pool == draining_ || pool == changing_) continue;
    const OwnerId owner = OwnerOfIndex(i);
    if (pool != orphan_ && (owner == room.owner || counts[owner] <= own + 1)) continue;
    // One whose memory cannot be replaced would be emptied for nothing.
    const State& state = states_[i];
    const bool sealed = state.handed_out && state.lending.load() == Lending::kSealed;
    if (sealed && memories_.IsStuck(i)) continue;
    indexes.push_back(i);
  }
  SortByUse(&indexes);
  return indexes;
}

std::vector<uint32_t> SegmentOwners::OwnSegments(const RoomFor& room) const {
  std::vector<uint32_t> indexes;
  MutexLock lock(mu_);
  const Pool pool = PoolOf(room);
  for (uint32_t i = 0; i < grid_.count(); ++i) {
    if (allocator_.pool_of(i) == pool) indexes.push_back(i);
  }
  SortByUse(&indexes);
  return indexes;
}

bool SegmentOwners::BeginDrain(uint32_t index, const RoomFor& room) {
  MutexLock lock(mu_);
  if (drain_ && !drain_->over) return false;
  if (drain_) {  // Its owner has not come for it.
    allocator_.SetPool(drain_->index, HomePool(drain_->index));
    drain_.reset();
  }
  const Pool pool = allocator_.pool_of(index);
  if (pool == draining_ || pool == changing_) return false;
  drain_ = Drain{.index = index, .owner = room.owner};
  allocator_.SetPool(index, draining_);
  return true;
}

bool SegmentOwners::EndDrain() {
  MutexLock lock(mu_);
  CAIRN_CHECK(drain_ && !drain_->over);
  if (allocator_.IsEmpty(drain_->index)) {
    drain_->over = true;
    return true;
  }
  allocator_.SetPool(drain_->index, HomePool(drain_->index));
  drain_.reset();
  return false;
}

SegmentPlace SegmentOwners::PlaceOf(uint64_t extent_id) const {
  const uint32_t index = grid_.SegmentOf(extent_id);
  const State& state = states_[index];
  return {index, state.id.load(std::memory_order_relaxed),
          state.owner.load(std::memory_order_relaxed),
          state.lending.load(std::memory_order_relaxed), extent_id - grid_.OffsetOf(index)};
}

Result<SegmentOwners::Shared> SegmentOwners::Share(uint32_t index, uint32_t id, OwnerId owner) {
  MutexLock lock(mu_);
  if (index >= grid_.count() || owner == kCommon || OwnerOfIndex(index) != owner ||
      !owners_.Has(owner) || states_[index].id.load(std::memory_order_relaxed) != id) {
    return Errorf(StatusCode::kNotFound, "host arena: segment {} is no longer this owner's", id);
  }
  State& state = states_[index];
  const SegmentPlace place = PlaceOf(grid_.OffsetOf(index));
  if (!state.handed_out) CAIRN_RETURN_IF_ERROR(memories_.Seal(place));
  state.handed_out = true;
  CAIRN_ASSIGN_OR_RETURN(const int fd, memories_.Open(index));
  return Shared{fd, place.lending};
}

std::vector<SegmentPlace> SegmentOwners::SegmentsOf(OwnerId owner) const {
  std::vector<SegmentPlace> places;
  MutexLock lock(mu_);
  for (uint32_t i = 0; i < grid_.count(); ++i) {
    if (owner != kCommon && OwnerOfIndex(i) == owner) places.push_back(PlaceOf(grid_.OffsetOf(i)));
  }
  return places;
}

bool SegmentOwners::IsCurrent(uint32_t index, uint32_t id, OwnerId owner) const {
  MutexLock lock(mu_);
  return index < grid_.count() && OwnerOfIndex(index) == owner &&
         states_[index].id.load(std::memory_order_relaxed) == id;
}

uint64_t SegmentOwners::BytesOf(OwnerId owner) const {
  if (!had_owners_.load(std::memory_order_acquire)) return owner == kCommon ? grid_.capacity() : 0;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < grid_.count(); ++i) {
    if (OwnerOfIndex(i) == owner) bytes += grid_.BytesOf(i);
  }
  return bytes;
}

uint64_t SegmentOwners::UsedBytesIn(uint32_t index) const {
  MutexLock lock(mu_);
  return uint64_t{allocator_.used_pages_in(index)} * kHostPageBytes;
}

SegmentOwners::Stats SegmentOwners::GetStats() const {
  MutexLock lock(mu_);
  return {.used_bytes = allocator_.used_pages() * kHostPageBytes,
          .asked_bytes = asked_bytes_,
          .extents = extents_,
          .empty_segments = allocator_.empty_segments()};
}

uint64_t SegmentOwners::largest_free_bytes() const {
  MutexLock lock(mu_);
  return uint64_t{allocator_.largest_free_pages()} * kHostPageBytes;
}

void SegmentOwners::CheckConsistency() const {
  MutexLock lock(mu_);
  allocator_.CheckConsistency();
  for (uint32_t i = 0; i < grid_.count(); ++i) {
    const Pool pool = allocator_.pool_of(i);
    if (pool == changing_) continue;
    const bool drains = drain_ && drain_->index == i;
    CAIRN_CHECK(pool == (drains ? draining_ : HomePool(i)));
  }
}

}  // namespace cairn::cache
