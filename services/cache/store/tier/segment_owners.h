#pragma once
// Whose segments of an arena are whose, and which pages of them are in use. It makes no system
// calls: SegmentMemories says what the memory allows. Thread-safe.
//
// At first all segments are common: extents of everybody, never shown to anybody outside of this
// process. A tenant that reads in place from another process becomes an owner (AddOwner), and from
// then on gets segments of its own, taken from the empty ones on demand: sealed ones to read, lent
// ones to write too.
//
// A segment is
//   common      anybody gets room in it, and it was never handed out;
//   an owner's  sealed or lent, and handed out on demand (Share);
//   changing    from BeginClaim to EndClaim, while its memory is made fresh;
//   draining    from BeginDrain until it turned out not to be empty, or its new owner claims it;
//   an orphan   handed out before its owner was given back.
// An empty one that is not changing may be claimed.
//
// Rules that keep owners apart:
// - A segment is handed out (Share) only while all its extents are its owner's.
// - A segment changes hands only when it is empty. Its memory is fresh then: an owner's memory has
//   never held a byte of anybody else, whether that was shown or not, and a mapping that somebody
//   kept shows nothing of the next owner. Only common segments, which nobody sees, take over memory
//   that was not handed out. Memory that was never handed out is punched and stays; other memory is
//   replaced, and the id of the segment changes with it.
// - A segment whose memory cannot be replaced now stays with its owner until it can.
// - Nobody gets room in a segment that is draining, changes hands, or is an orphan.
//
// Owners are counted by name and given back: one without users (RemoveOwner) makes place for new
// names (owner_table.h), and its segments become common, or are emptied first if they were handed
// out.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"
#include "services/cache/store/tier/extent_allocator.h"
#include "services/cache/store/tier/owner_table.h"
#include "services/cache/store/tier/segment_grid.h"
#include "services/cache/store/tier/tier.h"

namespace cairn::cache {

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

struct SegmentPlace {
  uint32_t index = 0;  // The segment's.
  uint32_t id = 0;     // The memory's: never used again.
  OwnerId owner = kCommon;
  Lending lending = Lending::kSealed;
  uint64_t offset = 0;  // The extent's, in the segment.
};

// Says what the memory of segments allows. Called with the lock of SegmentOwners held.
class SegmentMemories {
 public:
  // The segment has memory.
  virtual bool IsThere(uint32_t index) const = 0;
  // The segment, which is empty, can get other memory now. `lent`: others could write it.
  virtual bool CanReplace(uint32_t index, bool lent) = 0;
  // The memory of the segment, which is not lent, cannot be replaced, as far as one look tells.
  virtual bool IsStuck(uint32_t index) const = 0;
  // Before the memory is first handed out: from now on others can do with it what `lending` says.
  virtual Status Seal(const SegmentPlace& place) = 0;
  // A descriptor of sealed memory for another process.
  virtual Result<int> Open(uint32_t index) = 0;

 protected:
  ~SegmentMemories() = default;
};

class SegmentOwners {
 public:
  // The step that a segment needs before somebody may have it.
  enum class Freshness : uint8_t { kAsItIs, kPunch, kReplace };
  // A segment that changes hands.
  struct Claim {
    uint32_t index = 0;
    Freshness freshness = Freshness::kAsItIs;
    OwnerId owner_before = kCommon;
    bool lent_before = false;
  };
  struct Taken {
    std::optional<Extent> extent = std::nullopt;
    bool may_claim = false;  // Without an extent: an empty segment might help.
  };

  SegmentOwners(const SegmentGrid& grid, uint32_t max_owners, SegmentMemories* memories);

  // ---- Owners ----

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
  uint32_t version() const { return version_.load(std::memory_order_acquire); }
  size_t owners() const;

  // ---- Room ----

  // Room in the segments of its own. An owner that was given back becomes kCommon.
  Taken Take(RoomFor* room, uint32_t length);
  // Where a sealed room of an owner falls back to: common segments, then its lent ones.
  std::optional<Extent> TakeElsewhere(const RoomFor& room, uint32_t length);
  // Aborts on an extent that was not taken here, or was released before.
  void Release(const Extent& extent);
  // An empty segment becomes the room's. Unless it is kAsItIs, nobody gets room in it until its
  // memory is fresh and EndClaim is called. nullopt: there is none.
  std::optional<Claim> BeginClaim(const RoomFor& room);
  // `fresh`: else the segment goes back to where it was.
  void EndClaim(const Claim& claim, const RoomFor& room, bool fresh);

  // ---- Shares ----

  // There are owners, and the room's has fewer segments than its share. O(segments).
  bool HasLessThanItsShare(const RoomFor& room) const;
  // Indexes of segments that may be emptied for the room, so that it gets one more: of owners with
  // clearly more than it has, or of none. Least used first.
  std::vector<uint32_t> DrainCandidates(const RoomFor& room) const;
  // Indexes of the segments that Take takes. Least used first.
  std::vector<uint32_t> OwnSegments(const RoomFor& room) const;
  // From now on nobody gets room in the segment, until EndDrain. False: it is another one's by now,
  // or another drain is under way.
  bool BeginDrain(uint32_t index, const RoomFor& room);
  // True when it is empty: only the room's owner gets it, until somebody else begins a drain. Else
  // it is used as before.
  bool EndDrain();

  // ---- Places ----

  // Constant while the extent is reserved. No lock.
  SegmentPlace PlaceOf(uint64_t extent_id) const;
  // A descriptor of the owner's segment. NOT_FOUND when its memory is no longer `id` or belongs to
  // somebody else.
  struct Shared {
    int fd = -1;
    Lending lending = Lending::kSealed;
  };
  Result<Shared> Share(uint32_t index, uint32_t id, OwnerId owner);
  // The owner's segments of now, with offset 0.
  std::vector<SegmentPlace> SegmentsOf(OwnerId owner) const;
  // The segment still has the memory `id`, and it is the owner's.
  bool IsCurrent(uint32_t index, uint32_t id, OwnerId owner) const;
  // The bytes of the owner's segments, or of the common ones. O(segments), no lock.
  uint64_t BytesOf(OwnerId owner) const;
  uint64_t UsedBytesIn(uint32_t index) const;
  // Grows whenever a segment gets other memory.
  uint32_t memories() const { return next_id_.load(std::memory_order_acquire); }

  struct Stats {
    uint64_t used_bytes = 0;   // Whole pages.
    uint64_t asked_bytes = 0;  // Lengths as asked for.
    uint64_t extents = 0;
    uint64_t empty_segments = 0;
  };
  Stats GetStats() const;
  // The largest extent that Take can give now. O(pools).
  uint64_t largest_free_bytes() const;
  // Aborts unless every segment is in the pool where it belongs. For tests.
  void CheckConsistency() const;

 private:
  using Pool = uint32_t;
  // One segment's; written under mu_.
  struct State {
    std::atomic<uint32_t> id{0};
    std::atomic<OwnerId> owner{kCommon};
    std::atomic<Lending> lending{Lending::kSealed};
    bool handed_out = false;  // Since it has this memory.
    bool used = false;        // Somebody got room in it since it has this memory, or was punched.
  };
  struct Drain {
    uint32_t index = 0;
    OwnerId owner = kCommon;  // The one that gets it.
    bool over = false;        // It is empty, and waits for the owner.
  };
  using ByLending = std::array<Pool, 2>;

  Pool PoolOf(const RoomFor& room) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Where a segment belongs that is neither draining nor changing hands.
  Pool HomePool(uint32_t index) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Pool NewPool() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<Extent> TakePages(Pool pool, uint32_t length) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<Claim> FindEmpty(const RoomFor& room) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Freshness FreshnessFor(const RoomFor& room, uint32_t index) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Assign(uint32_t index, const RoomFor& room) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GiveBackOwner(OwnerId owner) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::map<OwnerId, uint32_t> CountSegments() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SortByUse(std::vector<uint32_t>* indexes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  OwnerId OwnerOfIndex(uint32_t index) const {
    return states_[index].owner.load(std::memory_order_relaxed);
  }

  const SegmentGrid grid_;
  SegmentMemories& memories_;
  const std::unique_ptr<State[]> states_;
  mutable Mutex mu_;
  ExtentAllocator allocator_ ABSL_GUARDED_BY(mu_);
  // Pools in which nobody gets room: of the segment that is draining; of those that change hands at
  // the moment; of those that were handed out and have no owner any more.
  const Pool draining_;
  const Pool changing_;
  const Pool orphan_;
  OwnerTable owners_ ABSL_GUARDED_BY(mu_);
  std::map<OwnerId, ByLending> pools_ ABSL_GUARDED_BY(mu_);
  std::vector<Pool> free_pools_ ABSL_GUARDED_BY(mu_);
  std::optional<Drain> drain_ ABSL_GUARDED_BY(mu_);
  uint64_t asked_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t extents_ ABSL_GUARDED_BY(mu_) = 0;
  // Written under mu_.
  std::atomic<uint32_t> next_id_{1};
  std::atomic<bool> had_owners_{false};
  std::atomic<uint32_t> version_{1};
};

}  // namespace cairn::cache
