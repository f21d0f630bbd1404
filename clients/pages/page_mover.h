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
// request: what it writes later comes later on its stream. Nothing here waits for the device but
// the destructor.
//
// A copy that could not be issued may have begun in part. Its slots come back when an event behind
// it has happened, and never if not even that could be recorded.

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "clients/pages/engine_pages.h"
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

 private:
  friend class PageMover;
  void Finish(Status status);

  mutable Mutex mu_;
  mutable CondVar finished_;
  std::optional<Status> result_ ABSL_GUARDED_BY(mu_);
};

// A point on the engine's stream, behind the engine's work so far. One load at a time uses it.
class Fence {
 private:
  friend class PageMover;
  device::Event event_;
};

// Thread-safe, but Save and MakeFence are called by the engine's thread alone.
class PageMover {
 public:
  struct Options {
    // Blocks that are saved at a time: so many are staged in the device's memory and again in
    // pinned memory. If there is less memory, the ring is as large as there is; it may have no
    // slots.
    uint32_t save_slots = 0;
    // Blocks that are loaded at a time, in pinned memory. At least 1.
    uint32_t load_slots = 0;
  };
  // `poller` outlives the mover, and is stepped by somebody as long as that exists.
  // INVALID_ARGUMENT: of the pages or the options. RESOURCE_EXHAUSTED or PERMISSION_DENIED: not
  // even one block of pinned memory for loads.
  static Result<std::unique_ptr<PageMover>> Create(std::shared_ptr<device::Device> device,
                                                   EnginePages pages, const Options& options,
                                                   device::EventPoller* poller);
  // Waits for the copies under way, unless the device is lost.
  ~PageMover();

  uint64_t block_bytes() const { return block_bytes_; }
  uint32_t save_slots() const { return saves_.slots(); }
  uint32_t load_slots() const { return loads_.slots(); }

  // ---- Saves ----

  struct Save {
    std::shared_ptr<Transfer> transfer;  // Null if there are no slots.
    std::vector<uint32_t> slots;         // Of the first blocks, in their order.
  };
  // Saves the blocks as the engine's work so far on its stream leaves them. If the ring has fewer
  // free slots than blocks, the rest is left out. `engine_stream`: the driver's own handle.
  // OUT_OF_RANGE: a block that the pages do not have. Other errors: nothing is saved.
  Result<Save> SaveBlocks(void* engine_stream, std::span<const uint32_t> blocks);
  // A block that was saved, once its transfer is done, until its slot is given back.
  std::span<std::byte> save_slot(uint32_t slot) { return Slot(save_memory_, slot); }
  // REQUIRES: the transfer of these slots is done.
  void GiveBackSaveSlots(std::span<const uint32_t> slots) { saves_.GiveBack(slots); }

  // ---- Loads ----

  // Of the engine's stream. A load that is given it comes after the engine's work so far.
  Result<std::unique_ptr<Fence>> MakeFence(void* engine_stream);
  // At most `most` slots to fill. Waits for one until `until`; empty if none is free then.
  std::vector<uint32_t> AwaitLoadSlots(size_t most, TimePoint until) {
    return loads_.Await(most, until);
  }
  std::span<std::byte> load_slot(uint32_t slot) { return Slot(load_memory_, slot); }
  // Copies each slot into the block at the same place of `blocks`, behind the fence. The slots are
  // the mover's again, also after an error. OUT_OF_RANGE: a block that the pages do not have.
  // Of a lost device the transfer ends with an error.
  Result<std::shared_ptr<Transfer>> LoadBlocks(const Fence& fence, std::span<const uint32_t> slots,
                                               std::span<const uint32_t> blocks);
  void GiveBackLoadSlots(std::span<const uint32_t> slots) { loads_.GiveBack(slots); }

 private:
  PageMover(std::shared_ptr<device::Device> device, EnginePages pages, uint32_t save_slots,
            uint32_t load_slots, device::EventPoller* poller)
      : device_(std::move(device)),
        pages_(std::move(pages)),
        block_bytes_(pages_.block_bytes()),
        poller_(*poller),
        saves_(save_slots),
        loads_(load_slots) {}

  std::span<std::byte> Slot(const device::PinnedMemory& memory, uint32_t slot) const {
    return memory.bytes().subspan(slot * block_bytes_, block_bytes_);
  }
  Status CheckBlocks(std::span<const uint32_t> blocks) const;
  // The engine's stream as ours. Engines have one, so only the last is kept.
  Result<device::Stream*> Borrow(void* native);
  // Issues the copies of a save. `end`: behind what was issued; empty if it could not be recorded.
  Status IssueSave(device::Stream* engine, std::span<const BlockCopy> staged,
                   std::span<const uint32_t> slots, device::Event gathered, device::Event copied,
                   device::Event* end);
  // When `end` has happened: the transfer ends with `status`, and the slots go back to the ring.
  void Watch(device::Event end, const Status& status, std::shared_ptr<Transfer> transfer,
             SlotRing* ring, std::vector<uint32_t> slots);
  // The slots of copies whose end nobody will learn of stay taken.
  void Abandon(const Status& why);

  const std::shared_ptr<device::Device> device_;
  const EnginePages pages_;
  const uint64_t block_bytes_;
  device::EventPoller& poller_;
  // Constant after Create.
  device::DeviceMemory staging_;
  device::PinnedMemory save_memory_, load_memory_;
  SlotRing saves_, loads_;

  // Of the engine's thread.
  void* native_ = nullptr;
  device::Stream engine_stream_, save_stream_;

  Mutex load_mu_;  // Held while copies are issued, so the engine's thread never takes it.
  device::Stream load_stream_ ABSL_GUARDED_BY(load_mu_);
  Mutex mu_;
  size_t under_way_ ABSL_GUARDED_BY(mu_) = 0;
  bool abandoned_ ABSL_GUARDED_BY(mu_) = false;  // No event says when some copies end.
};

}  // namespace cairn::pages
