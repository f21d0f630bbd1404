#pragma once
// Brings the rows that a decode step has added to pages together in one piece of a device's memory,
// by one launch for all layers. They are short, and lie as far apart as layers and heads: copied
// one by one, a step of eight sequences of a model of 32 layers would be thousands of copies.
//
// Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cairn/kernels/batch/slice_table.h"
#include "common/device/device.h"
#include "services/worker/compute/device/device_run.h"
#include "services/worker/compute/device/growing_memory.h"

namespace cairn::worker {

class RowGatherer {
 public:
  // `pool`: where the memory of all slots begins. `kernels` must outlive it.
  RowGatherer(std::shared_ptr<device::Device> device, const KvLayout& kv, uint64_t pool,
              const kernels::batch::SliceTable& kernels)
      : device_(std::move(device)), kv_(kv), pool_(pool), kernels_(kernels) {}

  // Gathers runs of one row each, after the work that `stream` has been given so far:
  // [runs][layers][K, V] [kv_heads][head_dim]. Returns the address, where the rows stay until the
  // next call.
  Result<uint64_t> Gather(int begin_layer, int end_layer, std::span<const DeviceRun> runs,
                          device::Stream* stream);

 private:
  const std::shared_ptr<device::Device> device_;
  const KvLayout kv_;
  const uint64_t pool_;
  const kernels::batch::SliceTable& kernels_;
  GrowingMemory rows_;
  std::vector<std::byte*> pieces_;
  std::vector<uint32_t> index_;
};

}  // namespace cairn::worker
