#include "clients/pages/page_mover.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "common/log/log.h"

namespace cairn::pages {
namespace {

using device::CopyTask;
using device::Event;

uint64_t AddressOf(std::span<const std::byte> bytes) {
  return reinterpret_cast<uint64_t>(bytes.data());
}

// Calls allocate(slots) with half as many slots each time, until there is room. Returns for how
// many.
template <typename Allocate>
Result<uint32_t> AllocateSlots(uint32_t slots, Allocate allocate) {
  while (slots > 0) {
    const Status status = allocate(slots);
    if (status.ok()) break;
    if (slots == 1) return status;
    slots /= 2;
  }
  return slots;
}

void WaitFor(device::Device* device, device::Stream* stream) {
  if (!*stream || device->lost()) return;
  const auto event = device->NewEvent();
  if (event.ok() && stream->Record(*event).ok()) (void)event->Synchronize();
}

}  // namespace

std::optional<Status> Transfer::result() const {
  MutexLock lock(mu_);
  return result_;
}

bool Transfer::Await(TimePoint until) const {
  MutexLock lock(mu_);
  return finished_.WaitUntil(
      mu_, until, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return result_.has_value(); });
}

void Transfer::Finish(Status status) {
  {
    MutexLock lock(mu_);
    result_ = std::move(status);
  }
  finished_.NotifyAll();
}

Result<std::unique_ptr<PageMover>> PageMover::Create(std::shared_ptr<device::Device> device,
                                                     EnginePages pages, const Options& options,
                                                     device::EventPoller* poller) {
  CAIRN_RETURN_IF_ERROR(Validate(pages));
  if (options.load_slots == 0) {
    return InvalidArgument("field 'load_slots': got 0, expected at least 1");
  }
  const uint64_t bytes = pages.block_bytes();
  device::PinnedMemory load_memory, save_memory;
  device::DeviceMemory staging;
  const auto pin = [&](uint32_t slots, device::PinnedMemory* memory) {
    auto pinned = device->AllocatePinned(slots * bytes);
    if (pinned.ok()) *memory = *std::move(pinned);
    return pinned.status();
  };
  CAIRN_ASSIGN_OR_RETURN(
      const uint32_t load_slots,
      AllocateSlots(options.load_slots, [&](uint32_t slots) { return pin(slots, &load_memory); }));
  const auto stage = [&](uint32_t slots) {
    auto allocated = device->Allocate(slots * bytes, /*exportable=*/false);
    if (!allocated.ok()) return allocated.status();
    CAIRN_RETURN_IF_ERROR(pin(slots, &save_memory));
    staging = *std::move(allocated);
    return OkStatus();
  };
  const Result<uint32_t> save_slots = AllocateSlots(options.save_slots, stage);
  if (device->lost()) return device->LossStatus();
  if (!save_slots.ok() || *save_slots < options.save_slots || load_slots < options.load_slots) {
    log::Warn("page_mover_short_of_memory",
              {{"save_slots", log::Num(save_slots.ok() ? *save_slots : 0)},
               {"save_slots_wanted", log::Num(options.save_slots)},
               {"load_slots", log::Num(load_slots)},
               {"load_slots_wanted", log::Num(options.load_slots)},
               {"block_bytes", log::Num(bytes)},
               {"reason", save_slots.ok() ? "" : Message(save_slots.status())}});
  }
  std::unique_ptr<PageMover> mover(new PageMover(
      device, std::move(pages), save_slots.ok() ? *save_slots : 0, load_slots, poller));
  mover->staging_ = std::move(staging);
  mover->save_memory_ = std::move(save_memory);
  mover->load_memory_ = std::move(load_memory);
  CAIRN_ASSIGN_OR_RETURN(mover->save_stream_, device->NewStream());
  CAIRN_ASSIGN_OR_RETURN(auto load_stream, device->NewStream());
  MutexLock lock(mover->load_mu_);
  mover->load_stream_ = std::move(load_stream);
  return mover;
}

PageMover::~PageMover() {
  saves_.Close();
  loads_.Close();
  bool abandoned = false;
  for (;;) {
    {
      MutexLock lock(mu_);
      abandoned = abandoned_;
      if (under_way_ == 0) break;
    }
    if (poller_.Step() == 0) std::this_thread::yield();
  }
  if (!abandoned) return;
  WaitFor(device_.get(), &engine_stream_);
  WaitFor(device_.get(), &save_stream_);
  MutexLock lock(load_mu_);
  WaitFor(device_.get(), &load_stream_);
}

Status PageMover::CheckBlocks(std::span<const uint32_t> blocks) const {
  for (const uint32_t block : blocks) {
    if (block >= pages_.blocks) {
      return Errorf(StatusCode::kOutOfRange, "field 'blocks': got {}, expected less than {}", block,
                    pages_.blocks);
    }
  }
  return OkStatus();
}

Result<device::Stream*> PageMover::Borrow(void* native) {
  if (!engine_stream_ || native_ != native) {
    CAIRN_ASSIGN_OR_RETURN(engine_stream_, device_->BorrowStream(native));
    native_ = native;
  }
  return &engine_stream_;
}

Result<PageMover::Save> PageMover::SaveBlocks(void* engine_stream,
                                              std::span<const uint32_t> blocks) {
  CAIRN_RETURN_IF_ERROR(CheckBlocks(blocks));
  CAIRN_ASSIGN_OR_RETURN(device::Stream* const engine, Borrow(engine_stream));
  CAIRN_ASSIGN_OR_RETURN(Event gathered, device_->NewEvent());
  CAIRN_ASSIGN_OR_RETURN(Event copied, device_->NewEvent());
  Save save{.transfer = nullptr, .slots = saves_.Take(blocks.size())};
  if (save.slots.empty()) return save;
  std::vector<BlockCopy> staged;
  for (size_t i = 0; i < save.slots.size(); ++i) {
    staged.push_back({blocks[i], staging_.address() + save.slots[i] * block_bytes_});
  }
  Event end;
  const Status issued =
      IssueSave(engine, staged, save.slots, std::move(gathered), std::move(copied), &end);
  if (!issued.ok()) {
    if (end) {
      Watch(std::move(end), issued, nullptr, &saves_, std::move(save.slots));
    } else {
      Abandon(issued);
    }
    return issued;
  }
  save.transfer = std::make_shared<Transfer>();
  Watch(std::move(end), OkStatus(), save.transfer, nullptr, {});
  return save;
}

Status PageMover::IssueSave(device::Stream* engine, std::span<const BlockCopy> staged,
                            std::span<const uint32_t> slots, Event gathered, Event copied,
                            Event* end) {
  Status status = engine->Copy("gather of a save", GatherTasks(pages_, staged));
  CAIRN_RETURN_IF_ERROR(engine->Record(gathered));
  if (status.ok()) status = save_stream_.Wait(gathered);
  if (!status.ok()) {
    *end = std::move(gathered);
    return status;
  }
  // Slots that follow each other are copied as one run: PCIe likes long copies.
  std::vector<CopyTask> out;
  for (const uint32_t slot : slots) {
    const CopyTask task{.to = AddressOf(save_memory_.bytes()) + slot * block_bytes_,
                        .from = staging_.address() + slot * block_bytes_,
                        .bytes = block_bytes_};
    if (!out.empty() && out.back().to + out.back().bytes == task.to) {
      out.back().bytes += task.bytes;
    } else {
      out.push_back(task);
    }
  }
  status = save_stream_.Copy("copy out of a save", out);
  CAIRN_RETURN_IF_ERROR(save_stream_.Record(copied));
  *end = std::move(copied);
  return status;
}

Result<std::unique_ptr<Fence>> PageMover::MakeFence(void* engine_stream) {
  CAIRN_ASSIGN_OR_RETURN(device::Stream* const engine, Borrow(engine_stream));
  auto fence = std::make_unique<Fence>();
  CAIRN_ASSIGN_OR_RETURN(fence->event_, device_->NewEvent());
  CAIRN_RETURN_IF_ERROR(engine->Record(fence->event_));
  return fence;
}

Result<std::shared_ptr<Transfer>> PageMover::LoadBlocks(const Fence& fence,
                                                        std::span<const uint32_t> slots,
                                                        std::span<const uint32_t> blocks) {
  std::vector<uint32_t> taken(slots.begin(), slots.end());
  Status status = CheckBlocks(blocks);
  if (status.ok() && slots.size() != blocks.size()) {
    status = InvalidArgument("field 'blocks': got {}, expected {}, one for each slot",
                             blocks.size(), slots.size());
  }
  Result<Event> end = device_->NewEvent();
  if (status.ok()) status = end.status();
  MutexLock lock(load_mu_);
  if (status.ok()) status = load_stream_.Wait(fence.event_);
  if (!status.ok()) {
    loads_.GiveBack(taken);
    return status;
  }
  std::vector<BlockCopy> copies;
  for (size_t i = 0; i < slots.size(); ++i) {
    copies.push_back({blocks[i], AddressOf(load_slot(slots[i]))});
  }
  status = load_stream_.Copy("scatter of a load", ScatterTasks(pages_, copies));
  const Status recorded = load_stream_.Record(*end);
  auto transfer = std::make_shared<Transfer>();
  if (!recorded.ok()) {
    Abandon(recorded);
    transfer->Finish(recorded);
    return transfer;
  }
  Watch(*std::move(end), status, transfer, &loads_, std::move(taken));
  return transfer;
}

void PageMover::Watch(Event end, const Status& status, std::shared_ptr<Transfer> transfer,
                      SlotRing* ring, std::vector<uint32_t> slots) {
  {
    MutexLock lock(mu_);
    ++under_way_;
  }
  poller_.Watch(std::move(end), [this, status, transfer = std::move(transfer), ring,
                                 slots = std::move(slots)](const Status& happened) {
    if (ring != nullptr) ring->GiveBack(slots);
    if (transfer != nullptr) transfer->Finish(happened.ok() ? status : happened);
    MutexLock lock(mu_);
    --under_way_;
  });
}

void PageMover::Abandon(const Status& why) {
  log::Error("page_copies_abandoned", {{"reason", Message(why)}});
  MutexLock lock(mu_);
  abandoned_ = true;
}

}  // namespace cairn::pages
