#pragma once
// Moves blocks between an engine's pages on a device and pinned memory of the host.
//
//   engine's stream: ── forward ── gather ──────────── forward ──
//                                     │ (event)
//   stream of saves:                  └─► copy out ─► Transfer::done, then the host reads its slots
//
//   engine's stream: ── forward ── (event) ── forward ──
//                                     │
//   stream of loads:                  └─► scatter ─► Transfer::done, then the engine may compute
//
// A save gathers the blocks into a staging ring in the device's memory, in the order of the
// engine's own work. So the engine may use the pages again at once, also when it preempts the
// request: what it writes later comes later on its stream. How blocks become flat, BlockForm says:
// they may be encoded on their way. If it runs kernels, a load is copied to the device's memory
// first, because kernels would read pinned memory slowly. Nothing here waits for the device but the
// destructor.
//
// A copy that could not be issued may have begun in part. Its slots come back when an event behind
// it has happened, and never if not even that could be recorded.

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "clients/pages/block_form.h"
#include "clients/pages/slot_ring.h"
#include "common/concurrency/mutex.h"
#include "common/device/device.h"
#include "common/device/event_poller.h"

namespace cairn::pages {

// Copies under way. Thread-safe.
class Transfer {
 public:
  // OK: all bytes are where they belong. An error: they may not be. nullopt: it is under way.
  std::optional<Status> result() const;
  // Waits for the end. False: it has not come by `until`.
  bool Await(TimePoint until) const;
  // After an end that is OK: the blocks, by their places in the call, whose bytes are nevertheless
  // not where they belong, because the form refused them.
  std::vector<uint32_t> refused() const;

 private:
  friend class ChunkLoader;
  friend class PageMover;
  void Finish(Status status, std::vector<uint32_t> refused = {});

  mutable Mutex mu_;
  mutable CondVar finished_;
  std::optional<Status> result_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> refused_ ABSL_GUARDED_BY(mu_);
};

// A point on the engine's stream, behind the engine's work so far. One load at a time uses it.
class Fence {
 private:
  friend class ChunkLoader;
  friend class PageMover;
  device::Event event_;
};

// Thread-safe, but Save and MakeFence are called by the engine's thread alone.
class PageMover {
 public:
  struct Options {
    // Blocks that are saved at a time: that many are staged in the device's memory and again in
    // pinned memory. If there is less memory, the ring is as large as there is; it may have no
    // slots.
    uint32_t save_slots = 0;
    // Blocks that are loaded at a time, in pinned memory, and again in the device's memory if the
    // form runs kernels. At least 1.
    uint32_t load_slots = 0;
  };
  // `poller` outlives the mover, and is stepped by somebody as long as that exists.
  // INVALID_ARGUMENT: of the options. RESOURCE_EXHAUSTED or PERMISSION_DENIED: no memory for even
  // one block that is loaded.
  static Result<std::unique_ptr<PageMover>> Create(std::shared_ptr<device::Device> device,
                                                   std::unique_ptr<BlockForm> form,
                                                   const Options& options,
                                                   device::EventPoller* poller);
  // Waits for the copies under way, unless the device is lost.
  ~PageMover();
  // For the end: takes no slots any more, and waits for the copies under way. False: some may still
  // be under way at `until`. Then the mover must stay for as long as the process lives: to free its
  // memory would wait for the device. REQUIRES: no other call is running.
  bool AwaitEnd(TimePoint until);

  const BlockForm& form() const { return *form_; }
  // OUT_OF_RANGE: a block that the pages do not have. INVALID_ARGUMENT: other positions than one
  // for each block or none.
  Status CheckBlocks(std::span<const uint32_t> blocks, std::span<const uint64_t> positions) const;
  uint32_t save_slots() const { return saves_.slots(); }
  uint32_t load_slots() const { return loads_.slots(); }

  // ---- Saves ----

  struct Save {
    std::shared_ptr<Transfer> transfer;  // Null if there are no slots.
    std::vector<uint32_t> slots;         // The slots of the first blocks, in their order.
  };
  // Saves the blocks as the engine's work so far on its stream leaves them. If the ring has fewer
  // free slots than blocks, the rest is left out. `engine_stream`: the driver's own handle.
  // `positions`: of each block's first token in its sequence; may be missing if the form does not
  // ask for them. OUT_OF_RANGE: a block that the pages do not have. Other errors: nothing is saved.
  Result<Save> SaveBlocks(void* engine_stream, std::span<const uint32_t> blocks,
                          std::span<const uint64_t> positions = {});
  // A block that was saved, once its transfer is done, until its slot is given back.
  std::span<std::byte> save_slot(uint32_t slot) { return Slot(save_memory_, slot); }
  // REQUIRES: the transfer of these slots is done.
  void GiveBackSaveSlots(std::span<const uint32_t> slots) { saves_.GiveBack(slots); }

  // ---- Loads ----

  // A fence on the engine's stream. A load that is given it comes after the engine's work so far.
  Result<std::unique_ptr<Fence>> MakeFence(void* engine_stream);
  // At most `most` slots to fill. Waits for one until `until`; empty if none is free then.
  std::vector<uint32_t> AwaitLoadSlots(size_t most, TimePoint until) {
    return loads_.Await(most, until);
  }
  std::span<std::byte> load_slot(uint32_t slot) { return Slot(load_memory_, slot); }
  // Copies each slot into the block at the same place of `blocks`, behind the fence. The slots are
  // the mover's again, also after an error. OUT_OF_RANGE: a block that the pages do not have.
  // If the device is lost, the transfer ends with an error.
  // `positions`: as SaveBlocks.
  Result<std::shared_ptr<Transfer>> LoadBlocks(const Fence& fence, std::span<const uint32_t> slots,
                                               std::span<const uint32_t> blocks,
                                               std::span<const uint64_t> positions = {});
  void GiveBackLoadSlots(std::span<const uint32_t> slots) { loads_.GiveBack(slots); }

 private:
  PageMover(std::shared_ptr<device::Device> device, std::unique_ptr<BlockForm> form,
            uint32_t save_slots, uint32_t load_slots, device::EventPoller* poller)
      : device_(std::move(device)),
        form_(std::move(form)),
        slot_bytes_(form_->slot_bytes()),
        poller_(*poller),
        saves_(save_slots),
        loads_(load_slots) {}

  std::span<std::byte> Slot(const device::PinnedMemory& memory, uint32_t slot) const {
    return memory.bytes().subspan(slot * slot_bytes_, slot_bytes_);
  }
  // Each block in the slot at the same place, of slots that begin at `base`.
  std::vector<BlockCopy> Places(uint64_t base, std::span<const uint32_t> slots,
                                std::span<const uint32_t> blocks,
                                std::span<const uint64_t> positions) const;
  // Whole slots between two memories that have the same ones. Neighbours become one task: PCIe
  // likes long copies.
  std::vector<device::CopyTask> SlotTasks(uint64_t to, uint64_t from,
                                          std::span<const uint32_t> slots) const;
  // The slots' words of faults alone.
  std::vector<device::CopyTask> FaultTasks(uint64_t to, uint64_t from,
                                           std::span<const uint32_t> slots) const;
  void ClearFaults(const device::PinnedMemory& memory, std::span<const uint32_t> slots) const;
  std::vector<uint32_t> ReadFaults(const device::PinnedMemory& memory,
                                   std::span<const uint32_t> slots) const;
  // The engine's stream as ours. Engines have one, so only the last is kept.
  Result<device::Stream*> Borrow(void* native);
  // Issues the copies of a save. `end`: behind what was issued; empty if it could not be recorded.
  Status IssueSave(device::Stream* engine, std::span<const BlockCopy> staged,
                   std::span<const uint32_t> slots, device::Event gathered, device::Event copied,
                   device::Event* end);
  // Issues the copies of a load. `issued`: whether any may be under way.
  Status IssueLoad(const Fence& fence, std::span<const uint32_t> slots,
                   std::span<const uint32_t> blocks, std::span<const uint64_t> positions,
                   bool* issued) ABSL_EXCLUSIVE_LOCKS_REQUIRED(load_mu_);
  // The steps when the copies of some slots have ended.
  struct Ending {
    Status status;                       // The transfer's, unless the copies failed.
    std::shared_ptr<Transfer> transfer;  // May be null.
    SlotRing* ring = nullptr;            // Gets the slots back. Null: their owner does that.
    const device::PinnedMemory* memory = nullptr;  // The memory of the slots.
    std::vector<uint32_t> slots;
  };
  void Watch(device::Event end, Ending ending);
  // The slots of copies whose end nobody will learn of stay taken.
  void Abandon(const Status& why);

  const std::shared_ptr<device::Device> device_;
  const std::unique_ptr<BlockForm> form_;
  const uint64_t slot_bytes_;
  device::EventPoller& poller_;
  // Constant after Create.
  device::DeviceMemory save_staging_, load_staging_;
  device::PinnedMemory save_memory_, load_memory_;
  SlotRing saves_, loads_;

  // Used by the engine's thread.
  void* native_ = nullptr;
  device::Stream engine_stream_, save_stream_;

  Mutex load_mu_;  // Held while copies are issued, so the engine's thread never takes it.
  device::Stream load_stream_ ABSL_GUARDED_BY(load_mu_);
  Mutex mu_;
  size_t under_way_ ABSL_GUARDED_BY(mu_) = 0;
  bool abandoned_ ABSL_GUARDED_BY(mu_) = false;  // No event says when some copies end.
};

}  // namespace cairn::pages
