#pragma once
// Copies in one direction between one device and memory of the host.
//
//   Submit ─► line ─► batch (many copies in one call, two batches under way) ─► event ─► callbacks
//
// Bytes that are pinned are copied where they lie. Others take a detour through slots of pinned
// memory, piece by piece; where the machine does not even pin the slots, these are ordinary memory,
// and slow.
//
// Thread-safe. Callbacks run on the thread that steps the EventPoller, or in Submit if that fails.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/concurrency/mutex.h"
#include "common/device/device.h"
#include "common/device/event_poller.h"
#include "services/cache/store/tier/device/host_pins.h"
#include "services/cache/store/tier/tier.h"

namespace cairn::cache {

class CopyLane {
 public:
  enum class Direction : uint8_t { kToDevice, kFromDevice };
  static constexpr size_t kMaxWaiting = 4096;
  static constexpr size_t kBatchesUnderWay = 2;
  static constexpr size_t kTasksInBatch = 128;
  static constexpr uint64_t kBytesInBatch = 64 << 20;

  struct Options {
    Direction direction = Direction::kToDevice;
    uint64_t slot_bytes = 4 << 20;
    uint32_t slots = 4;
  };
  // `pins`: nullptr: everything takes the detour. `poller` and `pins` outlive the lane.
  static Result<std::unique_ptr<CopyLane>> Create(const Options& options,
                                                  std::shared_ptr<device::Device> device,
                                                  device::EventPoller* poller, HostPins* pins);
  // Waits for what is under way, unless the device is lost. REQUIRES: no job is left.
  ~CopyLane();

  // `host` stays valid until `done` has run. RESOURCE_EXHAUSTED, by `done`: too many wait.
  void Submit(uint64_t device_address, std::span<std::byte> host, IoCallback done);
  // Before all that is submitted later. REQUIRES: the lane goes to the device.
  Status Fill(uint64_t device_address, uint8_t value, uint64_t bytes);

  uint64_t detour_bytes() const { return detour_bytes_.load(std::memory_order_relaxed); }

 private:
  struct Job {
    uint64_t device_address = 0;
    std::span<std::byte> host;
    IoCallback done;
    bool pinned = false;
    uint64_t begun = 0;  // Bytes that are in a batch, or were.
    size_t pieces = 0;   // Under way.
    Status status;
  };
  using JobPtr = std::shared_ptr<Job>;
  struct Piece {
    JobPtr job;
    std::byte* slot = nullptr;  // nullptr: pinned.
    uint64_t at = 0;
    uint64_t bytes = 0;
  };
  using Batch = std::vector<Piece>;

  CopyLane(const Options& options, std::shared_ptr<device::Device> device,
           device::EventPoller* poller, HostPins* pins)
      : options_(options), device_(std::move(device)), poller_(*poller), pins_(pins) {}
  Status Open();
  bool to_device() const { return options_.direction == Direction::kToDevice; }
  const char* what() const { return to_device() ? "copy to the device" : "copy to the host"; }

  void Pump();
  // Takes pieces from the line. Empty: there are none that can go.
  Batch TakeBatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Issues the copies of a batch. On failure nothing of it is under way, unless the driver took the
  // copies and then, several times, no event behind them: bytes that come later are found by their
  // hash.
  Status Issue(const Batch& batch, device::Event* event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Ended(Batch& batch, const Status& status);
  void FinishJobs(std::span<const JobPtr> jobs);

  const Options options_;
  const std::shared_ptr<device::Device> device_;
  device::EventPoller& poller_;
  HostPins* const pins_;
  std::atomic<uint64_t> detour_bytes_{0};
  // Constant after Open.
  device::PinnedMemory pinned_slots_;
  std::unique_ptr<std::byte[]> plain_slots_;  // Where the machine does not pin.

  Mutex mu_;
  device::Stream stream_ ABSL_GUARDED_BY(mu_);
  std::deque<JobPtr> line_ ABSL_GUARDED_BY(mu_);  // Each has bytes that were not begun.
  std::vector<std::byte*> free_slots_ ABSL_GUARDED_BY(mu_);
  size_t under_way_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace cairn::cache
