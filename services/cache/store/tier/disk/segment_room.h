#pragma once
// Makes room for writes, at the same time as they go on: makes segment files, deletes those that
// are not used again, and moves extents that live in the emptiest ones to others.

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"
#include "services/cache/store/tier/disk/damage_reports.h"
#include "services/cache/store/tier/disk/extent_table.h"
#include "services/cache/store/tier/disk/loop.h"
#include "services/cache/store/tier/disk/record_writer.h"
#include "services/cache/store/tier/disk/segment_io.h"
#include "services/cache/store/tier/disk/sync_rounds.h"

namespace cairn::cache::disk {

// Thread-safe.
class SegmentRoom {
 public:
  struct Parts {
    ExtentTable& table;
    RecordStore& store;
    SegmentFiles& files;
    RecordWriter& records;
    SyncRounds& syncs;
    DamageReports& damage;
    SegmentIo io;
    uint64_t min_free_bytes = 0;
    // After each step: starts writes that wait. True: it did, and there may be more to do for them.
    std::function<bool()> start_writes = {};
    // Nothing can be done for the writes that wait.
    std::function<void(const Status&)> refuse = {};
  };
  SegmentRoom(Parts parts, const StartLoop& start);
  ~SegmentRoom() { Stop(); }

  // Something changed, and there may be something to do.
  void Want();
  // Ends the step under way. Idempotent.
  void Stop();
  uint64_t failures() const { return failures_; }

  // The key under which the size of a segment is in the records.
  static std::string SizeKey(uint32_t segment);

 private:
  void Run();
  // Takes one step. False: there is nothing to do, or nothing can be done.
  bool Step();
  bool Take(const RoomStep& step);
  bool MayMake() const { return parts_.io.clock.Now() >= make_again_; }
  bool MakeFile(uint32_t segment);
  Status TryMakeFile(uint32_t segment);
  bool MoveOut(uint32_t segment);
  // Lets go of the segments that were moved out. True: one of them is empty. If that fails,
  // moves_failure_ says why, and it is tried again.
  bool EndMoves();
  // When there may be something to do even if nothing changes.
  TimePoint DueAt() const;
  // Why segments in which nothing lives do not become free now. OK: they do.
  Status WhyNoneComesFree() const;
  bool MoveSome(std::span<const Resident> residents);
  // Until it returns OK, what was there may come back after a power loss.
  std::vector<Status> WriteMoved(std::span<const PlacedExtent> moved,
                                 std::span<const PageBuffer* const> buffers);

  const Parts parts_;
  std::atomic<uint64_t> failures_{0};
  // Used by the loop.
  TimePoint make_again_{};   // A file could not be made: not before.
  bool wants_file_ = false;  // Then.
  Status make_failure_;
  std::vector<uint32_t> moved_out_;  // Held until a power loss cannot undo the moves.
  Status moves_failure_;
  TimePoint end_again_{};  // After a failure: not before.
  Mutex mu_;
  CondVar changed_;
  bool wanted_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<Loop> loop_;
};

}  // namespace cairn::cache::disk
