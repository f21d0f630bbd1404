#pragma once
// The disk tier's bookkeeping and threads over segment files, backends and the database. Private to
// this folder.
//
//   Write: queue -> [PumpWrites] place, group neighbours -> backend
//          -> [records thread] record -> callback
//   Read:  place -> backend -> hash -> callback
//   Release: forgotten by the records thread; then its segment may be used again
//   Flush: records thread has caught up -> [sync thread] value files, then the database's log
//
// Threads: those of the backends (one that writes, one or more that read), the records thread
// (writes one batch at a time to the database, with everything that came during the last batch),
// the room thread (makes segment files, and moves living extents out of the emptiest ones), the
// sync thread (makes durable what Flush waits for), the meta thread (named values, so that a device
// that hangs holds up no caller) and, if configured, the scrubber. mu_ is never held during I/O or
// a callback.
//
// impl.cc: opening, bookkeeping. impl_recover.cc: recovery. impl_io.cc: writes, reads, records.
// impl_sync.cc: flushes and named values. impl_room.cc: segments, moves, victims, scrubbing.

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "common/concurrency/mutex.h"
#include "services/cache/store/tier/disk/directory.h"
#include "services/cache/store/tier/disk/disk_tier.h"
#include "services/cache/store/tier/disk/full_io.h"
#include "services/cache/store/tier/disk/io_backend.h"
#include "services/cache/store/tier/disk/meta_store.h"
#include "services/cache/store/tier/disk/value_file_map.h"
#include "services/cache/store/tier/disk/value_files.h"

namespace cairn::cache {

class DiskTier::Impl {
 public:
  static Result<std::unique_ptr<Impl>> Open(const DiskTierOptions& options);
  ~Impl();

  Result<Extent> Reserve(uint32_t length);
  void Release(const Extent& extent);
  void Write(const Extent& extent, std::string_view record, std::span<const std::byte> source,
             IoCallback done);
  void Read(const Extent& extent, std::span<std::byte> destination, IoCallback done);
  void ReadRange(const Extent& extent, uint64_t offset, std::span<std::byte> destination,
                 IoCallback done);
  Status Recover(const RecoverVisitor& visitor);
  Status Flush(Duration limit, const std::function<bool()>& cancelled);
  Result<std::string> RecordOf(const Extent& extent) { return store_->RecordOf(extent.id); }
  VictimGroup NextVictims();
  void SetDamageListener(DamageListener listener);
  Status PutMeta(std::string_view name, std::string_view value);
  Status DeleteMeta(std::string_view name);
  Status ListMeta(const std::function<void(std::string_view, std::string_view)>& visitor);

  uint32_t max_extent_bytes() const;
  TierStats GetStats() const;
  DiskTierStats GetDiskStats() const;
  uint64_t memory_bytes() const;
  uint64_t MapBytes() const;

  const DiskTierOptions options;
  disk::Directory directory;
  std::string io_mode;  // Constant after Open.

 private:
  enum class State : uint8_t { kReserved, kWriting, kWritten };
  struct Entry {
    disk::Place place;  // Of kWritten.
    uint32_t length = 0;
    State state : 8 = State::kReserved;
    // Of the first bytes (Tier::kHeadBytes), as this process wrote them, or read them with all that
    // follows. 0: it did neither.
    uint32_t head : 24 = 0;
    uint64_t hash = 0;
  };
  static_assert(sizeof(Entry) == 24);
  // What a read needs to know of an extent.
  struct Found {
    disk::Place place;
    uint32_t head = 0;
    uint64_t hash = 0;
  };
  struct QueuedWrite {
    Extent extent;
    std::string_view record;
    std::span<const std::byte> source;
    uint64_t hash = 0;
    IoCallback done;
    disk::Place place;
  };
  // On the device; its record is not.
  struct Placed {
    disk::StoredExtent stored;
    IoCallback done;          // Of a write.
    bool moved = false;       // Else.
    disk::Place from;         // Of a move.
    std::string record_copy;  // Of a move: stands for stored.record.
  };
  struct Forgotten {
    uint64_t id;
    uint32_t segment;  // Held until the record is gone; kNoSegment: none.
  };
  static constexpr uint32_t kNoSegment = UINT32_MAX;
  // What lives in a segment, for moves and scrubbing.
  struct Resident {
    uint64_t id;
    disk::Place place;
    uint32_t length;
    uint64_t hash;
  };

  Impl(const DiskTierOptions& chosen, disk::Directory opened, disk::ValueFileMap map)
      : options(chosen),
        directory(std::move(opened)),
        segment_bytes_(map.segment_bytes()),
        map_(std::move(map)) {}

  static constexpr std::string_view kMetaPrefix = "m/";
  static std::string MetaKey(std::string_view name) {
    return std::string(kMetaPrefix) + std::string(name);
  }
  static uint64_t Rounded(uint64_t bytes) { return disk::PagesFor(bytes) * disk::kPageBytes; }
  // Names the size of a segment in the database.
  static std::string SizeKey(uint32_t segment);

  // impl.cc
  // Says what to do about damage; other errors stay as they are.
  Status Explain(const Status& status) const;
  Status OpenStore();
  Status OpenBackends();
  Status OpenFiles();
  Result<uint64_t> NextEpoch();
  void StartThreads();

  // impl_recover.cc
  // What a capacity that is too small for what is there leaves room for: the newest.
  struct Trim {
    uint64_t oldest_order = 0;  // Segments of a smaller order go.
    uint32_t first_page = 0;    // Of the oldest that stays: what lies before it goes.
  };
  Result<std::optional<Trim>> ChooseTrim();
  bool Keeps(const disk::StoredExtent& found, const std::optional<Trim>& trim)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Restore(const disk::StoredExtent& found, const std::optional<Trim>& trim,
               const RecoverVisitor& visitor);

  // impl_sync.cc
  void SyncLoop();
  Status SyncSegments(std::span<const uint32_t> segments);
  void MetaLoop();
  // Runs it on the meta thread and waits, but not forever.
  Status RunMeta(std::function<Status()> operation);

  // impl_io.cc
  void PumpWrites();
  bool FullGroupWaits() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnWritten(std::vector<QueuedWrite> group, const Status& status);
  // A group that failed: its places are given up, and then its callers are told.
  void GiveUpPlaces(const std::vector<QueuedWrite>& group);
  void TellFailed(const std::vector<QueuedWrite>& group, const Status& status);
  // Counts a read of an extent that was written, and holds its segment until EndRead.
  Result<Found> BeginRead(const Extent& extent);
  // Tells the caller. `head`: of the bytes, if all of them are sound.
  void EndRead(const Extent& extent, uint32_t segment, uint64_t bytes, uint32_t head, Status status,
               const IoCallback& done);
  disk::IoBackend* reader(uint64_t id) { return readers_[id % readers_.size()].get(); }
  uint64_t OffsetOf(const disk::Place& place) const {
    return uint64_t{place.page} * disk::kPageBytes;
  }
  // Bytes were written, or moved (then negative).
  void EarnCredit(double bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RecordsLoop();
  Status ApplyRecords(std::span<const Forgotten> forgotten, std::span<const Placed> placed);
  void SettleRecords(const std::vector<Placed>& placed, const std::vector<Forgotten>& forgotten,
                     const Status& status);

  // impl_room.cc
  void RoomLoop();
  // Takes one step towards more room. False: there is nothing to do, or nothing can be done.
  bool MakeRoom();
  bool DeleteSurplus();
  bool EmptyLeaving();
  bool MakeSegment();
  Status MakeFile(uint32_t segment);
  bool MoveOut(uint32_t segment);
  bool MoveSome(std::span<const Resident> residents);
  // Writes and syncs each where it is placed, from the buffer of its number. Blocks.
  std::vector<Status> WriteMoved(std::span<const Placed> moved,
                                 std::span<const disk::PageBuffer> buffers,
                                 std::span<const size_t> buffer_of);
  void RefuseWaiting(const Status& status);
  void WantRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<Resident> ResidentsOf(uint32_t segment) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Reads and waits. DATA_LOSS: the hash is wrong.
  Status ReadResident(const Resident& resident, std::span<std::byte> bytes);
  void ReportDamage(const Resident& resident, const Status& status);
  void ScrubLoop();
  // Verifies one extent after `cursor` (segment, index in it). Returns its size in bytes.
  uint64_t ScrubOne(std::pair<uint32_t, uint32_t>* cursor);

  // Constant after Open.
  const uint64_t segment_bytes_;  // Of new segments.
  std::unique_ptr<disk::MetaStore> store_;
  disk::ValueFiles files_;
  std::unique_ptr<disk::IoBackend> writer_;
  std::vector<std::unique_ptr<disk::IoBackend>> readers_;

  mutable Mutex mu_;
  disk::ValueFileMap map_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, Entry> entries_ ABSL_GUARDED_BY(mu_);
  uint64_t used_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // Of reserved and written extents, whole pages.
  uint64_t next_id_ ABSL_GUARDED_BY(mu_) = 0;
  bool recovered_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<QueuedWrite> queue_ ABSL_GUARDED_BY(mu_);  // Have no place yet.
  size_t writes_ ABSL_GUARDED_BY(mu_) = 0;              // Requests at the backend.
  size_t reads_ ABSL_GUARDED_BY(mu_) = 0;               // Under way, their callbacks included.
  size_t unsettled_ ABSL_GUARDED_BY(mu_) = 0;           // Extents there, or without their record.
  std::vector<Placed> placed_ ABSL_GUARDED_BY(mu_);
  std::vector<Forgotten> forgotten_ ABSL_GUARDED_BY(mu_);
  // Numbers of changes for the records thread, and those done; for Flush.
  uint64_t changes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t changes_done_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t failed_batches_ ABSL_GUARDED_BY(mu_) = 0;
  Status last_failure_ ABSL_GUARDED_BY(mu_);
  uint64_t waiting_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t written_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // How many bytes may be moved because the owner keeps them. Writes increase it, moves decrease
  // it, and it is at most half a segment.
  double keep_credit_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t moved_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool room_wanted_ ABSL_GUARDED_BY(mu_) = false;  // Something changed for the room thread.
  // No segment can be freed by moving: only by evicting.
  bool starved_ ABSL_GUARDED_BY(mu_) = false;
  TimePoint make_again_ ABSL_GUARDED_BY(mu_){};  // A file could not be made: not before.
  Status make_failure_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<uint32_t> unsynced_ ABSL_GUARDED_BY(mu_);  // Segments written since a sync.
  // Rounds of the sync thread: wanted, done, and the last one that failed.
  uint64_t syncs_wanted_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t syncs_done_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t sync_failed_ ABSL_GUARDED_BY(mu_) = 0;
  Status sync_failure_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;  // The threads end.
  CondVar sync_cv_;
  CondVar records_cv_;
  CondVar settled_cv_;  // After each batch, and each end of a request.
  CondVar room_cv_;
  CondVar scrub_cv_;

  Mutex listener_mu_;  // Held while the listener runs. Taken before mu_.
  DamageListener listener_ ABSL_GUARDED_BY(listener_mu_);

  struct MetaOperation;
  Mutex meta_mu_;  // Not held with mu_.
  CondVar meta_cv_;
  std::deque<std::shared_ptr<MetaOperation>> meta_queue_ ABSL_GUARDED_BY(meta_mu_);
  bool meta_stopping_ ABSL_GUARDED_BY(meta_mu_) = false;

  std::atomic<uint64_t> read_bytes_{0};
  std::atomic<uint64_t> io_errors_{0};
  std::atomic<uint64_t> corrupt_reads_{0};
  std::atomic<uint64_t> corrupt_records_{0};
  std::atomic<uint64_t> trimmed_extents_{0};
  std::atomic<uint64_t> scrubbed_bytes_{0};
  std::atomic<uint64_t> scrub_failures_{0};

  std::thread records_thread_;
  std::thread room_thread_;
  std::thread sync_thread_;
  std::thread meta_thread_;
  std::thread scrub_thread_;
};

}  // namespace cairn::cache
