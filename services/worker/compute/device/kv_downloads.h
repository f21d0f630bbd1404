#pragma once
// Brings the keys and values that a pass computes to their pages in the host, layer by layer, and
// tells the chunks' callbacks. A few layers are under way at a time, so the host does not wait for
// each, and the device hardly ever waits for the host.
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

namespace cairn::worker {

class KvDownloads {
 public:
  static Result<std::unique_ptr<KvDownloads>> Create(const std::shared_ptr<device::Device>& device,
                                                     const KvLayout& kv, int heads,
                                                     int64_t max_rows);

  // What `compute` has been given so far makes the layer's KV, and `queries`: [rows][heads *
  // head_dim], binary16. Must not be written again before WaitForQueries. `runs` stay as they are
  // until Finish.
  Status Start(int layer, std::span<const DeviceRun> runs, const uint16_t* queries,
               device::Stream* compute);
  // What comes next on `compute` begins when the queries of the last Start have been read.
  Status WaitForQueries(device::Stream* compute);
  // Ends the layers that have arrived.
  Status Poll();
  // Ends all, or stops at the first error.
  Status Finish();
  // After an error: waits until nothing is under way, and forgets it.
  void Abandon();

 private:
  static constexpr size_t kLayers = 4;  // Under way at a time.
  struct Piece {
    std::byte* to = nullptr;
    size_t from = 0;  // Offset in the pinned memory.
    size_t bytes = 0;
  };
  struct Layer {
    device::PinnedMemory memory;
    device::Event computed, arrived;
    int layer = 0;
    std::span<const DeviceRun> runs;
    std::vector<Piece> pieces;
    std::vector<size_t> queries;  // Of each run: offset in `memory`, or kNone.
  };
  static constexpr size_t kNone = ~size_t{0};

  KvDownloads() = default;
  Status EndFirst();
  void Observe(const Layer& layer, const DeviceRun& run, size_t offset);
  Layer& First() { return layers_[first_ % kLayers]; }

  KvLayout kv_;
  int64_t q_width_ = 0;
  device::Stream stream_;
  std::array<Layer, kLayers> layers_;
  size_t first_ = 0, next_ = 0;  // Layers [first_, next_) are under way, each in place n % kLayers.
  bool queries_read_ = false;    // By the last Start.
  std::vector<device::CopyTask> tasks_;
  std::vector<float> widened_;
};

}  // namespace cairn::worker
