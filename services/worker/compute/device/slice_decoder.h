#pragma once
// Loads encoded slices (slice_loader.h) through a SliceBatch: whole ones into slots of the mirror
// and from there into the host's pages, rows that a selection kept into the host's memory.
//
// The caller waits for the end of each batch: which slices are wrong must be known before a forward
// pass reads one. The host's pages are filled from the device, not by a second decoder: they then
// have the very bits that attention read, the copy goes against the direction in which the encoded
// bytes come, and a slot may be given to another page at any time.
//
// Where kept rows lie in a prefix is known when all of them have come (kv/ragged_prefix.h), so they
// go to the host, and the first pass uploads the prefix (prefix_mirror.h).
//
// Thread-safe: one batch at a time.

#include <memory>
#include <string>
#include <vector>

#include "cairn/kernels/batch/slice_table.h"
#include "common/concurrency/mutex.h"
#include "common/device/device.h"
#include "services/worker/compute/device/kv_mirror.h"
#include "services/worker/compute/device/slice_batch.h"
#include "services/worker/compute/slice_loader.h"

namespace cairn::worker {

class SliceDecoder final : public SliceLoader {
 public:
  // References must outlive it. RESOURCE_EXHAUSTED: no memory for its buffers.
  static Result<std::unique_ptr<SliceDecoder>> Create(const std::shared_ptr<device::Device>& device,
                                                      const KvLayout& kv,
                                                      const kernels::batch::SliceTable& kernels,
                                                      KvMirror& mirror);

  std::string device() const override { return device_->info().uuid; }
  std::vector<Outcome> Load(const kernels::SliceForm& form, std::span<const Slice> slices) override;
  void LoadRows(const kernels::SliceForm& form, std::span<const RowsSlice> slices,
                const TakeRows& take) override;

 private:
  SliceDecoder(std::shared_ptr<device::Device> device, const KvLayout& kv, KvMirror& mirror)
      : device_(std::move(device)), kv_(kv), mirror_(mirror) {}
  kernels::SliceTask TaskOf(const Slice& slice) const;
  kernels::SliceTask TaskOf(const RowsSlice& slice, const RowsOfHead& head) const;
  SliceBatch::Need NeedOf(const kernels::SliceForm& form, const Slice& slice) const;
  SliceBatch::Need NeedOf(const kernels::SliceForm& form, const RowsSlice& slice) const;
  // How many of the slices fit into one batch, from the first. 0: not even that one.
  template <typename AnySlice>
  size_t BatchOf(const kernels::SliceForm& form, std::span<const AnySlice> slices) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Loads the slices of one batch.
  void LoadBatch(const kernels::SliceForm& form, std::span<const Slice> slices,
                 std::vector<Outcome>* outcomes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LoadRowsBatch(const kernels::SliceForm& form, std::span<const RowsSlice> slices,
                     size_t first, const TakeRows& take) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Runs the batch. False: it was not done, which is logged.
  bool Run(const kernels::SliceForm& form) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<device::Device> device_;
  const KvLayout kv_;
  KvMirror& mirror_;

  Mutex mu_;
  std::unique_ptr<SliceBatch> batch_ ABSL_GUARDED_BY(mu_);
  // Decoded kept rows of a batch. Empty until the first such batch.
  device::DeviceMemory rows_there_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::worker
