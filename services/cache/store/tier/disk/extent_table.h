#pragma once
// Which extents there are, where each of them lies, and which writes wait for a place. Decides what
// is to be done next, and is told what became of it: no I/O, no threads, no waiting.
//
//   reserved --Enqueue--> waits --NextGroup--> at the device --Landed--> without record --Settle-->
//   written --Release--> its record is to be forgotten
//
// A segment is held (ValueFileMap::Hold) by each read, move and look of the scrubber, and by each
// record that names a place in it and is to be forgotten.

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"
#include "services/cache/store/tier/disk/stored_extent.h"
#include "services/cache/store/tier/disk/value_file_map.h"
#include "services/cache/store/tier/tier.h"

namespace cairn::cache::disk {

// An extent that lives in a segment, for moves and scrubbing.
struct Resident {
  uint64_t id;
  Place place;
  uint32_t length;
  uint64_t hash;
  uint32_t head = 0;  // As of ExtentTable::HeadOf. 0: unknown.
};

struct QueuedWrite {
  Extent extent;
  std::string_view record;
  std::span<const std::byte> source;
  uint64_t hash = 0;
  uint32_t head = 0;
  IoCallback done;
  Place place;  // Once it has one.
};

// On the device; its record is not.
struct PlacedExtent {
  StoredExtent stored;
  IoCallback done;          // The callback of a write.
  bool moved = false;       // Else.
  Place from;               // The place that a move comes from.
  std::string record_copy;  // For a move: stands for stored.record.
};

// Its record is to be deleted. `segment` is held until that is done.
struct ForgottenExtent {
  static constexpr uint32_t kNoSegment = UINT32_MAX;
  uint64_t id;
  uint32_t segment;
};

// One step towards more room.
struct RoomStep {
  enum class What : uint8_t {
    kNothing,
    kDelete,   // The file of `segment`, which is not used again.
    kMake,     // One more file: `segment`.
    kMoveOut,  // The extents that live in `segment`.
    kRefuse,   // The reservations that wait: no file is free, and none can be emptied.
  };
  What what = What::kNothing;
  uint32_t segment = 0;
  bool waiting = false;  // Writes wait for it.
  bool no_file = false;  // A file would help, and may not be made now.
  bool leaving = false;  // For a segment that a smaller capacity has no room for.
};

// Thread-safe.
class ExtentTable {
 public:
  struct Options {
    uint64_t capacity_bytes = 0;
    size_t queue_depth = 8;
    size_t queue_capacity = 1024;
    uint64_t first_id = 0;
  };
  ExtentTable(const Options& options, ValueFileMap map);

  // Tells the first bytes of an extent (Tier::kHeadBytes) from those of another one, by accident
  // but in one of 2^24 cases. Never 0.
  static uint32_t HeadOf(std::span<const std::byte> bytes);

  uint64_t segment_bytes() const { return segment_bytes_; }  // The size of new segments.

  // Reserves for the tier's owner.
  Result<Extent> Reserve(uint32_t length);
  // nullopt: it has no record. `wants_room` as of Group.
  std::optional<ForgottenExtent> Release(const Extent& extent, bool* wants_room);

  // Writes. Takes `write` if it returns OK.
  Status Enqueue(QueuedWrite* write);
  struct Group {
    std::vector<QueuedWrite> writes;  // Behind each other in one segment. Empty: none may start.
    bool wants_room = false;          // There is something to do for the thread that makes room.
  };
  // The group that may go to the device now.
  Group NextGroup(TimePoint now);
  // The group is on the device.
  std::vector<PlacedExtent> Landed(std::vector<QueuedWrite> group);
  // The group could not be written: it loses its places. Then its callers may be told.
  void GiveUp(const std::vector<QueuedWrite>& group);
  // All that waits for a place stays reserved. Its callers are to be told.
  std::vector<QueuedWrite> TakeWaiting();
  bool waiting() const;

  // Records. Takes those out that were released since they were moved.
  std::vector<PlacedExtent> StillWanted(std::vector<PlacedExtent> placed);
  // A batch of records was written, or was not. Returns what is to be forgotten once more: it was
  // released meanwhile.
  std::vector<ForgottenExtent> Settle(std::span<const PlacedExtent> placed,
                                      std::span<const ForgottenExtent> forgotten, bool written);

  // Reads, and looks of the scrubber. Hold the segment until EndRead.
  Result<Resident> BeginRead(const Extent& extent);
  // True: somebody waits for room, who may get it now. `head`: of the extent, if all of it was read
  // and is sound; else 0.
  bool EndRead(const Resident& resident, uint32_t head);
  // The callback of a read has run: another one may begin in its place.
  void ReadReturned();
  // The next one after `cursor` (segment, index in it). nullopt: none; it begins again.
  std::optional<Resident> NextToScrub(std::pair<uint32_t, uint32_t>* cursor);

  // Room. `may_make`: a file may be made. `leaving`: those segments are looked at.
  RoomStep NextRoomStep(bool may_make, bool leaving);
  void FileMade(uint32_t segment);
  // Nothing came of a step, and writes wait: they can only be helped by evicting. False: they need
  // not be refused. `records_fail`: room that comes when records are gone does not come now.
  bool Starve(const RoomStep& step, bool records_fail);
  // Holds the segment until EndMove.
  std::vector<Resident> BeginMove(uint32_t segment);
  // A place to move it to. nullopt: there is no room. An error: it was released.
  Result<std::optional<PlacedExtent>> PlaceMoved(const Resident& resident, std::string record,
                                                 TimePoint now);
  void MoveFailed(const PlacedExtent& placed);
  // True: nothing lives in it any more.
  bool EndMove(uint32_t segment);
  // The extents that the owner should release next, so that a segment becomes free. Without
  // records.
  VictimGroup NextVictims(TimePoint now);

  // Recovery. True until FinishRecovery.
  bool Untouched() const;
  void AddFile(uint32_t segment, uint64_t bytes);
  bool FilesAreTooLarge() const;
  enum class Restored : uint8_t { kKept, kTrimmed, kBroken };
  // kTrimmed: `keep` was false, or there is no room; it is to be forgotten, and its segment is
  // held. kBroken: its segment is gone.
  Restored Restore(const StoredExtent& found, bool keep);
  void FinishRecovery(TimePoint now);

  // The counts of extents.
  struct Stats {
    uint64_t used_bytes = 0;
    uint64_t extents = 0;
    uint64_t written_bytes = 0;
    uint64_t moved_bytes = 0;
    uint64_t segments = 0;
    uint64_t free_segments = 0;
  };
  Stats GetStats() const;
  uint64_t moved_bytes() const;
  uint64_t MemoryBytes() const;

 private:
  enum class State : uint8_t { kReserved, kWriting, kWritten };
  struct Entry {
    Place place;  // The place of a kWritten extent.
    uint32_t length = 0;
    State state : 8 = State::kReserved;
    // As this process wrote the first bytes, or read them with all that follows. 0: it did neither.
    uint32_t head : 24 = 0;
    uint64_t hash = 0;
  };
  static_assert(sizeof(Entry) == 24);
  static uint64_t Rounded(uint64_t bytes) { return PagesFor(bytes) * kPageBytes; }

  bool FullGroupWaits() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool LivesAt(uint64_t id, uint32_t segment) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Resident ResidentOf(uint64_t id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<Resident> ResidentsOf(uint32_t segment) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Bytes were written, or moved (then negative).
  void EarnCredit(double bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  const uint64_t segment_bytes_;

  mutable Mutex mu_;
  ValueFileMap map_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, Entry> entries_ ABSL_GUARDED_BY(mu_);
  // The bytes of reserved and written extents, whole pages.
  uint64_t used_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t next_id_ ABSL_GUARDED_BY(mu_);
  bool recovered_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<QueuedWrite> queue_ ABSL_GUARDED_BY(mu_);  // Have no place yet.
  size_t groups_ ABSL_GUARDED_BY(mu_) = 0;              // At the device.
  size_t reads_ ABSL_GUARDED_BY(mu_) = 0;  // Callbacks included, without those of the scrubber.
  // No segment can be freed by moving: only by evicting.
  bool starved_ ABSL_GUARDED_BY(mu_) = false;
  // How many bytes may be moved because the owner keeps them. Writes increase it, moves decrease
  // it, and it is at most half a segment.
  double keep_credit_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t written_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t moved_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace cairn::cache::disk
