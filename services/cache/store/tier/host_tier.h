#pragma once
// The host tier: extents in one arena of memfd segments.
//
//   HostTier ─┬─ ArenaMemory    maps, seals and replaces the segments (arena_memory.h)
//             └─ SegmentOwners  whose segments are whose, and which pages are in use
//                               (segment_owners.h, which has the rules that keep owners apart)
//
// An extent's id is its byte offset in the arena; it starts on a 4 KiB page and never spans
// segments.
//
// Shares: an owner that has less than its share of the segments may have one of another owner
// emptied for it (BeginDrain, EndDrain): nobody gets room there meanwhile, and then only this owner
// does. ../mover/drainer.h empties it.
//
// Memory can change under an address, so whoever registers the arena with a device or a ring of the
// kernel listens to that (SetMemoryListener).
//
// Thread-safe.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "cairn/common/status.h"
#include "services/cache/store/tier/arena_memory.h"
#include "services/cache/store/tier/host_room.h"
#include "services/cache/store/tier/segment_owners.h"
#include "services/cache/store/tier/tier.h"

namespace cairn::cache {

using HostTierOptions = ArenaOptions;

struct HostTierStats {
  // Sum of the lengths asked for: used_bytes - asked_bytes is the waste inside extents.
  uint64_t asked_bytes = 0;
  uint64_t largest_free_bytes = 0;  // The largest extent that Reserve can give now.
  uint64_t segments = 0;
  uint64_t empty_segments = 0;
  uint64_t prefaulted_bytes = 0;
  // Memory that has no segment any more, but may be mapped by other processes. In addition to the
  // capacity.
  uint64_t retired_bytes = 0;
  uint64_t owners = 0;
  bool huge_pages = false;
};

class HostTier final : public Tier {
 public:
  struct ArenaSegment {
    int fd = -1;          // Owned by the tier.
    uint64_t offset = 0;  // In the arena: extents with offset <= id < offset + bytes lie here.
    uint64_t bytes = 0;
  };
  using Place = SegmentPlace;
  struct Shared {
    int fd = -1;  // The caller's.
    uint64_t bytes = 0;
    Lending lending = Lending::kSealed;
  };

  // As ArenaMemory::Create.
  static Result<std::unique_ptr<HostTier>> Create(const HostTierOptions& options);
  // Bytes that an arena may take beyond its capacity: memory that lost its segment while other
  // processes map it. `segment_bytes` as in the options.
  static uint64_t RetiredLimit(uint64_t capacity_bytes, uint64_t segment_bytes = 0) {
    return ArenaMemory::RetiredLimit(capacity_bytes, segment_bytes);
  }

  TierKind kind() const override { return TierKind::kHost; }
  Result<Extent> Reserve(uint32_t length) override { return ReserveFor({}, length); }
  // Aborts on an extent that was not reserved here, or was released before: to go on would hand the
  // bytes to two owners.
  void Release(const Extent& extent) override { owners_.Release(extent); }
  // Copies and calls back inside the call. `record` is not kept.
  void Write(const Extent& extent, std::string_view record, std::span<const std::byte> source,
             IoCallback done) override;
  void Read(const Extent& extent, std::span<std::byte> destination, IoCallback done) override;
  std::span<std::byte> Map(const Extent& extent) override {
    const uint64_t capacity = grid().capacity();
    CAIRN_CHECK(extent.id < capacity && extent.length <= capacity - extent.id);
    return {memory_->base() + extent.id, extent.length};
  }
  bool mapped() const override { return true; }
  uint32_t max_extent_bytes() const override {
    return static_cast<uint32_t>(grid().segment_bytes());
  }
  TierStats GetStats() const override;
  HostTierStats GetHostStats() const;

  // ---- Owners: as SegmentOwners has them ----

  Result<OwnerId> AddOwner(std::string_view name) { return owners_.AddOwner(name); }
  void RemoveOwner(OwnerId owner) { owners_.RemoveOwner(owner); }
  OwnerId FindOwner(std::string_view name) const { return owners_.FindOwner(name); }
  // Changes whenever an answer of FindOwner may have changed. Never 0, and 1 until there was an
  // owner. No lock.
  uint32_t owners_version() const { return owners_.version(); }
  // Reserve for somebody. kSealed takes the owner's sealed segments, then an empty one, then the
  // common ones, then the owner's lent ones; kLent takes lent and empty ones only. kCommon takes
  // common segments. An owner that was given back counts as kCommon.
  Result<Extent> ReserveFor(const RoomFor& room, uint32_t length);

  // Constant while the extent is reserved. No lock.
  Place PlaceOf(uint64_t extent_id) const { return owners_.PlaceOf(extent_id); }
  // A descriptor of the owner's segment. NOT_FOUND when its memory is no longer `id` or belongs to
  // somebody else.
  Result<Shared> Share(uint32_t index, uint32_t id, OwnerId owner);
  std::vector<Place> SegmentsOf(OwnerId owner) const { return owners_.SegmentsOf(owner); }
  // The bytes of its segments; 0 for kCommon. O(segments).
  uint64_t BytesOf(OwnerId owner) const { return owner == kCommon ? 0 : RoomBytes(owner); }
  // The bytes of the owner's segments, or of the common ones. O(segments), no lock.
  uint64_t RoomBytes(OwnerId owner) const { return owners_.BytesOf(owner); }
  bool IsCurrent(uint32_t index, uint32_t id, OwnerId owner) const {
    return owners_.IsCurrent(index, id, owner);
  }

  // ---- Shares: as SegmentOwners has them ----

  bool HasLessThanItsShare(const RoomFor& room) const { return owners_.HasLessThanItsShare(room); }
  std::vector<uint32_t> DrainCandidates(const RoomFor& room) const {
    return owners_.DrainCandidates(room);
  }
  // Indexes of the segments that ReserveFor takes first. Least used first.
  std::vector<uint32_t> OwnSegments(const RoomFor& room) const { return owners_.OwnSegments(room); }
  bool BeginDrain(uint32_t index, const RoomFor& room) { return owners_.BeginDrain(index, room); }
  bool EndDrain() { return owners_.EndDrain(); }
  uint64_t UsedBytesIn(uint32_t index) const { return owners_.UsedBytesIn(index); }
  uint32_t SegmentOf(const Extent& extent) const { return grid().SegmentOf(extent.id); }

  // ---- Memory ----

  // Forgets retired memory that nobody maps any more. Call it from time to time.
  void SweepRetired() { memory_->SweepRetired(); }
  // Grows whenever a segment gets other memory.
  uint32_t segment_memories() const { return owners_.memories(); }
  // The segment in which all of the bytes lie. No lock.
  std::optional<uint32_t> SegmentAt(std::span<const std::byte> bytes) const {
    return memory_->SegmentAt(bytes);
  }
  // Its addresses, which never change; what lies there does.
  std::span<std::byte> SegmentMemory(uint32_t index) const { return memory_->Segment(index); }
  // Told of a segment right before it gets other memory, or its memory other pages. It is empty
  // then. Called without locks. Set it while nobody reserves.
  void SetMemoryListener(std::function<void(uint32_t segment)> listener) {
    memory_listener_ = std::move(listener);
  }
  size_t segment_count() const { return grid().count(); }
  // REQUIRES: no owners: their segments may get other memory at any time.
  ArenaSegment segment(size_t index) const {
    const auto i = static_cast<uint32_t>(index);
    return {memory_->fd(i), grid().OffsetOf(i), grid().BytesOf(i)};
  }
  // Blocks until the background prefault has ended, for benchmarks.
  void WaitForPrefault() { memory_->WaitForPrefault(); }

 private:
  HostTier(std::unique_ptr<ArenaMemory> memory, uint32_t max_owners)
      : memory_(std::move(memory)), owners_(memory_->grid(), max_owners, memory_.get()) {}
  const SegmentGrid& grid() const { return memory_->grid(); }
  // An empty segment becomes the room's. False when there is none.
  bool ClaimEmpty(const RoomFor& room);

  const std::unique_ptr<ArenaMemory> memory_;
  SegmentOwners owners_;
  std::function<void(uint32_t)> memory_listener_;  // Constant while somebody reserves.
  std::atomic<uint64_t> read_bytes_{0};
  std::atomic<uint64_t> written_bytes_{0};
};

}  // namespace cairn::cache
