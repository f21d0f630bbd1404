// Whose segments are whose: see the rules in host_tier.h.

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/log/log.h"
#include "services/cache/tier/host_tier.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace cairn::cache {
namespace {

constexpr uint64_t kPage = 4096;

}  // namespace

OwnerId HostTier::AddOwner(std::string_view name) {
  MutexLock lock(mu_);
  for (OwnerId id = 1; id < owners_.size(); ++id) {
    if (owners_[id].name == name) return id;
  }
  owners_.push_back({std::string(name), {allocator_->AddPool(), allocator_->AddPool()}});
  has_owners_.store(true, std::memory_order_release);
  return static_cast<OwnerId>(owners_.size() - 1);
}

OwnerId HostTier::FindOwner(std::string_view name) const {
  if (!has_owners_.load(std::memory_order_acquire)) return kCommon;
  MutexLock lock(mu_);
  for (OwnerId id = 1; id < owners_.size(); ++id) {
    if (owners_[id].name == name) return id;
  }
  return kCommon;
}

uint32_t HostTier::PoolOf(const RoomFor& room) const {
  CAIRN_CHECK(room.owner < owners_.size());
  return owners_[room.owner].pools[static_cast<size_t>(room.lending)];
}

Result<Extent> HostTier::ReserveFor(const RoomFor& room, uint32_t length) {
  if (length == 0 || length > max_extent_bytes()) {
    return InvalidArgument("field 'length': got {}, expected 1 to {}", length, max_extent_bytes());
  }
  const auto pages = static_cast<uint32_t>((uint64_t{length} + kPage - 1) / kPage);
  MutexLock lock(mu_);
  const uint32_t pool = PoolOf(room);
  std::optional<uint32_t> page = allocator_->Reserve(pages, pool);
  if (!page && owners_.size() > 1 && ClaimEmpty(room)) page = allocator_->Reserve(pages, pool);
  if (!page && room.owner != kCommon && room.lending == Lending::kSealed) {
    page = allocator_->Reserve(pages, PoolOf({kCommon}));
    if (!page) page = allocator_->Reserve(pages, PoolOf({room.owner, Lending::kLent}));
  }
  if (!page) {
    return Errorf(StatusCode::kResourceExhausted,
                  "host tier: no free run of {} bytes ({} of {} bytes used){}", length,
                  allocator_->used_pages() * kPage, capacity_bytes_,
                  room.lending == Lending::kLent ? ", in the memory that can be lent" : "");
  }
  asked_bytes_ += length;
  ++extents_;
  return Extent{*page * kPage, length};
}

bool HostTier::ClaimEmpty(const RoomFor& room) {
  const uint32_t wanted = PoolOf(room);
  // One that needs no fresh memory is better: 6 x the cost of a copy. Pages used before are better
  // than untouched ones.
  std::optional<uint32_t> found;
  bool found_needs_memory = true;
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    if (allocator_->pool_of(i) == wanted || !allocator_->IsEmpty(i)) continue;
    const SegmentState& state = states_[i];
    const bool same_owner = OwnerOfIndex(i) == room.owner;
    const bool needs_memory =
        state.handed_out && (!same_owner || room.lending != state.lending.load());
    if (found && (needs_memory || !found_needs_memory)) continue;
    // Prefault still uses the descriptors.
    if (needs_memory && !prefault_over_.load(std::memory_order_acquire)) continue;
    found = i;
    found_needs_memory = needs_memory;
    if (!needs_memory) break;
  }
  if (!found || (found_needs_memory && !Renew(*found))) return false;
  states_[*found].owner.store(room.owner, std::memory_order_relaxed);
  states_[*found].lending.store(room.lending, std::memory_order_relaxed);
  allocator_->SetPool(*found, wanted);
  return true;
}

bool HostTier::Renew(uint32_t index) {
  if (const Status mapped = MapSegment(&segments_[index], huge_pages_); !mapped.ok()) {
    log::Warn("host_arena_segment_not_renewed",
              {{"segment", log::Num(index)}, {"reason", Message(mapped)}});
    return false;
  }
  SegmentState& state = states_[index];
  state.id.store(next_segment_id_++, std::memory_order_relaxed);
  state.handed_out = false;
  return true;
}

bool HostTier::WantsMore(const RoomFor& room) {
  MutexLock lock(mu_);
  if (owners_.size() == 1) return true;
  // Segments of each owner; draining ones count as nobody's.
  uint32_t own = 0, owners_with_any = 0;
  std::vector<uint32_t> counts(owners_.size());
  bool draining = false;
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    if (allocator_->pool_of(i) == draining_pool_) {
      draining = true;
      continue;
    }
    ++counts[OwnerOfIndex(i)];
  }
  own = counts[room.owner];
  for (const uint32_t count : counts) owners_with_any += count > 0 ? 1 : 0;
  if (own == 0) ++owners_with_any;
  if (own * owners_with_any >= segments_.size()) return false;
  if (draining) return true;
  // The nearest to empty of an owner that has more than it would leave.
  std::optional<uint32_t> victim;
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    const OwnerId owner = OwnerOfIndex(i);
    if (owner == room.owner || counts[owner] <= own + 1) continue;
    if (!victim || allocator_->used_pages_in(i) < allocator_->used_pages_in(*victim)) victim = i;
  }
  if (!victim) return false;
  allocator_->SetPool(*victim, draining_pool_);
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
      states_[index].id.load(std::memory_order_relaxed) != id) {
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
  const int fd = fcntl(segment.fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) {
    return Errorf(StatusCode::kResourceExhausted, "host arena: descriptor of segment {}: {}", id,
                  std::strerror(errno));
  }
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
