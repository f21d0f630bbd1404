#include "services/cache/store/engine/layered_fetch.h"

#include <algorithm>
#include <utility>

namespace cairn::cache {
namespace {

constexpr size_t kLocateAtOnce = 256;    // Slots looked up under one lock.
constexpr int kStepsAtOnce = 4;          // Steps of a window, after the deadline has passed.
constexpr uint64_t kWindowFloor = 8192;  // Bytes that every window has in any case.
// Limit for blocks that a source located. They come one after the other and go on as they came, so
// a larger window would only keep the first of them back.
constexpr uint64_t kSourceWindow = 1 << 20;
constexpr uint64_t kLookAheadEvery = 64;  // Items between two looks at the window that comes next.

}  // namespace

Result<std::unique_ptr<LayeredFetch>> LayeredFetch::Start(const FetchServices& services,
                                                          const LeasePtr& lease, Wanted wanted) {
  Range blocks = wanted.blocks;
  if (!wanted.only.empty()) blocks = {wanted.only.front(), wanted.only.back() + 1};
  auto fetch = std::unique_ptr<LayeredFetch>(new LayeredFetch(services, lease, std::move(wanted)));
  fetch->first_block_ = fetch->next_block_ = blocks.first;
  CAIRN_ASSIGN_OR_RETURN(
      fetch->memory_, ChargeFetch(&services.context->memory,
                                  sizeof(LayeredFetch) + 2 * kWindowFloor +
                                      uint64_t{blocks.second - blocks.first} * sizeof(BlockKey)));
  fetch->keys_.reserve(blocks.second - blocks.first);
  NamespaceState& ns = *lease->ns;
  std::vector<BlockRef> path;
  {
    NamespaceLock lock(ns, services.context->tiers);
    // Under the lock: a lease that ends unpins under it too.
    if (lease->ended.load(std::memory_order_acquire) != MissReason::kNone || ns.dropped.load()) {
      return Errorf(StatusCode::kNotFound, "field 'lease_id': the lease has ended");
    }
    const uint32_t pinned = std::min(blocks.second, lease->blocks);
    lease->ns->mu.AssertHeld();  // `ns` by its other name.
    if (blocks.first < pinned && !lease->Find(blocks.first, pinned, &path)) {
      return Errorf(StatusCode::kNotFound, "field 'lease_id': the lease's path is gone");
    }
    const auto add = [&](uint32_t block) {
      ns.mu.AssertHeld();
      fetch->keys_.push_back(block < pinned ? ns.index.KeyAt(path[block - blocks.first])
                                            : lease->located[block - lease->blocks].key);
    };
    for (const uint32_t block : fetch->only_) add(block);
    for (uint32_t b = blocks.first; fetch->only_.empty() && b < blocks.second; ++b) add(b);
  }
  return fetch;
}

LayeredFetch::~LayeredFetch() {
  EndWindow(current_);
  EndWindow(ahead_);
}

void LayeredFetch::EndWindow(Window& window) {
  const bool held = window.room && window.room->holds_charge();
  window = Window();
  if (held) services_.context->progress.Notify();
}

std::span<FetchSlot> LayeredFetch::AddSlots(Window& window, uint32_t count) {
  auto& slots = window.slots;
  const size_t begin = slots.size();
  if (window.reads == nullptr) window.reads = std::make_shared<std::atomic<uint32_t>>(0);
  for (uint32_t i = 0; i < count; ++i) {
    FetchSlot& slot = slots.emplace_back();
    slot.block = BlockAt(next_block_ + i);
    slot.key = keys_[next_block_ + i - first_block_];
    slot.layer_begin = layers_.first;
    slot.layer_end = layers_.second;
    slot.rows = rows_;
    slot.reads = window.reads;
    if (slot.block >= lease_->blocks) {
      slot.located = true;
      slot.bytes = lease_->located[slot.block - lease_->blocks].bytes;
    }
  }
  return std::span(slots).subspan(begin);
}

LayeredFetch::Step LayeredFetch::Grow(Window& window, TimePoint deadline) {
  if (window.whole) return Step::kReady;
  const bool hurry = services_.context->clock->Now() >= deadline;
  const uint32_t end = first_block_ + static_cast<uint32_t>(keys_.size());
  const uint32_t left = end - next_block_;
  auto& slots = window.slots;
  if (!window.room) {
    window.room.emplace(&services_.context->memory, kWindowFloor);
  }
  const auto chunk = AddSlots(window, std::min<uint32_t>(left, kLocateAtOnce));
  const LocatedSlots located = LocateSlots(
      services_, lease_, chunk, {.memory_run = true, .room = &*window.room, .hurry = hurry});
  slots.resize(slots.size() - (chunk.size() - located.count));
  next_block_ += static_cast<uint32_t>(located.count);
  switch (located.stop) {
    case LocatedSlots::Stop::kNone:
      window.whole = next_block_ == end;
      break;
    case LocatedSlots::Stop::kEnoughWork:
      break;
    case LocatedSlots::Stop::kNoRoom:
      if (slots.empty()) return Step::kWaiting;
      window.whole = true;
      break;
    case LocatedSlots::Stop::kElsewhere:
      if (slots.empty()) return GrowElsewhere(window, hurry);
      window.whole = true;
      break;
  }
  return window.whole ? Step::kReady : Step::kMore;
}

LayeredFetch::Step LayeredFetch::GrowElsewhere(Window& window, bool hurry) {
  auto& slots = window.slots;
  const uint32_t end = first_block_ + static_cast<uint32_t>(keys_.size());
  AddSlots(window, std::min<uint32_t>(end - next_block_, kLocateAtOnce));
  const LocatedSlots located =
      LocateSlots(services_, lease_, slots, {.room = &*window.room, .hurry = hurry});
  slots.resize(located.count);
  if (slots.empty()) {
    return located.stop == LocatedSlots::Stop::kNoRoom ? Step::kWaiting : Step::kMore;
  }
  // As many blocks as buffers allow. The others of the chunk are asked for all the same, and are on
  // their way when their window comes.
  uint64_t limit = services_.budget->capacity() / 8;
  if (slots.front().located) limit = std::min(limit, kSourceWindow);
  uint64_t bytes = 0;
  uint64_t memory = 0;
  size_t count = 0;
  while (count < slots.size() && (count == 0 || bytes + slots[count].buffer_bytes() <= limit)) {
    memory += slots[count].MemoryBytes();
    bytes += slots[count++].buffer_bytes();
  }
  slots.resize(count);
  window.room->ShrinkTo(memory);
  next_block_ += static_cast<uint32_t>(count);
  window.whole = true;
  return Step::kReady;
}

bool LayeredFetch::Advance(Window& window) {
  if (window.settled) return true;
  bool settled = true;
  for (FetchSlot& slot : window.slots) {
    // A source that was late once is not waited for again.
    if (source_late_ && slot.state == FetchSlot::State::kWantSource) {
      slot.Fail(MissReason::kDeadline);
    }
    settled &= AdvanceSlot(services_, lease_, slot);
    source_late_ |= slot.located && slot.state == FetchSlot::State::kFailed &&
                    slot.reason == MissReason::kDeadline;
  }
  window.settled = settled;
  return settled;
}

LayeredFetch::Step LayeredFetch::PrepareWindow(TimePoint deadline) {
  if (!current_.room) {
    current_ = std::exchange(ahead_, Window());
    layer_ = layers_.first;
    slot_ = part_ = 0;
  }
  if (const Step step = Grow(current_, deadline); step != Step::kReady) return step;
  if (!Advance(current_)) {
    // No room for a block: the window ends before it, or fetches that hold some could wait for each
    // other. Nothing of the window is sent yet, and none is ahead.
    auto& slots = current_.slots;
    const auto want = std::find_if(slots.begin(), slots.end(),
                                   [](const FetchSlot& slot) { return slot.wants_room(); });
    if (want == slots.end()) return Step::kWaiting;
    const size_t before = slots.size();
    slots.resize(std::max<size_t>(1, static_cast<size_t>(want - slots.begin())));
    next_block_ -= static_cast<uint32_t>(before - slots.size());
    if (!Advance(current_)) return Step::kWaiting;
  }
  if (!current_.slots.empty() && emitted_ % kLookAheadEvery == 0) {
    if (Grow(ahead_, deadline) == Step::kReady) Advance(ahead_);
  }
  return Step::kReady;
}

Result<std::optional<FetchStream::Item>> LayeredFetch::Next(TimePoint deadline) {
  NodeContext& context = *services_.context;
  for (int steps = 1;; ++steps) {
    const MissReason ended = lease_->ended.load(std::memory_order_acquire);
    if (ended != MissReason::kNone) return EmitEnded(ended);
    const uint64_t seen = context.progress.Now();
    const Step step = PrepareWindow(deadline);
    bool waiting = step == Step::kWaiting;
    if (step == Step::kReady) {
      if (current_.slots.empty()) return std::optional<Item>();
      if (auto item = Emit(&waiting)) {
        ++emitted_;
        return item;
      }
    }
    if (!waiting) {
      if (step == Step::kReady) EndWindow(current_);
      if (steps < kStepsAtOnce || context.clock->Now() < deadline) continue;
    } else if (context.progress.WaitPast(seen, *context.clock, deadline)) {
      continue;
    }
    return Errorf(StatusCode::kDeadlineExceeded, "fetch: blocks from {} on are not read yet",
                  !current_.slots.empty()                     ? current_.slots.front().block
                  : next_block_ < first_block_ + keys_.size() ? BlockAt(next_block_)
                                                              : next_block_);
  }
}

std::optional<FetchStream::Item> LayeredFetch::Emit(bool* waiting) {
  for (; layer_ < layers_.second; ++layer_, slot_ = part_ = 0) {
    for (; slot_ < current_.slots.size(); ++slot_, part_ = 0) {
      FetchSlot& slot = current_.slots[slot_];
      while (slot.state != FetchSlot::State::kFailed) {
        if (!slot.settled() && !AdvanceSlot(services_, lease_, slot)) {
          *waiting = true;
          return std::nullopt;
        }
        if (slot.state == FetchSlot::State::kFailed) break;
        const FetchSlot::Part* const part = slot.PartOf(layer_, part_);
        if (part == nullptr) break;
        auto item = EmitSlice(slot, *part);
        if (!item) continue;  // Rejected: the slot looks for another copy.
        ++part_;
        return item;
      }
      if (slot.state == FetchSlot::State::kFailed && !slot.failure_told) {
        slot.failure_told = true;
        ++current_.failures_told;
        return Fail(slot.block, slot.reason);
      }
    }
    if (current_.failures_told == current_.slots.size()) return std::nullopt;
  }
  return std::nullopt;
}

std::optional<FetchStream::Item> LayeredFetch::EmitSlice(FetchSlot& slot,
                                                         const FetchSlot::Part& part) {
  NodeContext& context = *services_.context;
  std::span<const std::byte> data;
  const auto found = part.SliceOf(layer_, &data);
  if (!found) {
    RejectSlot(services_, lease_, slot, trace_);
    return std::nullopt;
  }
  const format::SliceEntry& entry = *found;
  std::shared_ptr<const void> hold =
      part.buffer != nullptr ? part.buffer : std::shared_ptr<const void>(slot.pins);
  const bool in_memory = context.tiers.IsMapped(slot.tier);
  const bool sample =
      in_memory && checks_ != Checks::kOncePerLease && emitted_ % kLookAheadEvery == 1;
  const TimePoint before = sample ? context.clock->Now() : TimePoint();
  if (!Check(slot, part, entry, sample, &data, &hold)) {
    lease_->verified.Forget(slot.block);
    RejectSlot(services_, lease_, slot, trace_);
    return std::nullopt;
  }
  Counters& counters = context.counters;
  if (sample) {
    context.pace[slot.tier].Add(entry.length, context.clock->Now() - before);
  }
  // A block that this lease's match found on disk came from disk, also when it was promoted
  // meanwhile. The same holds for a source.
  std::optional<TierKind> tier;
  if (!slot.located) tier = SlowerOf(slot.tier, MatchedTier(slot.block));
  if (checks_ != Checks::kOncePerLease) {  // Else rows are counted.
    context.Spend(*lease_->ns, entry.length);
    counters.fetched_bytes.Add(entry.length);
    if (tier) counters.fetched_from[*tier].Add(entry.length);
  }
  return FetchedSlice{{.block = slot.block,
                       .part = part.rect,
                       .layer = layer_,
                       .codec = part.codec,
                       .slice_bytes = entry.length,
                       .xxh3 = entry.xxh3,
                       .tier = tier},
                      data,
                      std::move(hold),
                      part.pieces};
}

bool LayeredFetch::MayChange(const FetchSlot& slot, const FetchSlot::Part& part) const {
  // Other tiers' bytes are this process's own, and so are those that were read into a buffer.
  return slot.tier == TierKind::kHost && part.buffer == nullptr &&
         services_.context->tiers.host->PlaceOf(part.extent).lending == Lending::kLent;
}

bool LayeredFetch::Check(const FetchSlot& slot, const FetchSlot::Part& part,
                         const format::SliceEntry& entry, bool sample,
                         std::span<const std::byte>* data, std::shared_ptr<const void>* hold) {
  const bool in_memory = services_.context->tiers.IsMapped(slot.tier);
  if (checks_ == Checks::kSample && in_memory && !sample) return true;
  if (checks_ != Checks::kOncePerLease) return format::VerifySlice(entry, *data);
  Counters& counters = services_.context->counters;
  if (part.pieces != nullptr) {
    counters.row_checked_bytes.Add(part.pieces->bytes());
    checked_bytes_ += part.pieces->bytes();
    return part.pieces->Verify();
  }
  if (MayChange(slot, part)) {
    // A hash of what somebody can change says nothing about what is read after it.
    const auto copy = std::make_shared<std::vector<std::byte>>(data->begin(), data->end());
    *data = *copy;
    *hold = copy;
    counters.row_checked_bytes.Add(entry.length);
    checked_bytes_ += entry.length;
    return format::VerifySlice(entry, *copy);
  }
  // One bit stands for a slice: of a block in one part.
  const bool remember = slot.tier == TierKind::kHost && part.buffer == nullptr && !slot.located &&
                        slot.parts.size() == 1;
  if (remember && lease_->verified.Has(slot.block, layer_)) return true;
  counters.row_checked_bytes.Add(entry.length);
  checked_bytes_ += entry.length;
  if (!format::VerifySlice(entry, *data)) return false;
  if (part.known != nullptr && rows_ != nullptr) {
    lease_->known.AddPages(slot.tier, part.extent, layer_ - part.rect.layer_begin, *data,
                           &services_.context->memory);
  }
  if (remember) {
    lease_->verified.Add(slot.block, layer_, lease_->blocks, lease_->ns->spec.layout.Layers(),
                         &services_.context->memory);
  }
  return true;
}

FetchFailure LayeredFetch::Fail(uint32_t block, MissReason reason) {
  services_.context->counters.misses[static_cast<size_t>(reason)].Add();
  return FetchFailure{block, reason};
}

std::optional<FetchStream::Item> LayeredFetch::EmitEnded(MissReason reason) {
  next_block_ -= static_cast<uint32_t>(ahead_.slots.size());
  EndWindow(ahead_);
  const uint32_t end = first_block_ + static_cast<uint32_t>(keys_.size());
  while (ended_slot_ < current_.slots.size()) {
    const FetchSlot& slot = current_.slots[ended_slot_++];
    if (!slot.failure_told) return Fail(slot.block, reason);
  }
  EndWindow(current_);
  if (next_block_ >= end) return std::nullopt;
  return Fail(BlockAt(next_block_++), reason);
}

TierKind LayeredFetch::MatchedTier(uint32_t block) const {
  uint32_t at = 0;
  for (const BlockIndex::Run& run : lease_->runs) {
    at += run.blocks;
    if (block < at) return run.tier;
  }
  return TierKind::kHost;
}

}  // namespace cairn::cache
