#pragma once
// The host tier: extents in one arena of memfd segments.
//
// The arena is one range of addresses. Each segment is a memfd of its own, so that it can be handed
// to another process, and is sealed against resizing, so that no holder of the descriptor can pull
// pages from under us. An extent's id is its byte offset in the arena; it starts on a 4 KiB page
// and never spans segments. ExtentAllocator decides where it lies.
//
// Owners. At first all segments are common: extents of everybody, never shown to anybody outside of
// this process. A tenant that reads in place from another process becomes an owner (AddOwner), and
// from then on gets segments of its own, taken from the empty ones on demand: sealed ones to read,
// lent ones to write too. Rules that keep owners apart:
// - A segment is handed out (Share) only while all its extents are its owner's.
// - A segment changes hands only when it is empty. Its memory is fresh then: an owner's memory has
//   never held a byte of anybody else, whether that was shown or not, and a mapping that somebody
//   kept shows nothing of the next owner. Only common segments, which nobody sees, take over memory
//   that was not handed out. Memory that was never handed out is punched and stays; other memory is
//   replaced, and the id of the segment changes with it.
// - Memory that was replaced may still be mapped by those who had it. It is bounded
//   (retired_bytes): over the bound, such a segment stays with its owner until somebody unmaps.
// - A sealed segment is sealed against writing (F_SEAL_FUTURE_WRITE) before it is handed out;
//   this process keeps the mapping it has. A lent one never held bytes that were sealed.
// Shares. An owner that has less than its share of the segments may have one of another owner
// emptied for it (BeginDrain, EndDrain): nobody gets room there meanwhile, and then only this owner
// does. ../mover/drainer.h empties it.
//
// Owners are counted by name and given back: one without users (RemoveOwner) makes place for new
// names, and its segments become common, or are emptied first if they were handed out. Ids are not
// used again.
//
// Memory can change under an address, so whoever registers the arena with a device or a ring of the
// kernel listens to that (SetMemoryListener).
//
// Thread-safe.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"
#include "services/cache/store/tier/extent_allocator.h"
#include "services/cache/store/tier/host_room.h"
#include "services/cache/store/tier/segment_memory.h"
#include "services/cache/store/tier/tier.h"

namespace cairn::cache {

// The size of the segments of an arena. `wanted`: HostTierOptions::segment_bytes.
uint64_t HostSegmentBytes(uint64_t wanted, uint64_t capacity);

struct HostTierOptions {
  enum class HugePages : uint8_t {
    kOff,
    kTry,      // Where pages of 2 MiB are reserved for all of the arena; else 4 KiB pages.
    kRequire,  // FAILED_PRECONDITION where they are not.
  };

  // The capacity of the arena. Rounded down to pages. At least one page.
  uint64_t capacity_bytes = 0;
  // Bytes of a segment, a multiple of 2 MiB up to 2 GiB. 0: 64 MiB, doubled until the arena has at
  // most 512 segments, or the whole arena where that is smaller. The largest extent is one segment.
  uint64_t segment_bytes = 0;
  HugePages huge_pages = HugePages::kOff;
  // Touches the pages from a background thread, so that no request pays for fresh memory (6 x the
  // cost of a copy).
  bool prefault = true;
  // Refuses an arena that is larger than what the machine or the control group has left.
  bool check_memory = true;
  uint32_t max_owners = 256;
  std::string name = "cairn-arena";  // The name of the memfds, as /proc shows them.
};

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
  // May take an empty segment. Else only segments that it has.
  bool grow = true;
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
  // Bytes that an arena may take beyond its capacity: memory that lost its segment while other
  // processes map it. `segment_bytes` as in the options.
  static uint64_t RetiredLimit(uint64_t capacity_bytes, uint64_t segment_bytes = 0);
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
    uint32_t index = 0;  // The number of the segment.
    uint32_t id = 0;     // The id of its memory: never used again.
    OwnerId owner = kCommon;
    Lending lending = Lending::kSealed;
    uint64_t offset = 0;  // Where the extent begins in the segment.
  };
  struct Shared {
    int fd = -1;  // The caller's.
    uint64_t bytes = 0;
    Lending lending = Lending::kSealed;
  };

  // The owner of this name, made when it is new, with one user more. RESOURCE_EXHAUSTED: there are
  // max_owners, and all have users.
  Result<OwnerId> AddOwner(std::string_view name);
  // One user less. The owner stays until its name's place is needed, or its segments are gone.
  // Aborts on an id that has no users.
  void RemoveOwner(OwnerId owner);
  // kCommon when there is none of this name.
  OwnerId FindOwner(std::string_view name) const;
  // Changes whenever an answer of FindOwner may have changed. Never 0, and 1 until there was an
  // owner. No lock.
  uint32_t owners_version() const { return owners_version_.load(std::memory_order_acquire); }
  // Reserve for somebody. kSealed takes the owner's sealed segments, then an empty one, then the
  // common ones, then the owner's lent ones; kLent takes lent and empty ones only. kCommon takes
  // common segments. An owner that was given back counts as kCommon.
  Result<Extent> ReserveFor(const RoomFor& room, uint32_t length);

  // ---- Shares (host_tier_shares.cc) ----

  // There are owners, and the room's has fewer segments than its share. O(segments).
  bool HasLessThanItsShare(const RoomFor& room) const;
  // Indexes of segments that may be emptied for the room, so that it gets one more: of owners with
  // clearly more than it has, or of none. Least used first.
  std::vector<uint32_t> DrainCandidates(const RoomFor& room) const;
  // Indexes of the segments that ReserveFor takes first. Least used first.
  std::vector<uint32_t> OwnSegments(const RoomFor& room) const;
  // From now on nobody gets room in the segment, until EndDrain. False: it is another one's by now,
  // or another drain is under way.
  bool BeginDrain(uint32_t index, const RoomFor& room);
  // True when it is empty: only the room's owner gets it, until somebody else begins a drain. Else
  // it is used as before.
  bool EndDrain();
  uint64_t UsedBytesIn(uint32_t index) const;
  // The room of the owner's segments, or of the common ones. O(segments), no lock.
  uint64_t RoomBytes(OwnerId owner) const;
  uint32_t SegmentOf(const Extent& extent) const { return SegmentOf(extent.id); }

  // Constant while the extent is reserved. No lock.
  Place PlaceOf(uint64_t extent_id) const;
  // A descriptor of the owner's segment. NOT_FOUND when its memory is no longer `id` or belongs to
  // somebody else.
  Result<Shared> Share(uint32_t index, uint32_t id, OwnerId owner);
  // The owner's segments of now, as places with offset 0.
  std::vector<Place> SegmentsOf(OwnerId owner) const;
  // The bytes of its segments; of kCommon 0. O(segments).
  uint64_t BytesOf(OwnerId owner) const;
  // The segment still has the memory `id`, and it is the owner's.
  bool IsCurrent(uint32_t index, uint32_t id, OwnerId owner) const;

  // Forgets retired memory that nobody maps any more. Call it from time to time.
  void SweepRetired() {
    MutexLock lock(mu_);
    retired_.Sweep();
  }
  // Grows whenever a segment gets other memory.
  uint32_t segment_memories() const { return next_segment_id_.load(std::memory_order_acquire); }

  // ---- For those who tell hardware of the memory ----

  // The segment in which all of the bytes lie. No lock.
  std::optional<uint32_t> SegmentAt(std::span<const std::byte> bytes) const;
  // Its addresses, which never change; what lies there does.
  std::span<std::byte> SegmentMemory(uint32_t index) const {
    return {base_ + segments_[index].offset, segments_[index].bytes};
  }
  // Told of a segment right before it gets other memory, or its memory other pages. It is empty
  // then. Called without locks. Set it while nobody reserves.
  void SetMemoryListener(std::function<void(uint32_t segment)> listener) {
    memory_listener_ = std::move(listener);
  }

  HostTierStats GetHostStats() const;
  size_t segment_count() const { return segments_.size(); }
  // REQUIRES: no owners: their segments may get other memory at any time.
  const ArenaSegment& segment(size_t index) const { return segments_[index]; }
  // Blocks until the background prefault has ended, for benchmarks.
  void WaitForPrefault();

 private:
  // The state of one segment; written under mu_.
  struct SegmentState {
    std::atomic<uint32_t> id{0};
    std::atomic<OwnerId> owner{kCommon};
    std::atomic<Lending> lending{Lending::kSealed};
    bool handed_out = false;  // Since it has this memory.
    bool used = false;        // Somebody got room in it since it has this memory, or was punched.
  };
  struct Owner {
    std::string name;
    uint32_t pools[2] = {};  // By Lending.
    uint32_t users = 0;
    uint64_t idle_since = 0;  // By idle_clock_, while there are no users.
  };
  struct Drain {
    uint32_t index = 0;
    OwnerId owner = kCommon;  // The owner that gets it.
    bool over = false;        // It is empty, and waits for the owner.
  };
  // The treatment that a segment needs before somebody may have it.
  enum class Freshness : uint8_t { kAsItIs, kPunch, kReplace };
  struct Claim {
    uint32_t index = 0;
    Freshness freshness = Freshness::kAsItIs;
    OwnerId owner_before = kCommon;
  };

  HostTier() = default;
  Status MapArena(const HostTierOptions& options, bool huge);
  Status MapSegment(ArenaSegment* segment, bool huge);
  void UnmapArena();
  uint32_t PoolOf(const RoomFor& room) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Where a segment belongs that is neither draining nor changing hands.
  uint32_t HomePool(uint32_t index) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<Extent> TakePages(uint32_t pool, uint32_t pages, uint32_t length)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // An empty segment becomes the room's. False when there is none.
  bool ClaimEmpty(const RoomFor& room) ABSL_LOCKS_EXCLUDED(mu_);
  std::optional<Claim> FindEmpty(const RoomFor& room) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Freshness FreshnessFor(const RoomFor& room, uint32_t index) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Assign(uint32_t index, const RoomFor& room) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Without the lock: pages take time. REQUIRES: the segment is in changing_pool_.
  bool Freshen(const Claim& claim) ABSL_LOCKS_EXCLUDED(mu_);
  bool Replace(uint32_t index) ABSL_LOCKS_EXCLUDED(mu_);
  // Makes place for a name. False: all owners have users.
  bool GiveBackIdleOwner() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GiveBackOwner(OwnerId owner) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint32_t NewPool() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::map<OwnerId, uint32_t> CountSegments() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SortByUse(std::vector<uint32_t>* indexes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  OwnerId OwnerOfIndex(uint32_t index) const {
    return states_[index].owner.load(std::memory_order_relaxed);
  }
  // A division of 64 bits takes longer than the rest of PlaceOf; only odd sizes need one.
  uint32_t SegmentOf(uint64_t extent_id) const {
    return static_cast<uint32_t>(segment_shift_ ? extent_id >> *segment_shift_
                                                : extent_id / segment_bytes_);
  }
  void Prefault();
  // Touches the pages of the segment's new memory from the background.
  void PrefaultAgain(uint32_t index);

  // Constant after Create.
  std::byte* base_ = nullptr;
  uint64_t capacity_bytes_ = 0;
  uint64_t segment_bytes_ = 0;
  std::optional<int> segment_shift_;  // Where that is a power of two.
  uint64_t reserved_address_bytes_ = 0;
  void* reserved_address_ = nullptr;
  bool huge_pages_ = false;
  bool prefault_ = false;
  uint32_t max_owners_ = 0;
  std::string name_;
  std::vector<ArenaSegment> segments_;  // Descriptors change under mu_, once there are owners.
  std::unique_ptr<SegmentState[]> states_;
  std::function<void(uint32_t)> memory_listener_;  // Constant while somebody reserves.

  mutable Mutex mu_;
  std::map<OwnerId, Owner> owners_ ABSL_GUARDED_BY(mu_);  // Without kCommon.
  std::map<std::string, OwnerId, std::less<>> owner_ids_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> free_pools_ ABSL_GUARDED_BY(mu_);
  OwnerId next_owner_ ABSL_GUARDED_BY(mu_) = kCommon + 1;
  uint64_t idle_clock_ ABSL_GUARDED_BY(mu_) = 0;
  // Pools in which nobody gets room: of the segment that is draining; of those that change hands at
  // the moment; of those that were handed out and have no owner any more.
  uint32_t draining_pool_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t changing_pool_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t orphan_pool_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<Drain> drain_ ABSL_GUARDED_BY(mu_);
  RetiredMemories retired_ ABSL_GUARDED_BY(mu_);
  std::atomic<uint32_t> next_segment_id_{1};  // Written under mu_.
  std::atomic<bool> had_owners_{false};
  std::atomic<uint32_t> owners_version_{1};  // Written under mu_.
  std::unique_ptr<ExtentAllocator> allocator_ ABSL_GUARDED_BY(mu_);
  uint64_t asked_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t extents_ ABSL_GUARDED_BY(mu_) = 0;

  std::atomic<uint64_t> read_bytes_{0};
  std::atomic<uint64_t> written_bytes_{0};
  std::atomic<uint64_t> prefaulted_bytes_{0};
  std::atomic<bool> stop_prefault_{false};
  Mutex prefault_mu_;
  CondVar prefault_done_cv_;
  CondVar prefault_wanted_cv_;
  std::deque<uint32_t> prefault_wanted_ ABSL_GUARDED_BY(prefault_mu_);  // Segments.
  bool prefault_done_ ABSL_GUARDED_BY(prefault_mu_) = true;
  std::atomic<bool> prefault_over_{true};
  std::thread prefault_thread_;
};

}  // namespace cairn::cache
