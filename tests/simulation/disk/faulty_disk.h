#pragma once
// A disk for the simulation: files of segments and records that lose what was not synced when the
// power goes, and requests that take time, end in any order, fail, and come in halves.
//
// A power loss keeps, loses or tears each page that was written since its file was synced, keeps
// any of the batches of records since the last sync, and may bring back deleted files. A kill keeps
// all that was written, and any part of what was under way.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "services/cache/store/tier/disk/io_backend.h"
#include "services/cache/store/tier/disk/record_store.h"
#include "services/cache/store/tier/disk/segment_files.h"
#include "tests/simulation/simulation.h"

namespace cairn::testing {

// The state that the next process finds.
struct DiskImage {
  struct File {
    std::vector<std::byte> now;     // As reads see it.
    std::vector<std::byte> synced;  // As of the last sync.
    std::set<size_t> dirty;         // Pages that were written since.
    bool named = false;             // Its name is durable.
  };
  // Records that were written at once, and are not synced.
  struct Batch {
    std::vector<uint64_t> forget;
    std::vector<std::pair<uint64_t, std::string>> store;  // As EncodeExtent makes them.
    void ApplyTo(std::map<uint64_t, std::string>* records) const;
  };
  std::map<uint32_t, File> files;                      // By segment.
  std::map<uint32_t, std::vector<std::byte>> deleted;  // May come back.
  std::map<uint64_t, std::string> synced_records;
  std::vector<Batch> log;
  std::map<std::string, std::string> names;
};

// The lie of a disk, beyond its ordinary faults.
enum class DiskLie : uint8_t {
  kNone,
  kSyncDoesNothing,        // For segments.
  kSyncComesLate,          // Segments are durable after the records that name their bytes.
  kRecordsComeAfterwards,  // A batch is in the database some time after it was acknowledged.
};

struct DiskTroubles {
  // This many of 1,000 requests fail.
  uint32_t fails = 0;
  uint32_t hangs = 0;  // For some seconds.
  uint32_t comes_short = 100;
  uint32_t syncs_fail = 0;  // Those of segments.
  DiskLie lie = DiskLie::kNone;
};

// One process's view of the disk. Not thread-safe: tasks of one simulation.
class FaultyDisk {
 public:
  FaultyDisk(Simulation& simulation, DiskImage image, const DiskTroubles& troubles);
  ~FaultyDisk();

  cache::disk::RecordStore& records();
  cache::disk::SegmentFiles& files();
  cache::disk::IoLanes NewLanes();
  // Segment and size of each file.
  std::vector<std::pair<uint32_t, uint64_t>> FilesFound() const;

  // The state that is found after a power loss, or after a kill, at this moment. From then on each
  // request of the process fails: it only has to end.
  DiskImage LosePower();
  DiskImage Kill();
  void SetTroubles(const DiskTroubles& troubles);

  uint64_t bytes() const;  // The bytes of all files.

 private:
  class Records;
  class Files;
  class Backend;
  struct State;
  const std::shared_ptr<State> state_;
  std::unique_ptr<Records> records_;
  std::unique_ptr<Files> files_;
};

}  // namespace cairn::testing
