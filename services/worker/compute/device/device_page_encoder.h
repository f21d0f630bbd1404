#pragma once
// Encodes pages out of the slots of the mirror (page_encoder.h):
//
//   slots ─► encoding ─► XXH3-64 ─► pinned memory ─► whoever sends them
//                └ lengths, faults ────┘
//
// On a stream of its own, which gives way to passes; the thread that pushes waits for its end.
//
// Thread-safe: while one caller is served, Encode of another one returns at once, and encodes
// nothing.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cairn/kernels/batch/slice_table.h"
#include "common/device/device.h"
#include "services/worker/compute/device/growing_memory.h"
#include "services/worker/compute/device/kv_mirror.h"
#include "services/worker/compute/page_encoder.h"

namespace cairn::worker {

class DevicePageEncoder final : public PageEncoder {
 public:
  // References must outlive it. Buffers come with the first batch.
  static Result<std::unique_ptr<DevicePageEncoder>> Create(
      const std::shared_ptr<device::Device>& device, const KvLayout& kv,
      const kernels::batch::SliceTable& kernels, KvMirror& mirror);

  void Encode(const kernels::SliceForm& form, std::span<const Page> pages,
              const Take& take) override;

 private:
  // Pages that are encoded together.
  struct Batch {
    std::vector<size_t> pages;  // Numbers.
    std::vector<const KvMirror::Slot*> slots;
    std::vector<kernels::SliceTask> tasks;  // [pages][layers]
    uint64_t encoded = 0;                   // Bytes, rounded up for each slice.
    uint64_t scratch = 0;
  };
  // The words that kernels write for each slice, in one piece of memory: lengths, then hashes, then
  // faults.
  struct Words {
    uint64_t* lengths = nullptr;
    uint64_t* hashes = nullptr;
    uint32_t* faults = nullptr;
  };

  DevicePageEncoder(std::shared_ptr<device::Device> device, const KvLayout& kv,
                    const kernels::batch::SliceTable& kernels, KvMirror& mirror)
      : device_(std::move(device)), kv_(kv), kernels_(kernels), mirror_(mirror) {}
  static Words WordsAt(uint64_t address, size_t slices);
  static uint64_t WordBytes(size_t slices);
  kernels::SliceTask TaskOf(const Page& page, int32_t layer) const;
  // Moves the first pages into a batch, as many as fit; those that the device lacks are left out.
  Batch TakeBatch(const kernels::SliceForm& form, std::span<const Page> pages, size_t* next) const;
  void EncodeBatch(const kernels::SliceForm& form, Batch* batch, const Take& take);
  // Memory for the batch, and addresses in its tasks.
  Status Place(const kernels::SliceForm& form, Batch* batch);
  Status Run(const kernels::SliceForm& form, const Batch& batch);
  Status Finish(const char* what);
  void Give(const Batch& batch, const Take& take) const;

  const std::shared_ptr<device::Device> device_;
  const KvLayout kv_;
  const kernels::batch::SliceTable& kernels_;
  KvMirror& mirror_;

  std::atomic<bool> busy_{false};  // Whoever sets it has all that stands below.
  // Nothing more is encoded here: there is no memory for it, or a batch did not end.
  bool off_ = false;
  GrowingMemory encoded_there_, work_there_;
  device::PinnedMemory encoded_, words_;
  std::vector<uint64_t> lengths_;  // The lengths of the batch's slices; 0: it cannot be encoded.
  device::Event done_;
  device::Stream stream_;
};

}  // namespace cairn::worker
