#pragma once
// Ragged prefixes (kv/ragged_prefix.h) in the memory of a device: all rows that a selection kept,
// with the lists through which attention finds them. A prefix does not change, so it is uploaded
// once, and goes when its last sequence is gone.
//
// Not thread-safe.

#include <list>
#include <memory>

#include "cairn/common/status.h"
#include "cairn/kernels/batch/attention.h"
#include "common/device/device.h"
#include "services/worker/kv/ragged_prefix.h"

namespace cairn::worker {

class PrefixMirror {
 public:
  explicit PrefixMirror(std::shared_ptr<device::Device> device) : device_(std::move(device)) {}

  // [layers][kv_heads] on the device, ready for what comes after this call on `stream`. The prefix
  // stays here until nobody else has it. RESOURCE_EXHAUSTED: no room.
  Result<const kernels::batch::KeptRows*> Get(const std::shared_ptr<const RaggedPrefix>& prefix,
                                              device::Stream* stream);
  // Where V begins in a unit of `unit_rows` rows.
  static size_t UnitValueOffset(const KvLayout& kv) {
    return static_cast<size_t>(kv.ragged_unit_rows()) * kv.row_bytes();
  }

 private:
  struct Entry {
    std::weak_ptr<const RaggedPrefix> prefix;
    const RaggedPrefix* address = nullptr;
    device::DeviceMemory memory;
    // The memory that the upload reads; constant.
    std::vector<const std::byte*> units;
    std::vector<kernels::batch::KeptRows> rows;
    const kernels::batch::KeptRows* on_device = nullptr;
  };

  std::shared_ptr<device::Device> device_;
  std::list<Entry> entries_;
};

}  // namespace cairn::worker
