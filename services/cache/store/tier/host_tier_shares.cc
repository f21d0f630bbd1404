// How many segments each owner has, and emptying one for another owner: see host_tier.h.

#include <algorithm>

#include "services/cache/store/tier/host_tier.h"

namespace cairn::cache {

// Those that are draining, change hands or have no owner count as nobody's.
std::map<OwnerId, uint32_t> HostTier::CountSegments() const {
  std::map<OwnerId, uint32_t> counts;
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    const uint32_t pool = allocator_->pool_of(i);
    if (pool == draining_pool_ || pool == changing_pool_ || pool == orphan_pool_) continue;
    ++counts[OwnerOfIndex(i)];
  }
  return counts;
}

bool HostTier::HasLessThanItsShare(const RoomFor& room) const {
  if (!had_owners_.load(std::memory_order_acquire)) return false;
  MutexLock lock(mu_);
  std::map<OwnerId, uint32_t> counts = CountSegments();
  const uint64_t own = counts[room.owner];
  return own * counts.size() < segments_.size();
}

void HostTier::SortByUse(std::vector<uint32_t>* indexes) const {
  // The order must not change while it is sorted by: the lock is the caller's.
  std::vector<std::pair<uint32_t, uint32_t>> by_use;
  for (const uint32_t i : *indexes) by_use.emplace_back(allocator_->used_pages_in(i), i);
  std::sort(by_use.begin(), by_use.end());
  std::transform(by_use.begin(), by_use.end(), indexes->begin(),
                 [](const auto& entry) { return entry.second; });
}

std::vector<uint32_t> HostTier::DrainCandidates(const RoomFor& room) const {
  std::vector<uint32_t> indexes;
  MutexLock lock(mu_);
  std::map<OwnerId, uint32_t> counts = CountSegments();
  const uint32_t own = counts[room.owner];
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    const uint32_t pool = allocator_->pool_of(i);
    if (pool == draining_pool_ || pool == changing_pool_) continue;
    const OwnerId owner = OwnerOfIndex(i);
    if (pool != orphan_pool_ && (owner == room.owner || counts[owner] <= own + 1)) continue;
    // One whose memory cannot be replaced would be emptied for nothing.
    const SegmentState& state = states_[i];
    if (state.handed_out && state.lending.load() == Lending::kSealed &&
        !retired_.HasRoom(segments_[i].bytes) && MayBeHeldByOthers(segments_[i].fd)) {
      continue;
    }
    indexes.push_back(i);
  }
  SortByUse(&indexes);
  return indexes;
}

std::vector<uint32_t> HostTier::OwnSegments(const RoomFor& room) const {
  std::vector<uint32_t> indexes;
  MutexLock lock(mu_);
  const uint32_t pool = PoolOf(room);
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    if (allocator_->pool_of(i) == pool) indexes.push_back(i);
  }
  SortByUse(&indexes);
  return indexes;
}

bool HostTier::BeginDrain(uint32_t index, const RoomFor& room) {
  MutexLock lock(mu_);
  if (drain_ && !drain_->over) return false;
  if (drain_) {  // Its owner has not come for it.
    allocator_->SetPool(drain_->index, HomePool(drain_->index));
    drain_.reset();
  }
  const uint32_t pool = allocator_->pool_of(index);
  if (pool == draining_pool_ || pool == changing_pool_) return false;
  drain_ = Drain{.index = index, .owner = room.owner};
  allocator_->SetPool(index, draining_pool_);
  return true;
}

bool HostTier::EndDrain() {
  MutexLock lock(mu_);
  CAIRN_CHECK(drain_ && !drain_->over);
  if (allocator_->IsEmpty(drain_->index)) {
    drain_->over = true;
    return true;
  }
  allocator_->SetPool(drain_->index, HomePool(drain_->index));
  drain_.reset();
  return false;
}

uint64_t HostTier::BytesOf(OwnerId owner) const {
  if (owner == kCommon) return 0;
  uint64_t bytes = 0;
  MutexLock lock(mu_);
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    if (OwnerOfIndex(i) == owner) bytes += segments_[i].bytes;
  }
  return bytes;
}

uint64_t HostTier::RoomBytes(OwnerId owner) const {
  if (!had_owners_.load(std::memory_order_acquire)) return owner == kCommon ? capacity_bytes_ : 0;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    if (OwnerOfIndex(i) == owner) bytes += segments_[i].bytes;
  }
  return bytes;
}

uint64_t HostTier::UsedBytesIn(uint32_t index) const {
  MutexLock lock(mu_);
  return uint64_t{allocator_->used_pages_in(index)} * kHostPageBytes;
}

}  // namespace cairn::cache
