#pragma once
// Brings the keys and values that a pass computes to their pages in the host, one layer or a few at
// a time, and tells the chunks' callbacks. A few such parts are under way at a time, so the host
// does not wait for each, and the device hardly ever waits for the host.
//
// The pool's memory is not pinned (it goes back to the system while pages are free), so copies go
// through pinned memory of this class.
//
// Not thread-safe.

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "common/device/device.h"
#include "services/worker/compute/device/device_run.h"
#include "services/worker/compute/device/row_gatherer.h"

namespace cairn::worker {

class KvDownloads {
 public:
  // `gatherer`: null where the device has no kernel for that; rows are copied one by one then.
  static Result<std::unique_ptr<KvDownloads>> Create(const std::shared_ptr<device::Device>& device,
                                                     const KvLayout& kv, int heads,
                                                     int64_t max_rows,
                                                     std::unique_ptr<RowGatherer> gatherer);

  // Layers [begin, end).
  struct Layers {
    int begin = 0;
    int end = 0;
  };
  // The work that `compute` has been given so far makes the KV of these layers, and `queries`:
  // [rows] [heads * head_dim], binary16, which must not be written again before WaitForQueries.
  // `runs` stay as they are until Finish. REQUIRES: at most MostLayers, and one alone where queries
  // are wanted.
  Status Start(Layers layers, std::span<const DeviceRun> runs, const uint16_t* queries,
               device::Stream* compute);
  // How many layers of `rows` rows fit into one Start.
  int MostLayers(int64_t rows) const;
  // Later work on `compute` begins when the queries of the last Start have been read.
  Status WaitForQueries(device::Stream* compute);
  // Ends the layers that have arrived.
  Status Poll();
  // Ends all, or stops at the first error.
  Status Finish();
  // After an error: waits until nothing is under way, and forgets it.
  void Abandon();

 private:
  static constexpr size_t kParts = 4;  // Under way at a time.
  struct Piece {
    std::byte* to = nullptr;
    size_t from = 0;  // Offset in the pinned memory.
    size_t bytes = 0;
  };
  struct Part {
    device::PinnedMemory memory;
    device::Event computed, arrived;
    Layers layers;
    std::span<const DeviceRun> runs;
    std::vector<Piece> pieces;
    std::vector<size_t> queries;  // For each run: offset in `memory`, or kNone.
  };
  static constexpr size_t kNone = ~size_t{0};

  KvDownloads() = default;
  Status EndFirst();
  // Names what to copy of the part: `tasks_`, and its pieces and queries.
  Status AddCopies(const uint16_t* queries, Part* part);
  // The same by one task, of rows that are gathered first.
  Status AddGathered(device::Stream* compute, Part* part);
  bool IsGathered(const Part& part) const;
  template <typename Visitor>
  void ForEachNewRow(const DeviceRun& run, int layer, Visitor&& visit);
  void Observe(const Part& part, const DeviceRun& run, size_t offset);
  Part& First() { return parts_[first_ % kParts]; }

  KvLayout kv_;
  int64_t q_width_ = 0;
  device::Stream stream_;
  int64_t max_rows_ = 0;
  std::array<Part, kParts> parts_;
  size_t first_ = 0, next_ = 0;  // Parts [first_, next_) are under way, each in place n % kParts.
  bool queries_read_ = false;    // By the last Start.
  std::unique_ptr<RowGatherer> gatherer_;
  // The pass's event: gathered rows have been copied.
  const device::Event* gathered_read_ = nullptr;
  std::vector<device::CopyTask> tasks_;
  std::vector<float> widened_;
};

}  // namespace cairn::worker
