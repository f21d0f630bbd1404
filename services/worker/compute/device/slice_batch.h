#pragma once
// Encoded slices on their way through a device, many at a time:
//
//   host ─► pinned memory ─► device ─┐
//                                    ├─► XXH3-64 ─► decoding ─► results ─► pinned memory
//   memory of the device ────────────┘                               └ faults
//
// Everything is on one stream, and Run waits for its end. A slice may consist of several tasks: the
// heads of which a selection kept rows are slices of their own, under one hash.
//
// Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cairn/kernels/batch/slice_table.h"
#include "common/device/device.h"

namespace cairn::worker {

class SliceBatch {
 public:
  // The room that slices take of a batch.
  struct Need {
    uint64_t encoded = 0;  // Bytes that lie in the host.
    uint64_t results = 0;  // Bytes to copy back.
    uint64_t scratch = 0;  // Bytes, of cachegen alone.
    size_t slices = 0;

    Need& operator+=(const Need& other);
  };

  // `largest`: of one slice; at least one such fits. `kernels` must outlive the batch.
  // RESOURCE_EXHAUSTED: no memory for its buffers.
  static Result<std::unique_ptr<SliceBatch>> Create(const std::shared_ptr<device::Device>& device,
                                                    const Need& largest,
                                                    const kernels::batch::SliceTable& kernels);
  // The room that `bytes` take, rounded up as the buffers do.
  static uint64_t Rounded(uint64_t bytes);
  static uint64_t ScratchOf(const kernels::SliceForm& form, const kernels::SliceTask& task);
  bool HasRoom(const Need& all) const;
  // Most bytes of results.
  uint64_t result_bytes() const { return results_.bytes().size(); }

  // Forgets all slices.
  void Clear();
  // A slice that lies in the host's memory, whose bytes are read before this returns, or, if
  // `address` is not 0, in the device's, where it stays until Run returns. Returns its number.
  // REQUIRES: HasRoom.
  size_t AddSlice(const std::byte* host, uint64_t address, uint64_t bytes, uint64_t xxh3);
  // Bytes [offset, offset + task.bytes) of the slice are to be decoded to task.k and task.v. The
  // other fields of a task are set here.
  void AddTask(size_t slice, uint64_t offset, const kernels::SliceTask& task);
  // Bytes of the device's memory to copy back when all tasks have ended. Where they are in pinned
  // memory when Run has returned, until Clear.
  const std::byte* AddResult(uint64_t from, uint64_t bytes);

  // Does all that was added, and waits for it. An error: what tasks and results name means nothing.
  Status Run(const kernels::SliceForm& form);
  // After Run: 0, or what is wrong with the slice (codec/slice_kernels.h).
  uint32_t Faults(size_t slice) const;
  // A Run did not end: its memory may still be written to, so nothing may be run again.
  bool stuck() const { return stuck_; }

 private:
  SliceBatch(std::shared_ptr<device::Device> device, const kernels::batch::SliceTable& kernels)
      : device_(std::move(device)), kernels_(kernels) {}
  // Gives slices their words of faults, and tasks their scratch memory.
  Status PlaceWork(const kernels::SliceForm& form);
  Status Issue(const kernels::SliceForm& form);

  const std::shared_ptr<device::Device> device_;
  const kernels::batch::SliceTable& kernels_;
  device::PinnedMemory encoded_, results_, faults_;
  device::DeviceMemory encoded_there_;
  // Words of faults, then scratch memory.
  device::DeviceMemory work_there_;
  device::Event done_;
  device::Stream stream_;
  bool stuck_ = false;

  // The runs of the slices that were added.
  std::vector<kernels::HashRun> runs_;
  std::vector<kernels::SliceTask> tasks_;
  std::vector<size_t> task_slices_;  // The slice that each task belongs to.
  std::vector<device::CopyTask> uploads_, downloads_;
  uint64_t encoded_used_ = 0, results_used_ = 0;
};

}  // namespace cairn::worker
