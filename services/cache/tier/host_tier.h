#pragma once
// The host tier: extents in one arena of memfd segments.
//
// The arena is one range of addresses. Each segment is a memfd of its own, so that it can be handed
// to another process, and is sealed against resizing, so that no holder of the descriptor can pull
// pages from under us. An extent's id is its byte offset in the arena; it starts on a 4 KiB page
// and never spans segments. ExtentAllocator decides where it lies.
//
// Owners. At first all segments are common: extents of everybody, never shown to anybody outside of
// this process. Who reads in place from another process becomes an owner (AddOwner), and from then
// on gets segments of its own, taken from the empty ones on demand: sealed ones to read, lent ones
// to write too. Rules that keep owners apart:
// - A segment is handed out (Share) only while all its extents are its owner's.
// - A segment changes hands only when it is empty, and gets fresh memory then if it was ever
//   handed out: a mapping that somebody kept shows nothing of the next owner.
//   Its id changes with its memory.
// - A sealed segment is sealed against writing (F_SEAL_FUTURE_WRITE) before it is handed out;
//   this process keeps the mapping it has. A lent one never held bytes that were sealed.
// Memory can change under an address, so the arena must not be registered with a device or a ring
// of the kernel for good.
//
// Thread-safe.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"
#include "services/cache/tier/extent_allocator.h"
#include "services/cache/tier/tier.h"

namespace cairn::cache {

struct HostTierOptions {
  enum class HugePages : uint8_t {
    kOff,
    kTry,      // Where pages of 2 MiB are reserved for all of the arena; else 4 KiB pages.
    kRequire,  // FAILED_PRECONDITION where they are not.
  };

  uint64_t capacity_bytes = 0;  // Of the arena. Rounded down to pages. At least one page.
  // Bytes of a segment, a multiple of 2 MiB up to 2 GiB. 0: 64 MiB, doubled until the arena has at
  // most 512 segments, or the whole arena where that is smaller. The largest extent is one segment.
  uint64_t segment_bytes = 0;
  HugePages huge_pages = HugePages::kOff;
  // Touches the pages from a background thread, so that no request pays for fresh memory (6 x the
  // cost of a copy).
  bool prefault = true;
  // Refuses an arena that is larger than what the machine or the control group has left.
  bool check_memory = true;
  std::string name = "cairn-arena";  // Of the memfds, as /proc shows them.
};

struct HostTierStats {
  // Sum of the lengths asked for: used_bytes - asked_bytes is the waste inside extents.
  uint64_t asked_bytes = 0;
  uint64_t largest_free_bytes = 0;  // The largest extent that Reserve can give now.
  uint64_t segments = 0;
  uint64_t empty_segments = 0;
  uint64_t prefaulted_bytes = 0;
  bool huge_pages = false;
};

using OwnerId = uint32_t;
inline constexpr OwnerId kCommon = 0;  // Extents that are never handed out.

enum class Lending : uint8_t {
  kSealed,  // The owner's processes read.
  kLent,    // They write too: bytes there may change at any time.
};

// For whom room is taken.
struct RoomFor {
  OwnerId owner = kCommon;
  Lending lending = Lending::kSealed;
};

class HostTier final : public Tier {
 public:
  struct ArenaSegment {
    int fd = -1;          // Owned by the tier.
    uint64_t offset = 0;  // In the arena: extents with offset <= id < offset + bytes lie here.
    uint64_t bytes = 0;
  };

  // INVALID_ARGUMENT naming the option; RESOURCE_EXHAUSTED naming the bytes asked for and what
  // there is.
  static Result<std::unique_ptr<HostTier>> Create(const HostTierOptions& options);
  ~HostTier() override;  // Stops the prefault. REQUIRES: nobody uses mapped bytes.

  TierKind kind() const override { return TierKind::kHost; }
  Result<Extent> Reserve(uint32_t length) override;
  // Aborts on an extent that was not reserved here, or was released before: to go on would hand the
  // bytes to two owners.
  void Release(const Extent& extent) override;
  // Copies and calls back inside the call. `record` is not kept.
  void Write(const Extent& extent, std::string_view record, std::span<const std::byte> source,
             IoCallback done) override;
  void Read(const Extent& extent, std::span<std::byte> destination, IoCallback done) override;
  std::span<std::byte> Map(const Extent& extent) override;
  bool mapped() const override { return true; }
  uint32_t max_extent_bytes() const override;
  TierStats GetStats() const override;

  // ---- Owners (host_tier_owners.cc) ----

  struct Place {
    uint32_t index = 0;  // Of the segment.
    uint32_t id = 0;     // Of its memory: never used again.
    OwnerId owner = kCommon;
    Lending lending = Lending::kSealed;
    uint64_t offset = 0;  // Of the extent in the segment.
  };
  struct Shared {
    int fd = -1;  // The caller's.
    uint64_t bytes = 0;
    Lending lending = Lending::kSealed;
  };

  // The owner of this name; made when it is new. Owners stay.
  OwnerId AddOwner(std::string_view name);
  // kCommon when there is none of this name.
  OwnerId FindOwner(std::string_view name) const;
  // Reserve for somebody. kSealed takes the owner's sealed segments, then an empty one, then the
  // common ones, then the owner's lent ones; kLent takes lent and empty ones only. kCommon takes
  // common segments.
  Result<Extent> ReserveFor(const RoomFor& room, uint32_t length);
  // After a ReserveFor that failed: keeps newcomers out of the segment of another owner that is
  // nearest to empty, so that eviction empties it. True when the room's owner has less than its
  // share: evict from anybody; false: from its own first.
  bool WantsMore(const RoomFor& room);
  // Constant while the extent is reserved. No lock.
  Place PlaceOf(uint64_t extent_id) const;
  // A descriptor of the owner's segment. NOT_FOUND when its memory is no longer `id` or belongs to
  // somebody else.
  Result<Shared> Share(uint32_t index, uint32_t id, OwnerId owner);
  // The owner's segments of now, as places with offset 0.
  std::vector<Place> SegmentsOf(OwnerId owner) const;
  // The segment still has the memory `id`, and it is the owner's.
  bool IsCurrent(uint32_t index, uint32_t id, OwnerId owner) const;

  // Grows whenever a segment gets other memory.
  uint32_t segment_memories() const { return next_segment_id_.load(std::memory_order_acquire); }

  HostTierStats GetHostStats() const;
  size_t segment_count() const { return segments_.size(); }
  // REQUIRES: no owners: their segments may get other memory at any time.
  const ArenaSegment& segment(size_t index) const { return segments_[index]; }
  // Blocks until the background prefault has ended, for benchmarks.
  void WaitForPrefault();

 private:
  // Of one segment; written under mu_.
  struct SegmentState {
    std::atomic<uint32_t> id{0};
    std::atomic<OwnerId> owner{kCommon};
    std::atomic<Lending> lending{Lending::kSealed};
    bool handed_out = false;  // Since it has this memory.
  };
  struct Owner {
    std::string name;
    uint32_t pools[2];  // By Lending.
  };

  HostTier() = default;
  Status MapArena(const HostTierOptions& options, bool huge);
  Status MapSegment(ArenaSegment* segment, bool huge);
  void UnmapArena();
  uint32_t PoolOf(const RoomFor& room) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // An empty segment becomes the room's. False when there is none.
  bool ClaimEmpty(const RoomFor& room) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Renew(uint32_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  OwnerId OwnerOfIndex(uint32_t index) const {
    return states_[index].owner.load(std::memory_order_relaxed);
  }
  // A division of 64 bits takes longer than the rest of PlaceOf; only odd sizes need one.
  uint32_t SegmentOf(uint64_t extent_id) const {
    return static_cast<uint32_t>(segment_shift_ ? extent_id >> *segment_shift_
                                                : extent_id / segment_bytes_);
  }
  void Prefault();

  // Constant after Create.
  std::byte* base_ = nullptr;
  uint64_t capacity_bytes_ = 0;
  uint64_t segment_bytes_ = 0;
  std::optional<int> segment_shift_;  // Where that is a power of two.
  uint64_t reserved_address_bytes_ = 0;
  void* reserved_address_ = nullptr;
  bool huge_pages_ = false;
  std::string name_;
  std::vector<ArenaSegment> segments_;  // Descriptors change under mu_, once there are owners.
  std::unique_ptr<SegmentState[]> states_;

  mutable Mutex mu_;
  std::vector<Owner> owners_ ABSL_GUARDED_BY(mu_);  // By OwnerId; the first is kCommon.
  uint32_t draining_pool_ ABSL_GUARDED_BY(mu_) = 0;
  std::atomic<uint32_t> next_segment_id_{1};  // Written under mu_.
  std::atomic<bool> has_owners_{false};
  std::unique_ptr<ExtentAllocator> allocator_ ABSL_GUARDED_BY(mu_);
  uint64_t asked_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t extents_ ABSL_GUARDED_BY(mu_) = 0;

  std::atomic<uint64_t> read_bytes_{0};
  std::atomic<uint64_t> written_bytes_{0};
  std::atomic<uint64_t> prefaulted_bytes_{0};
  std::atomic<bool> stop_prefault_{false};
  Mutex prefault_mu_;
  CondVar prefault_done_cv_;
  bool prefault_done_ ABSL_GUARDED_BY(prefault_mu_) = true;
  std::atomic<bool> prefault_over_{true};
  std::thread prefault_thread_;
};

}  // namespace cairn::cache
