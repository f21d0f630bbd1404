#pragma once
// Loads blocks that already lie in the device's memory, in chunks of a node's device tier:
//
//   chunk ─► staging ─► XXH3-64 ─► scatter ─► pages of the engine
//                          └─► words of faults ─► pinned memory ─► outcomes
//
// Whoever imported a chunk can write to it at any time. So blocks are copied to memory of ours
// first, and what is hashed is what is scattered. All of it is launched at once, and the caller
// waits for the outcomes. The pages of a wrong block have undefined bytes then.
//
// Nothing is launched before the engine's work up to the fence has ended. So a device that hangs in
// that work costs the caller its patience, and no copy is on its way to the pages afterwards.

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
  // How long the device may take for the engine's work before a load, and for each batch.
  static constexpr Duration kPatience = std::chrono::seconds(10);

  struct Source {
    uint64_t address = 0;  // In the device's memory, at any byte.
    uint64_t bytes = 0;    // The size of a flat block at this position.
    uint64_t xxh3 = 0;     // That the bytes must have.
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
                                                     uint32_t slots, device::EventPoller* poller,
                                                     Duration patience = kPatience);
  // REQUIRES: AwaitEnd returned true, or no Load was ever called.
  ~ChunkLoader() = default;

  const device::DeviceInfo& device() const { return device_->info(); }
  // Behind the fence. Nothing reads the sources any more when it returns, unless the device did
  // not do a batch within the patience. Then this one and the rest are kUnread, and so is all that
  // later calls want, until the device has done it. REQUIRES: blocks that the engine has.
  std::vector<Outcome> Load(const Fence& fence, std::span<const Source> sources);
  // For the end. False: after the patience something may still be under way. Then the loader must
  // stay as it is for as long as the process lives: to free its memory would wait for the device.
  // REQUIRES: no Load is running.
  bool AwaitEnd();

 private:
  ChunkLoader(std::shared_ptr<device::Device> device, const BlockForm& form,
              const kernels::batch::SliceTable& kernels, device::EventPoller* poller,
              Duration patience)
      : device_(std::move(device)),
        form_(form),
        kernels_(kernels),
        stride_(form.fault_offset() + 16),
        poller_(*poller),
        patience_(patience) {}

  // What comes next on the stream comes after the engine's work up to the fence, which has ended.
  Status AwaitEngine(const Fence& fence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Status RunBatch(std::span<const Source> sources) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Status IssueBatch(std::span<const Source> sources) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits for everything on the stream. DEADLINE_EXCEEDED: `what` did not end within the patience.
  Status AwaitStream(const char* what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Nothing of an earlier batch is under way.
  bool Idle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<device::Device> device_;
  const BlockForm& form_;
  const kernels::batch::SliceTable& kernels_;
  const uint64_t stride_;  // From one staged block to the next. Behind each is its word of faults.
  device::EventPoller& poller_;
  const Duration patience_;

  Mutex mu_;
  device::DeviceMemory staging_ ABSL_GUARDED_BY(mu_);
  device::PinnedMemory faults_ ABSL_GUARDED_BY(mu_);
  device::Stream stream_ ABSL_GUARDED_BY(mu_);
  uint32_t slots_ ABSL_GUARDED_BY(mu_) = 0;
  // What the stream was last asked for and has not ended well: nothing may be reused.
  std::shared_ptr<const Transfer> unended_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::pages
