#include "clients/pages/page_mover.h"

#include <algorithm>
#include <cstring>
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

// Nothing wakes a thread when an event of a device has happened, so the event is asked again.
constexpr Duration kLook = std::chrono::microseconds(50);

// False: at `until` the stream has work left.
bool AwaitStream(device::Device* device, device::Stream* stream, TimePoint until) {
  if (!*stream || device->lost()) return true;
  const auto event = device->NewEvent();
  if (!event.ok() || !stream->Record(*event).ok()) return true;
  for (;;) {
    const Result<bool> happened = event->Query();
    if (!happened.ok() || *happened) return true;
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(kLook);
  }
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

std::vector<uint32_t> Transfer::refused() const {
  MutexLock lock(mu_);
  return refused_;
}

void Transfer::Finish(Status status, std::vector<uint32_t> refused) {
  {
    MutexLock lock(mu_);
    result_ = std::move(status);
    refused_ = std::move(refused);
  }
  finished_.NotifyAll();
}

Result<std::unique_ptr<PageMover>> PageMover::Create(std::shared_ptr<device::Device> device,
                                                     std::unique_ptr<BlockForm> form,
                                                     const Options& options,
                                                     device::EventPoller* poller) {
  if (options.load_slots == 0) {
    return InvalidArgument("field 'load_slots': got 0, expected at least 1");
  }
  const uint64_t bytes = form->slot_bytes();
  // Memory for slots on both sides, or only here.
  const auto take = [&](uint32_t slots, bool staged, device::PinnedMemory* memory,
                        device::DeviceMemory* staging) -> Status {
    device::DeviceMemory there;
    if (staged) {
      CAIRN_ASSIGN_OR_RETURN(there, device->Allocate(slots * bytes, /*exportable=*/false));
    }
    CAIRN_ASSIGN_OR_RETURN(*memory, device->AllocatePinned(slots * bytes));
    *staging = std::move(there);
    return OkStatus();
  };
  device::PinnedMemory load_memory, save_memory;
  device::DeviceMemory load_staging, save_staging;
  CAIRN_ASSIGN_OR_RETURN(const uint32_t load_slots,
                         AllocateSlots(options.load_slots, [&](uint32_t slots) {
                           return take(slots, form->runs_kernels(), &load_memory, &load_staging);
                         }));
  const Result<uint32_t> save_slots = AllocateSlots(options.save_slots, [&](uint32_t slots) {
    return take(slots, true, &save_memory, &save_staging);
  });
  if (device->lost()) return device->LossStatus();
  if (!save_slots.ok() || *save_slots < options.save_slots || load_slots < options.load_slots) {
    log::Warn("page_mover_short_of_memory",
              {{"save_slots", log::Num(save_slots.ok() ? *save_slots : 0)},
               {"save_slots_wanted", log::Num(options.save_slots)},
               {"load_slots", log::Num(load_slots)},
               {"load_slots_wanted", log::Num(options.load_slots)},
               {"slot_bytes", log::Num(bytes)},
               {"reason", save_slots.ok() ? "" : Message(save_slots.status())}});
  }
  std::unique_ptr<PageMover> mover(new PageMover(
      device, std::move(form), save_slots.ok() ? *save_slots : 0, load_slots, poller));
  mover->save_staging_ = std::move(save_staging);
  mover->load_staging_ = std::move(load_staging);
  mover->save_memory_ = std::move(save_memory);
  mover->load_memory_ = std::move(load_memory);
  CAIRN_ASSIGN_OR_RETURN(mover->save_stream_, device->NewStream());
  CAIRN_ASSIGN_OR_RETURN(auto load_stream, device->NewStream());
  MutexLock lock(mover->load_mu_);
  mover->load_stream_ = std::move(load_stream);
  return mover;
}

PageMover::~PageMover() { (void)AwaitEnd(TimePoint::max()); }

bool PageMover::AwaitEnd(TimePoint until) {
  saves_.Close();
  loads_.Close();
  bool abandoned = false;
  for (;;) {
    {
      MutexLock lock(mu_);
      abandoned = abandoned_;
      if (under_way_ == 0) break;
    }
    if (poller_.Step() > 0) continue;
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::yield();
  }
  if (!abandoned) return true;
  MutexLock lock(load_mu_);
  return AwaitStream(device_.get(), &engine_stream_, until) &&
         AwaitStream(device_.get(), &save_stream_, until) &&
         AwaitStream(device_.get(), &load_stream_, until);
}

Status PageMover::CheckBlocks(std::span<const uint32_t> blocks,
                              std::span<const uint64_t> positions) const {
  if (!positions.empty() && positions.size() != blocks.size()) {
    return InvalidArgument("field 'positions': got {}, expected {}, one for each block",
                           positions.size(), blocks.size());
  }
  for (const uint32_t block : blocks) {
    if (block >= form_->blocks()) {
      return Errorf(StatusCode::kOutOfRange, "field 'blocks': got {}, expected less than {}", block,
                    form_->blocks());
    }
  }
  return OkStatus();
}

std::vector<BlockCopy> PageMover::Places(uint64_t base, std::span<const uint32_t> slots,
                                         std::span<const uint32_t> blocks,
                                         std::span<const uint64_t> positions) const {
  std::vector<BlockCopy> places;
  for (size_t i = 0; i < slots.size(); ++i) {
    places.push_back(
        {blocks[i], base + slots[i] * slot_bytes_, positions.empty() ? 0 : positions[i]});
  }
  return places;
}

std::vector<CopyTask> PageMover::SlotTasks(uint64_t to, uint64_t from,
                                           std::span<const uint32_t> slots) const {
  std::vector<CopyTask> tasks;
  for (const uint32_t slot : slots) {
    const CopyTask task{
        .to = to + slot * slot_bytes_, .from = from + slot * slot_bytes_, .bytes = slot_bytes_};
    if (!tasks.empty() && tasks.back().to + tasks.back().bytes == task.to) {
      tasks.back().bytes += task.bytes;
    } else {
      tasks.push_back(task);
    }
  }
  return tasks;
}

std::vector<CopyTask> PageMover::FaultTasks(uint64_t to, uint64_t from,
                                            std::span<const uint32_t> slots) const {
  std::vector<CopyTask> tasks;
  for (const uint32_t slot : slots) {
    const uint64_t at = slot * slot_bytes_ + form_->fault_offset();
    tasks.push_back({.to = to + at, .from = from + at, .bytes = sizeof(uint32_t)});
  }
  return tasks;
}

void PageMover::ClearFaults(const device::PinnedMemory& memory,
                            std::span<const uint32_t> slots) const {
  for (const uint32_t slot : slots) {
    std::memset(Slot(memory, slot).data() + form_->fault_offset(), 0, sizeof(uint32_t));
  }
}

std::vector<uint32_t> PageMover::ReadFaults(const device::PinnedMemory& memory,
                                            std::span<const uint32_t> slots) const {
  std::vector<uint32_t> refused;
  for (uint32_t i = 0; i < slots.size(); ++i) {
    uint32_t faults = 0;
    std::memcpy(&faults, Slot(memory, slots[i]).data() + form_->fault_offset(), sizeof(faults));
    if (faults != 0) refused.push_back(i);
  }
  return refused;
}

Result<device::Stream*> PageMover::Borrow(void* native) {
  if (!engine_stream_ || native_ != native) {
    CAIRN_ASSIGN_OR_RETURN(engine_stream_, device_->BorrowStream(native));
    native_ = native;
  }
  return &engine_stream_;
}

Result<PageMover::Save> PageMover::SaveBlocks(void* engine_stream, std::span<const uint32_t> blocks,
                                              std::span<const uint64_t> positions) {
  CAIRN_RETURN_IF_ERROR(CheckBlocks(blocks, positions));
  CAIRN_ASSIGN_OR_RETURN(device::Stream* const engine, Borrow(engine_stream));
  CAIRN_ASSIGN_OR_RETURN(Event gathered, device_->NewEvent());
  CAIRN_ASSIGN_OR_RETURN(Event copied, device_->NewEvent());
  Save save{.transfer = nullptr, .slots = saves_.Take(blocks.size())};
  if (save.slots.empty()) return save;
  const auto staged = Places(save_staging_.address(), save.slots, blocks, positions);
  Event end;
  const Status issued =
      IssueSave(engine, staged, save.slots, std::move(gathered), std::move(copied), &end);
  if (!issued.ok()) {
    if (end) {
      Watch(std::move(end), {issued, nullptr, &saves_, &save_memory_, std::move(save.slots)});
    } else {
      Abandon(issued);
    }
    return issued;
  }
  save.transfer = std::make_shared<Transfer>();
  Watch(std::move(end), {OkStatus(), save.transfer, nullptr, &save_memory_, save.slots});
  return save;
}

Status PageMover::IssueSave(device::Stream* engine, std::span<const BlockCopy> staged,
                            std::span<const uint32_t> slots, Event gathered, Event copied,
                            Event* end) {
  const uint64_t there = save_staging_.address(), here = AddressOf(save_memory_.bytes());
  Status status;
  if (form_->has_faults()) {
    ClearFaults(save_memory_, slots);
    status = engine->Copy("clearing of a save's faults", FaultTasks(there, here, slots));
  }
  if (status.ok()) status = form_->Gather(engine, staged);
  CAIRN_RETURN_IF_ERROR(engine->Record(gathered));
  if (status.ok()) status = save_stream_.Wait(gathered);
  if (!status.ok()) {
    *end = std::move(gathered);
    return status;
  }
  status = save_stream_.Copy("copy out of a save", SlotTasks(here, there, slots));
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
                                                        std::span<const uint32_t> blocks,
                                                        std::span<const uint64_t> positions) {
  std::vector<uint32_t> taken(slots.begin(), slots.end());
  Status status = CheckBlocks(blocks, positions);
  if (status.ok() && slots.size() != blocks.size()) {
    status = InvalidArgument("field 'blocks': got {}, expected {}, one for each slot",
                             blocks.size(), slots.size());
  }
  Result<Event> end = device_->NewEvent();
  if (status.ok()) status = end.status();
  MutexLock lock(load_mu_);
  bool issued = false;
  if (status.ok()) status = IssueLoad(fence, slots, blocks, positions, &issued);
  if (!issued) {
    loads_.GiveBack(taken);
    return status;
  }
  const Status recorded = load_stream_.Record(*end);
  auto transfer = std::make_shared<Transfer>();
  if (!recorded.ok()) {
    Abandon(recorded);
    transfer->Finish(recorded);
    return transfer;
  }
  Watch(*std::move(end), {status, transfer, &loads_, &load_memory_, std::move(taken)});
  return transfer;
}

Status PageMover::IssueLoad(const Fence& fence, std::span<const uint32_t> slots,
                            std::span<const uint32_t> blocks, std::span<const uint64_t> positions,
                            bool* issued) {
  const uint64_t here = AddressOf(load_memory_.bytes());
  uint64_t from = here;
  if (load_staging_) {
    if (form_->has_faults()) ClearFaults(load_memory_, slots);
    from = load_staging_.address();
    *issued = true;
    // The engine does not know this memory, so it need not be waited for.
    CAIRN_RETURN_IF_ERROR(load_stream_.Copy("upload of a load", SlotTasks(from, here, slots)));
  }
  CAIRN_RETURN_IF_ERROR(load_stream_.Wait(fence.event_));
  *issued = true;
  CAIRN_RETURN_IF_ERROR(form_->Scatter(&load_stream_, Places(from, slots, blocks, positions)));
  if (!form_->has_faults()) return OkStatus();
  return load_stream_.Copy("faults of a load", FaultTasks(here, from, slots));
}

void PageMover::Watch(Event end, Ending ending) {
  {
    MutexLock lock(mu_);
    ++under_way_;
  }
  poller_.Watch(std::move(end), [this, ending = std::move(ending)](const Status& happened) {
    Status status = happened.ok() ? ending.status : happened;
    std::vector<uint32_t> refused;
    if (status.ok() && form_->has_faults()) refused = ReadFaults(*ending.memory, ending.slots);
    if (ending.ring != nullptr) ending.ring->GiveBack(ending.slots);
    if (ending.transfer != nullptr) ending.transfer->Finish(std::move(status), std::move(refused));
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
