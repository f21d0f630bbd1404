#pragma once
// Loads encoded slices into slots of the mirror (slice_loader.h):
//
//   host ─► pinned memory ─► device ─┐
//                                    ├─► XXH3-64 ─► decode ─► slot ─► pinned memory ─► host's page
//   chunk of a node's device tier ───┘                                     └ faults ─► outcomes
//
// Everything of a batch is on one stream, and the caller waits for its end: which slices are wrong
// must be known before a forward pass reads one. The host's pages are filled from the device, not
// by a second decoder: they then have the very bits that attention read, the copy goes against the
// direction in which the encoded bytes come, and a slot may be given to another page at any time.
//
// Thread-safe: one batch at a time.

#include <memory>
#include <string>
#include <vector>

#include "cairn/kernels/batch/slice_table.h"
#include "common/concurrency/mutex.h"
#include "common/device/device.h"
#include "services/worker/compute/device/kv_mirror.h"
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

 private:
  // Slices of a batch, in places of the buffers.
  struct Batch {
    kernels::SliceForm form;
    std::span<const Slice> slices;
    std::vector<KvMirror::Slot*> slots;  // Null: no room.
  };

  SliceDecoder(std::shared_ptr<device::Device> device, const KvLayout& kv,
               const kernels::batch::SliceTable& kernels, KvMirror& mirror)
      : device_(std::move(device)), kv_(kv), kernels_(kernels), mirror_(mirror) {}
  // How many of the slices fit into one batch, at least 1.
  size_t BatchOf(const kernels::SliceForm& form, std::span<const Slice> slices) const;
  Status RunBatch(const Batch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Status Launched(const char* what, int error) const;
  // Reads what a batch that has ended left in pinned memory.
  Outcome Take(const Batch& batch, size_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<device::Device> device_;
  const KvLayout kv_;
  const kernels::batch::SliceTable& kernels_;
  KvMirror& mirror_;

  Mutex mu_;
  device::PinnedMemory encoded_ ABSL_GUARDED_BY(mu_), decoded_ ABSL_GUARDED_BY(mu_);
  device::DeviceMemory encoded_there_ ABSL_GUARDED_BY(mu_);
  // Words of faults, then memory for cachegen.
  device::DeviceMemory work_there_ ABSL_GUARDED_BY(mu_);
  device::PinnedMemory faults_ ABSL_GUARDED_BY(mu_);
  device::Event done_ ABSL_GUARDED_BY(mu_);
  device::Stream stream_ ABSL_GUARDED_BY(mu_);
  bool stuck_ ABSL_GUARDED_BY(mu_) = false;  // A batch did not end: nothing may be reused.
};

}  // namespace cairn::worker
