#pragma once
// Loads blocks that already lie in the device's memory, in chunks of a node's device tier:
//
//   chunk ─► staging ─► XXH3-64 ─► scatter ─► pages of the engine
//                          └─► words of faults ─► pinned memory ─► outcomes
//
// Whoever imported a chunk can write to it at any time. So blocks are copied to memory of ours
// first, and what is hashed is what is scattered. All of it is launched at once, and the caller
// waits for the outcomes. The pages of a wrong block have undefined bytes then.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "clients/pages/block_form.h"
#include "clients/pages/page_mover.h"

namespace cairn::pages {

// Thread-safe: one batch at a time.
class ChunkLoader {
 public:
  struct Source {
    uint64_t address = 0;  // In the device's memory, at any byte.
    uint64_t bytes = 0;    // The size of a flat block at this position.
    uint64_t xxh3 = 0;     // The hash that the bytes must have.
    uint32_t block = 0;    // Where it goes.
    uint64_t first_position = 0;
  };
  enum class Outcome {
    kGood,
    kWrong,   // The bytes have another hash, or the form refused them.
    kUnread,  // They have another length, or the device did not do it.
  };

  // `form` and `kernels` outlive it, and so does `poller`, which somebody steps. `slots`: blocks of
  // a batch, at least 1; that many are staged in the device's memory. RESOURCE_EXHAUSTED: there is
  // no memory for even one.
  static Result<std::unique_ptr<ChunkLoader>> Create(std::shared_ptr<device::Device> device,
                                                     const BlockForm& form,
                                                     const kernels::batch::SliceTable& kernels,
                                                     uint32_t slots, device::EventPoller* poller);
  ~ChunkLoader();

  const device::DeviceInfo& device() const { return device_->info(); }
  // Behind the fence. Nothing reads the sources any more when it returns, unless the device does
  // not answer. REQUIRES: blocks that the engine has.
  std::vector<Outcome> Load(const Fence& fence, std::span<const Source> sources);

 private:
  ChunkLoader(std::shared_ptr<device::Device> device, const BlockForm& form,
              const kernels::batch::SliceTable& kernels, device::EventPoller* poller)
      : device_(std::move(device)),
        form_(form),
        kernels_(kernels),
        stride_(form.fault_offset() + 16),
        poller_(*poller) {}

  Status RunBatch(const Fence& fence, std::span<const Source> sources)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Status IssueBatch(const Fence& fence, std::span<const Source> sources)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits for everything on the stream.
  Status AwaitStream() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<device::Device> device_;
  const BlockForm& form_;
  const kernels::batch::SliceTable& kernels_;
  const uint64_t stride_;  // From one staged block to the next. Behind each is its word of faults.
  device::EventPoller& poller_;

  Mutex mu_;
  device::DeviceMemory staging_ ABSL_GUARDED_BY(mu_);
  device::PinnedMemory faults_ ABSL_GUARDED_BY(mu_);
  device::Stream stream_ ABSL_GUARDED_BY(mu_);
  uint32_t slots_ ABSL_GUARDED_BY(mu_) = 0;
  bool stuck_ ABSL_GUARDED_BY(mu_) = false;  // A batch did not end: nothing may be reused.
};

}  // namespace cairn::pages
