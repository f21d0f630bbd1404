#include "services/cache/store/tier/host_tier.h"

#include <cstring>

#include "common/memory/bulk_copy.h"

namespace cairn::cache {
namespace {

// Segments that a Reserve tries to get before it gives up: another thread may be faster each time.
constexpr int kMaxClaims = 4;

}  // namespace

Result<std::unique_ptr<HostTier>> HostTier::Create(const HostTierOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<ArenaMemory> memory, ArenaMemory::Create(options));
  return std::unique_ptr<HostTier>(new HostTier(std::move(memory), options.max_owners));
}

Result<Extent> HostTier::ReserveFor(const RoomFor& wanted, uint32_t length) {
  if (length == 0 || length > max_extent_bytes()) {
    return InvalidArgument("field 'length': got {}, expected 1 to {}", length, max_extent_bytes());
  }
  RoomFor room = wanted;
  for (int claims = 0;; ++claims) {
    const SegmentOwners::Taken taken = owners_.Take(&room, length);
    if (taken.extent) return *taken.extent;
    if (!taken.may_claim || !room.grow || claims >= kMaxClaims || !ClaimEmpty(room)) break;
  }
  if (const auto extent = owners_.TakeElsewhere(room, length)) return *extent;
  return Errorf(StatusCode::kResourceExhausted,
                "host tier: no free run of {} bytes ({} of {} bytes used){}", length,
                owners_.GetStats().used_bytes, grid().capacity(),
                room.lending == Lending::kLent ? ", in the memory that can be lent" : "");
}

bool HostTier::ClaimEmpty(const RoomFor& room) {
  using Freshness = SegmentOwners::Freshness;
  const auto claim = owners_.BeginClaim(room);
  if (!claim) return false;
  if (claim->freshness == Freshness::kAsItIs) return true;
  if (memory_listener_) memory_listener_(claim->index);
  // Without locks: pages take time.
  const bool fresh = claim->freshness == Freshness::kPunch
                         ? memory_->Punch(claim->index)
                         : memory_->Replace(claim->index, claim->lent_before);
  owners_.EndClaim(*claim, room, fresh);
  if (fresh) memory_->PrefaultAgain(claim->index);
  return fresh;
}

Result<HostTier::Shared> HostTier::Share(uint32_t index, uint32_t id, OwnerId owner) {
  CAIRN_ASSIGN_OR_RETURN(const SegmentOwners::Shared shared, owners_.Share(index, id, owner));
  return Shared{shared.fd, grid().BytesOf(index), shared.lending};
}

void HostTier::Write(const Extent& extent, std::string_view, std::span<const std::byte> source,
                     IoCallback done) {
  if (source.size() != extent.length) {
    return done(
        InvalidArgument("field 'source': got {} bytes, expected {}", source.size(), extent.length));
  }
  BulkCopy(Map(extent).data(), source.data(), source.size());
  written_bytes_.fetch_add(source.size(), std::memory_order_relaxed);
  done(OkStatus());
}

void HostTier::Read(const Extent& extent, std::span<std::byte> destination, IoCallback done) {
  if (destination.size() != extent.length) {
    return done(InvalidArgument("field 'destination': got {} bytes, expected {}",
                                destination.size(), extent.length));
  }
  // The reader verifies what it got, so it is better off in the caches: no streaming stores.
  std::memcpy(destination.data(), Map(extent).data(), destination.size());
  read_bytes_.fetch_add(destination.size(), std::memory_order_relaxed);
  done(OkStatus());
}

TierStats HostTier::GetStats() const {
  const SegmentOwners::Stats owned = owners_.GetStats();
  return {.capacity_bytes = grid().capacity(),
          .used_bytes = owned.used_bytes,
          .extents = owned.extents,
          .read_bytes = read_bytes_.load(std::memory_order_relaxed),
          .written_bytes = written_bytes_.load(std::memory_order_relaxed)};
}

HostTierStats HostTier::GetHostStats() const {
  const SegmentOwners::Stats owned = owners_.GetStats();
  return {.asked_bytes = owned.asked_bytes,
          .largest_free_bytes = owners_.largest_free_bytes(),
          .segments = grid().count(),
          .empty_segments = owned.empty_segments,
          .prefaulted_bytes = memory_->prefaulted_bytes(),
          .retired_bytes = memory_->retired_bytes(),
          .owners = owners_.owners(),
          .huge_pages = memory_->huge_pages()};
}

}  // namespace cairn::cache
