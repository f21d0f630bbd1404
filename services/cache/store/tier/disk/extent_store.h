#pragma once
// The disk tier over a device, files, records, a clock and loops that are given to it: what a node
// runs on threads, and a simulation in one.
//
//   Write: ExtentTable (queue, place, group) -> device -> RecordWriter -> callback
//   Read:  ExtentTable (place) -> device -> hash -> callback
//   Release: forgotten by the RecordWriter; then its segment may be used again
//   Flush: RecordWriter has caught up -> SyncRounds: segments, then records
//   Room:  SegmentRoom makes files, and moves living extents out of the emptiest ones
//
// No lock is held during I/O or a callback.

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "common/concurrency/in_flight.h"
#include "services/cache/store/tier/disk/damage_reports.h"
#include "services/cache/store/tier/disk/extent_table.h"
#include "services/cache/store/tier/disk/io_backend.h"
#include "services/cache/store/tier/disk/io_time.h"
#include "services/cache/store/tier/disk/loop.h"
#include "services/cache/store/tier/disk/named_values.h"
#include "services/cache/store/tier/disk/record_writer.h"
#include "services/cache/store/tier/disk/scrubber.h"
#include "services/cache/store/tier/disk/segment_room.h"
#include "services/cache/store/tier/disk/sync_rounds.h"
#include "services/cache/store/tier/tier.h"

namespace cairn::cache::disk {

struct ExtentStoreOptions {
  uint64_t capacity_bytes = 0;
  uint32_t max_extent_bytes = 64u << 20;
  size_t queue_depth = 8;
  size_t queue_capacity = 1024;
  uint64_t min_free_bytes = 0;
  uint64_t scrub_bytes_per_second = 0;
  Duration meta_patience = std::chrono::seconds(10);
  // The first id of new extents: no earlier process used it, or a larger one.
  uint64_t first_id = 0;
};

// Thread-safe. Calls are as those of Tier and PersistentTier, whose comments say what they promise.
class ExtentStore {
 public:
  struct Parts {
    RecordStore& store;
    SegmentFiles& files;
    const IoLanes& lanes;
    const Clock& clock;
    StartLoop start;
  };
  // The size of new segments, and most of them, that fit the capacity.
  static ValueFileMap MapFor(uint64_t capacity_bytes);

  ExtentStore(const ExtentStoreOptions& options, const Parts& parts, ValueFileMap map);
  // Finishes queued work.
  ~ExtentStore();

  // A file of an earlier process. Before Recover.
  void AddFile(uint32_t segment, uint64_t bytes) { table_.AddFile(segment, bytes); }
  Status Recover(const PersistentTier::RecoverVisitor& visitor);

  Result<Extent> Reserve(uint32_t length);
  void Release(const Extent& extent);
  void Write(const Extent& extent, std::string_view record, std::span<const std::byte> source,
             IoCallback done);
  void Read(const Extent& extent, std::span<std::byte> destination, IoCallback done);
  void ReadRange(const Extent& extent, uint64_t offset, std::span<std::byte> destination,
                 IoCallback done);
  Status Flush(const Patience& patience);
  VictimGroup NextVictims();
  NamedValues& names() { return names_; }
  DamageReports& damage() { return damage_; }

  uint32_t max_extent_bytes() const;
  uint64_t segment_bytes() const { return table_.segment_bytes(); }
  uint64_t MapBytes() const { return table_.MemoryBytes(); }
  struct Stats {
    ExtentTable::Stats extents;
    uint64_t read_bytes = 0;
    uint64_t io_errors = 0;
    uint64_t waiting_bytes = 0;
    uint64_t corrupt_reads = 0;
    uint64_t corrupt_records = 0;
    uint64_t trimmed_extents = 0;
    uint64_t scrubbed_bytes = 0;
    uint64_t damaged = 0;
    IoTimeStats reads, writes, syncs;
  };
  Stats GetStats() const;

 private:
  // The part that is left when the capacity is too small for the blocks that are there: the newest.
  struct Trim {
    uint64_t oldest_order = 0;  // Segments of a smaller order go.
    uint32_t first_page = 0;    // The first page of the oldest extent that stays: all before it go.
    bool Keeps(const StoredExtent& found) const;
  };
  Result<std::optional<Trim>> ChooseTrim();
  void Restore(const StoredExtent& found, const std::optional<Trim>& trim,
               const PersistentTier::RecoverVisitor& visitor);
  // Starts the writes that may be started, and asks for room.
  void Pump();
  struct Started {
    bool some = false;
    bool wants_room = false;
  };
  Started StartWrites();
  void OnWritten(std::vector<QueuedWrite> group, const Status& status);
  void Refuse(std::span<const QueuedWrite> writes, const Status& status);
  // Reads bytes from `offset` on, of an extent that is held. `check`: a look at them on their way
  // to the caller. `learn_head`: it looks at the whole extent.
  void StartRead(IoBackend* lane, const Resident& extent, uint64_t offset,
                 std::span<std::byte> destination, std::function<Status()> check, bool learn_head,
                 IoCallback done);
  // `head`: as of ExtentTable::EndRead.
  void EndRead(const Resident& extent, uint64_t bytes, uint32_t head, Status status,
               const IoCallback& done);
  void OnSettled(size_t writes);

  const ExtentStoreOptions options_;
  const Parts parts_;
  ExtentTable table_;
  DamageReports damage_;
  InFlight pending_;
  SyncRounds syncs_;
  RecordWriter records_;
  SegmentRoom room_;
  Scrubber scrubber_;
  NamedValues names_;
  IoTime reads_, writes_;
  std::atomic<uint64_t> read_bytes_{0};
  std::atomic<uint64_t> io_errors_{0};
  std::atomic<uint64_t> corrupt_reads_{0};
  std::atomic<uint64_t> corrupt_records_{0};
  std::atomic<uint64_t> trimmed_extents_{0};
};

}  // namespace cairn::cache::disk
