#pragma once
// Which extent lies where in the value files, which files are empty, and which one is emptied next.
// In this folder `segment` is the number of a value file, as in its name (values/000017.seg).
// Bookkeeping only: no I/O, no threads.
//
//   absent --Add--> free --first Allocate--> open --full--> sealed --nothing left--> free
//
// A segment is filled from its beginning to its end, once, and becomes free as a whole. So the
// device sees long runs of writes and whole runs given up, which is what flash erases without
// copying. Two segments are open at a time: one for new extents and one for moved ones, because
// extents that were worth moving live longer than new ones.
//
// New segments have one size. After the capacity changed, the directory has segments of other sizes
// as well: they are read and emptied as all others, but are not used again when they are free
// (Surplus names them). Segments that a smaller capacity has no room for are *leaving*: they do not
// count, what lives in them is moved out, and then they are deleted.
//
// A *hold* keeps a segment from being used again: a read under way, a write under way, or a removal
// whose record is not durable yet (a crash would bring back the record, without its bytes).
//
// Not thread-safe.

#include <cstdint>
#include <optional>
#include <vector>

#include "cairn/common/clock.h"

namespace cairn::cache::disk {

inline constexpr uint32_t kPageBytes = 4096;
inline uint64_t PagesFor(uint64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes; }

struct Place {
  uint32_t segment = 0;
  uint32_t page = 0;  // From the segment's beginning.
  bool operator==(const Place&) const = default;
};

class ValueFileMap {
 public:
  enum class Stream : uint8_t { kFresh = 0, kMoved = 1 };
  enum class State : uint8_t { kAbsent, kFree, kOpen, kSealed };
  struct ValueFile {
    State state = State::kAbsent;
    bool draining = false;    // Named as victim: extents that still live there must be moved.
    bool leaving = false;     // There is no room for it: extents that live there must be moved.
    uint32_t pages = 0;       // Its size.
    uint32_t fill_pages = 0;  // Bytes handed out, from the beginning.
    uint32_t live_pages = 0;
    uint32_t holds = 0;
    uint64_t order = 0;  // When it was opened, as a number that grows.
    TimePoint sealed_at{};
    // All extents that were placed here since it was free, by place. Some are gone.
    std::vector<uint64_t> ids;
  };

  // `segment_bytes`: of new files. `max_segments`: how many files of that size there may be, or as
  // many bytes in files of other sizes. More may already exist (Add).
  ValueFileMap(uint64_t segment_bytes, uint32_t max_segments);

  // A file was made, or found: it is free.
  void Add(uint32_t segment) { Add(segment, segment_bytes()); }
  void Add(uint32_t segment, uint64_t bytes);
  // Takes a free segment out, to delete its file.
  void Remove(uint32_t segment);
  // The number for a new file. nullopt: no more files may be made.
  std::optional<uint32_t> NextAbsent() const;
  // A free segment that will not be used: of another size than new ones, or there are more segments
  // than may be.
  std::optional<uint32_t> Surplus() const;
  // A leaving segment in which something lives.
  std::optional<uint32_t> NextLeaving() const;

  // Takes room for `bytes`, held until Settle. `last`: may take the last free segment. nullopt: a
  // segment must be freed first.
  std::optional<Place> Allocate(Stream stream, uint64_t id, uint64_t bytes, bool last,
                                TimePoint now);
  // Allocate would continue the open segment.
  bool Continues(Stream stream, uint64_t bytes) const;
  // Adds an extent that was found after a restart. False: it does not fit into its segment.
  bool Restore(uint64_t id, const Place& place, uint64_t bytes, uint64_t order);
  // After the last Restore: segments that hold something are sealed, but for the newest, where
  // writing goes on. If there are more than may be, the oldest leave. Until then nothing that Kill
  // and Unhold empty becomes free.
  void FinishRestore(TimePoint now);
  // The files that are there are larger than all files may be.
  bool TooLarge() const { return present_pages_ > max_pages_; }

  // The write has ended. `lives`: the bytes count as living until Kill.
  void Settle(const Place& place, uint64_t bytes, bool lives);
  // The extent is dead, but the deletion of its record is not durable yet: holds the segment until
  // Unhold.
  void Kill(const Place& place, uint64_t bytes);
  void Hold(uint32_t segment) { ++segments_[segment].holds; }
  void Unhold(uint32_t segment);

  // Returns the sealed segment that was written longest ago and was not named before. It is then
  // draining. nullopt: there is none.
  std::optional<uint32_t> TakeVictim();
  // The segment whose remaining extents are cheapest to move: first draining ones, then the
  // emptiest. nullopt: a move would gain nothing.
  std::optional<uint32_t> Cheapest() const;

  const ValueFile& segment(uint32_t index) const { return segments_[index]; }
  size_t size() const { return segments_.size(); }
  // The size of new ones.
  uint64_t segment_bytes() const { return uint64_t{segment_pages_} * kPageBytes; }
  uint32_t present() const { return present_; }
  uint32_t free() const { return free_; }
  // Sealed segments in which nothing lives: free as soon as their holds end.
  uint32_t nearly_free() const;
  uint64_t draining_bytes() const;
  // True if `live` bytes still leave a segment for each stream and one as the target of moves, as
  // far as the ends of segments that were too short for an extent are known.
  bool Fits(uint64_t live) const;
  // The open segment of `stream` has less than a half left.
  bool NeedsSpare(Stream stream) const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  void Reuse(uint32_t index);
  void ChooseLeaving();
  // A free segment is used again.
  bool Ordinary(const ValueFile& s) const { return s.pages == segment_pages_ && !s.leaving; }
  static uint64_t TailOf(const ValueFile& s) { return s.pages - s.fill_pages; }

  const uint32_t segment_pages_;
  const uint64_t max_pages_;
  std::vector<ValueFile> segments_;
  uint32_t open_[2] = {kNone, kNone};
  uint32_t present_ = 0;
  uint32_t free_ = 0;           // Ordinary ones.
  uint64_t present_pages_ = 0;  // The pages of segments that do not leave.
  bool restoring_ = false;      // Restore was called, FinishRestore not yet.
  uint64_t tail_pages_ = 0;     // The pages of sealed segments that were never filled.
  uint64_t next_order_ = 1;
};

}  // namespace cairn::cache::disk
