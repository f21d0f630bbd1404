// Which owner has which segments: see the rules in host_tier.h.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/log/log.h"
#include "services/cache/store/tier/host_tier.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace cairn::cache {
namespace {

// Segments that a Reserve tries to get before it gives up: another thread may be faster each time.
constexpr int kMaxClaims = 4;

}  // namespace

Result<OwnerId> HostTier::AddOwner(std::string_view name) {
  MutexLock lock(mu_);
  if (const auto it = owner_ids_.find(name); it != owner_ids_.end()) {
    ++owners_.at(it->second).users;
    return it->second;
  }
  if (owners_.size() >= max_owners_ && !GiveBackIdleOwner()) {
    return Errorf(StatusCode::kResourceExhausted,
                  "tenants with sessions on this machine: {} have some, the limit is {}",
                  owners_.size(), max_owners_);
  }
  const OwnerId id = next_owner_++;
  owners_[id] = {.name = std::string(name), .pools = {NewPool(), NewPool()}, .users = 1};
  owner_ids_.emplace(name, id);
  had_owners_.store(true, std::memory_order_release);
  owners_version_.fetch_add(1, std::memory_order_release);
  return id;
}

void HostTier::RemoveOwner(OwnerId owner) {
  MutexLock lock(mu_);
  const auto it = owners_.find(owner);
  CAIRN_CHECK(it != owners_.end() && it->second.users > 0);
  if (--it->second.users > 0) return;
  it->second.idle_since = ++idle_clock_;
  // It stays while it has blocks here, so that a client that starts again finds them in its reach.
  if (CountSegments().count(owner) == 0) GiveBackOwner(owner);
}

bool HostTier::GiveBackIdleOwner() {
  auto longest = owners_.end();
  for (auto it = owners_.begin(); it != owners_.end(); ++it) {
    if (it->second.users > 0) continue;
    if (longest == owners_.end() || it->second.idle_since < longest->second.idle_since) {
      longest = it;
    }
  }
  if (longest == owners_.end()) return false;
  GiveBackOwner(longest->first);
  return true;
}

// The blocks that it stored stay where they lie. Nobody may get room among it while somebody may
// still map it.
void HostTier::GiveBackOwner(OwnerId owner) {
  const auto it = owners_.find(owner);
  const Owner gone = std::move(it->second);
  owner_ids_.erase(gone.name);
  owners_.erase(it);
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    SegmentState& state = states_[i];
    if (OwnerOfIndex(i) != owner) continue;
    if (!state.handed_out) {
      state.owner.store(kCommon, std::memory_order_relaxed);
      state.lending.store(Lending::kSealed, std::memory_order_relaxed);
    }
    const uint32_t pool = allocator_->pool_of(i);
    if (pool != draining_pool_ && pool != changing_pool_) allocator_->SetPool(i, HomePool(i));
  }
  if (drain_ && drain_->over && drain_->owner == owner) {
    allocator_->SetPool(drain_->index, HomePool(drain_->index));
    drain_.reset();
  }
  free_pools_.insert(free_pools_.end(), std::begin(gone.pools), std::end(gone.pools));
  owners_version_.fetch_add(1, std::memory_order_release);
}

uint32_t HostTier::NewPool() {
  if (free_pools_.empty()) return allocator_->AddPool();
  const uint32_t pool = free_pools_.back();
  free_pools_.pop_back();
  return pool;
}

OwnerId HostTier::FindOwner(std::string_view name) const {
  if (!had_owners_.load(std::memory_order_acquire)) return kCommon;
  MutexLock lock(mu_);
  const auto it = owner_ids_.find(name);
  return it == owner_ids_.end() ? kCommon : it->second;
}

uint32_t HostTier::PoolOf(const RoomFor& room) const {
  const auto it = owners_.find(room.owner);
  // A reservation may have begun before its owner was given back.
  return it == owners_.end() ? 0 : it->second.pools[static_cast<size_t>(room.lending)];
}

uint32_t HostTier::HomePool(uint32_t index) const {
  if (segments_[index].fd < 0) return orphan_pool_;
  const OwnerId owner = OwnerOfIndex(index);
  if (owner == kCommon) return 0;
  return owners_.contains(owner) ? PoolOf({owner, states_[index].lending.load()}) : orphan_pool_;
}

std::optional<Extent> HostTier::TakePages(uint32_t pool, uint32_t pages, uint32_t length) {
  const std::optional<uint32_t> page = allocator_->Reserve(pages, pool);
  if (!page) return std::nullopt;
  const Extent extent{*page * kHostPageBytes, length};
  states_[SegmentOf(extent.id)].used = true;
  asked_bytes_ += length;
  ++extents_;
  return extent;
}

Result<Extent> HostTier::ReserveFor(const RoomFor& wanted, uint32_t length) {
  if (length == 0 || length > max_extent_bytes()) {
    return InvalidArgument("field 'length': got {}, expected 1 to {}", length, max_extent_bytes());
  }
  const auto pages =
      static_cast<uint32_t>((uint64_t{length} + kHostPageBytes - 1) / kHostPageBytes);
  RoomFor room = wanted;
  for (int claims = 0;; ++claims) {
    {
      MutexLock lock(mu_);
      if (!owners_.contains(room.owner)) room.owner = kCommon;
      const bool lends = room.owner != kCommon || room.lending == Lending::kSealed;
      if (lends) {
        if (const auto extent = TakePages(PoolOf(room), pages, length)) return *extent;
      }
      // Without owners and drains, all segments are common.
      const bool any = had_owners_.load(std::memory_order_relaxed) || drain_.has_value();
      if (!any || !lends || !room.grow || claims >= kMaxClaims) break;
    }
    if (!ClaimEmpty(room)) break;
  }
  MutexLock lock(mu_);
  if (room.owner != kCommon && room.lending == Lending::kSealed && owners_.contains(room.owner)) {
    if (const auto extent = TakePages(0, pages, length)) return *extent;
    const uint32_t lent = PoolOf({room.owner, Lending::kLent});
    if (const auto extent = TakePages(lent, pages, length)) return *extent;
  }
  return Errorf(StatusCode::kResourceExhausted,
                "host tier: no free run of {} bytes ({} of {} bytes used){}", length,
                allocator_->used_pages() * kHostPageBytes, capacity_bytes_,
                room.lending == Lending::kLent ? ", in the memory that can be lent" : "");
}

HostTier::Freshness HostTier::FreshnessFor(const RoomFor& room, uint32_t index) const {
  const SegmentState& state = states_[index];
  const bool same_owner = OwnerOfIndex(index) == room.owner;
  if (segments_[index].fd < 0) return Freshness::kReplace;
  if (state.handed_out && (!same_owner || room.lending != state.lending.load())) {
    return Freshness::kReplace;
  }
  // Common memory is shown to nobody, so it may be anybody's.
  const bool others_bytes = state.used && !same_owner && room.owner != kCommon;
  return others_bytes ? Freshness::kPunch : Freshness::kAsItIs;
}

// The one that needs least: fresh pages take 6 x the time of a copy. Pages used before are better
// than untouched ones.
std::optional<HostTier::Claim> HostTier::FindEmpty(const RoomFor& room) {
  const uint32_t wanted = PoolOf(room);
  std::optional<Claim> found;
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    const uint32_t pool = allocator_->pool_of(i);
    if (pool == wanted || pool == changing_pool_ || !allocator_->IsEmpty(i)) continue;
    const bool for_another = drain_ && drain_->index == i && drain_->owner != room.owner;
    if (pool == draining_pool_ && (for_another || !drain_->over)) continue;
    const Freshness freshness = FreshnessFor(room, i);
    if (found && freshness >= found->freshness) continue;
    if (freshness == Freshness::kReplace) {
      // Prefault still uses the descriptors.
      if (!prefault_over_.load(std::memory_order_acquire)) continue;
      const bool gone = segments_[i].fd < 0 || states_[i].lending.load() == Lending::kLent;
      if (!gone && !retired_.HasRoom(segments_[i].bytes)) {
        retired_.Sweep();
        if (!retired_.HasRoom(segments_[i].bytes) && MayBeHeldByOthers(segments_[i].fd)) continue;
      }
    }
    found = Claim{i, freshness, OwnerOfIndex(i)};
    if (freshness == Freshness::kAsItIs) break;
  }
  return found;
}

void HostTier::Assign(uint32_t index, const RoomFor& room) {
  SegmentState& state = states_[index];
  const OwnerId owner = owners_.contains(room.owner) ? room.owner : kCommon;
  state.owner.store(owner, std::memory_order_relaxed);
  state.lending.store(owner == kCommon ? Lending::kSealed : room.lending,
                      std::memory_order_relaxed);
  allocator_->SetPool(index, HomePool(index));
  if (drain_ && drain_->index == index) drain_.reset();
}

bool HostTier::ClaimEmpty(const RoomFor& room) {
  std::optional<Claim> claim;
  {
    MutexLock lock(mu_);
    claim = FindEmpty(room);
    if (!claim) return false;
    if (claim->freshness == Freshness::kAsItIs) {
      Assign(claim->index, room);
      return true;
    }
    // Until it is fresh, nobody gets room in it, and nobody gets to see it.
    if (drain_ && drain_->index == claim->index) drain_.reset();
    allocator_->SetPool(claim->index, changing_pool_);
    states_[claim->index].owner.store(kCommon, std::memory_order_relaxed);
  }
  const bool fresh = Freshen(*claim);
  {
    MutexLock lock(mu_);
    if (!fresh) {
      states_[claim->index].owner.store(claim->owner_before, std::memory_order_relaxed);
      allocator_->SetPool(claim->index, HomePool(claim->index));
      return false;
    }
    SegmentState& state = states_[claim->index];
    state.used = false;
    if (claim->freshness == Freshness::kReplace) {
      state.id.store(next_segment_id_++, std::memory_order_relaxed);
      state.handed_out = false;
    }
    Assign(claim->index, room);
  }
  PrefaultAgain(claim->index);
  return true;
}

bool HostTier::Freshen(const Claim& claim) {
  if (memory_listener_) memory_listener_(claim.index);
  const ArenaSegment& segment = segments_[claim.index];
  if (claim.freshness == Freshness::kPunch) return PunchAll(segment.fd, segment.bytes);
  return Replace(claim.index);
}

bool HostTier::Replace(uint32_t index) {
  ArenaSegment& segment = segments_[index];
  const int old = segment.fd;
  // Punched memory has no pages. Those whom it was lent to may touch it again, at their own cost.
  const bool punched =
      old >= 0 && states_[index].lending.load() == Lending::kLent && PunchAll(old, segment.bytes);
  const bool held = old >= 0 && !punched && MayBeHeldByOthers(old);
  if (held) {
    MutexLock lock(mu_);
    if (!retired_.Take(segment.bytes)) return false;
  }
  if (huge_pages_ && !held && old >= 0) {
    // There are just as many huge pages as the arena needs: the old ones go first.
    (void)mmap(base_ + segment.offset, segment.bytes, PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    close(old);
    segment.fd = -1;
  }
  const Status mapped = MapSegment(&segment, huge_pages_);
  if (!mapped.ok()) {
    log::Warn("host_arena_segment_not_renewed",
              {{"segment", log::Num(index)}, {"reason", Message(mapped)}});
    if (held) {
      MutexLock lock(mu_);
      retired_.GiveBack(segment.bytes);
    }
    // A failed mapping of huge pages has taken the old one away: the segment is out of use until
    // there are pages.
    if (huge_pages_ && segment.fd >= 0) close(std::exchange(segment.fd, -1));
    return false;
  }
  if (held) {
    MutexLock lock(mu_);
    retired_.Add(old, segment.bytes);
  } else if (old >= 0 && !huge_pages_) {
    close(old);
  }
  return true;
}

HostTier::Place HostTier::PlaceOf(uint64_t extent_id) const {
  const uint32_t index = SegmentOf(extent_id);
  const SegmentState& state = states_[index];
  return {index, state.id.load(std::memory_order_relaxed),
          state.owner.load(std::memory_order_relaxed),
          state.lending.load(std::memory_order_relaxed), extent_id - segments_[index].offset};
}

Result<HostTier::Shared> HostTier::Share(uint32_t index, uint32_t id, OwnerId owner) {
  MutexLock lock(mu_);
  if (index >= segments_.size() || owner == kCommon || OwnerOfIndex(index) != owner ||
      !owners_.contains(owner) || states_[index].id.load(std::memory_order_relaxed) != id) {
    return Errorf(StatusCode::kNotFound, "host arena: segment {} is no longer this owner's", id);
  }
  SegmentState& state = states_[index];
  const ArenaSegment& segment = segments_[index];
  const Lending lending = state.lending.load(std::memory_order_relaxed);
  if (!state.handed_out) {
    const int seals = F_SEAL_SEAL | (lending == Lending::kSealed ? F_SEAL_FUTURE_WRITE : 0);
    if (fcntl(segment.fd, F_ADD_SEALS, seals) != 0) {
      return Errorf(StatusCode::kFailedPrecondition, "host arena: sealing segment {}: {}", id,
                    std::strerror(errno));
    }
    state.handed_out = true;
  }
  CAIRN_ASSIGN_OR_RETURN(const int fd, OpenForOthers(segment.fd));
  return Shared{fd, segment.bytes, lending};
}

std::vector<HostTier::Place> HostTier::SegmentsOf(OwnerId owner) const {
  std::vector<Place> places;
  MutexLock lock(mu_);
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    if (owner != kCommon && OwnerOfIndex(i) == owner)
      places.push_back(PlaceOf(segments_[i].offset));
  }
  return places;
}

bool HostTier::IsCurrent(uint32_t index, uint32_t id, OwnerId owner) const {
  MutexLock lock(mu_);
  return index < segments_.size() && OwnerOfIndex(index) == owner &&
         states_[index].id.load(std::memory_order_relaxed) == id;
}

}  // namespace cairn::cache
