#include "services/cache/store/engine/fetch_slot.h"

#include <algorithm>

#include "common/log/log.h"
#include "services/cache/store/block/part_grid.h"
#include "services/cache/store/engine/apart_read.h"
#include "services/cache/store/engine/buffered_read.h"

namespace cairn::cache {
namespace {

constexpr uint8_t kMaxRejections = 3;
// Ticks (some 17 ms) after which a fetch counts as another use of a block: so what is read under a
// long lease stays in host as other blocks in use do.
constexpr uint32_t kUsedAgainAfter = 60;
// Headers that are read and hashed in one step, unless one block has more.
constexpr uint64_t kHeaderBytesAtOnce = 256 << 10;
// Limit for one block, where the caller cannot wait.
constexpr uint64_t kHeaderBytesInHurry = 1 << 20;

// The block lies in buffers of its own.
bool OpenArrived(const NamespaceState& ns, FetchSlot& slot) {
  slot.parts.clear();
  const auto& parts = slot.arriving->block().parts;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto bytes = slot.arriving->bytes(i);
    const auto header = CheckedHeader(ns.storage().in_tier[TierKind::kHost], parts[i].rect, bytes);
    if (!header.ok()) return false;
    slot.parts.push_back({header->rect, header->codec, bytes, slot.arriving, 0});
  }
  slot.SetReady();
  return true;
}

// False: there is no room for it now.
bool AskSource(const FetchServices& services, const LeasePtr& lease, FetchSlot& slot) {
  if (slot.no_room && !services.source_reads->HasBuffer(slot.bytes)) return false;
  slot.no_room = false;
  slot.arriving = services.source_reads->Request(lease->ns, slot.key);
  if (slot.arriving == nullptr) return false;
  slot.state = FetchSlot::State::kArriving;
  return true;
}

// Where this process reads a block that lies in a bit set of tiers: in host, where the bytes are in
// memory already, whatever faster tier has them too. nullopt: nowhere.
std::optional<TierKind> ReadableIn(unsigned tiers) {
  if ((tiers & BlockMeta::Bit(TierKind::kHost)) != 0) return TierKind::kHost;
  return BlockMeta::FastestOf(tiers);
}

// False: it is still under way, or has to be asked for again.
bool TakeArrived(const LeasePtr& lease, FetchSlot& slot) {
  switch (slot.arriving->state()) {
    case ArrivingBlock::State::kUnderWay:
      return false;
    case ArrivingBlock::State::kInHost:
      // The pins keep it there until the slot has found it.
      slot.pins = slot.arriving->pins();
      slot.arriving.reset();
      slot.source_asked = true;
      slot.state = FetchSlot::State::kLocate;
      return true;
    case ArrivingBlock::State::kBuffered:
      if (!OpenArrived(*lease->ns, slot)) slot.Fail(MissReason::kCorrupt);
      return true;
    case ArrivingBlock::State::kNoRoom:
      slot.arriving.reset();
      slot.no_room = true;
      slot.state = FetchSlot::State::kWantSource;
      return false;
    case ArrivingBlock::State::kFailed:
      slot.Fail(slot.arriving->reason());
      return true;
  }
  return true;
}

// Pins the places of blocks that are looked up under one lock. A pin reaches all blocks before it
// in its node of the tree, so neighbours share the pin of the last of them.
class PlacePins {
 public:
  PlacePins(NodeContext* context, NamespacePtr ns) : context_(*context), ns_(std::move(ns)) {}

  // The block has no pin yet that reaches it.
  bool NeedsPin(BlockRef ref) const { return ref.node != last_.node || ref.offset < last_.offset; }
  // Pins what the slot is told, at the latest with End. The slot's old pins end without the lock of
  // the namespace, which they take.
  void Add(NamespaceState& ns, BlockRef ref, FetchSlot& slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(ns.mu) {
    if (NeedsPin(ref)) End(ns);
    last_ = ref;
    if (pins_ == nullptr) pins_ = std::make_shared<PathPins>(&context_, ns_);
    if (slot.pins != nullptr) old_.push_back(std::move(slot.pins));
    slot.pins = pins_;
  }
  void End(NamespaceState& ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(ns.mu) {
    if (last_.node != kNoNode) pins_->Add(ns.index.PinBlock(last_));
    last_ = {};
  }

 private:
  NodeContext& context_;
  const NamespacePtr ns_;
  std::shared_ptr<PathPins> pins_;
  BlockRef last_;  // Not pinned yet.
  std::vector<std::shared_ptr<PathPins>> old_;
};

// The bytes of the headers that opening the slot reads.
uint64_t HeaderBytesOf(const FetchSlot& slot) {
  uint64_t bytes = 0;
  for (const PartPlace& place : slot.places) {
    bytes += format::HeaderBytes(uint32_t{place.rect.layer_end} - place.rect.layer_begin);
  }
  return bytes;
}

// Opens slots whose blocks lie in memory, and asks for the others. Without the namespace's lock.
void OpenLocated(const FetchServices& services, const LeasePtr& lease, std::span<FetchSlot> slots) {
  NodeContext& context = *services.context;
  NamespaceState& ns = *lease->ns;
  bool asked = false;
  std::vector<std::span<const std::byte>> bytes;
  for (FetchSlot& slot : slots) {
    if (slot.state != FetchSlot::State::kLocate) continue;
    slot.apart_bytes = 0;
    if (!context.tiers.IsMapped(slot.tier)) {
      if (const auto apart = ApartBytes(ns, *context.tiers.Get(slot.tier), slot)) {
        slot.apart_bytes = *apart;
        slot.state = FetchSlot::State::kWantBuffer;
        continue;
      }
      if (!slot.promotion_tried && Faster(TierKind::kHost, slot.tier) &&
          services.promoters->IntoHost(slot.tier)
                  ->Request(lease->ns, {{{slot.key, slot.bytes}}}, MovePriority::kDemand, lease)
                  .full == 0) {
        slot.state = FetchSlot::State::kPromoting;
        asked = true;
      } else {
        slot.state = FetchSlot::State::kWantBuffer;
      }
      continue;
    }
    Tier& tier = *context.tiers.Get(slot.tier);
    bytes.clear();
    for (const PartPlace& place : slot.places) bytes.push_back(tier.Map(place.In(slot.tier)));
    if (!OpenParts(ns, slot, bytes, nullptr)) RejectSlot(services, lease, slot, "");
  }
  if (asked) services.promoters->Kick();
}

}  // namespace

bool OpenParts(const NamespaceState& ns, FetchSlot& slot,
               const std::vector<std::span<const std::byte>>& bytes,
               const std::shared_ptr<const void>& buffer) {
  slot.parts.clear();
  slot.parts.reserve(slot.places.size());
  for (size_t i = 0; i < slot.places.size(); ++i) {
    const auto header =
        CheckedHeader(ns.storage().in_tier[slot.tier], slot.places[i].rect, bytes[i]);
    if (!header.ok()) return false;
    slot.parts.push_back(
        {header->rect, header->codec, bytes[i], buffer, slot.places[i].extent[slot.tier]});
  }
  slot.SetReady();
  return true;
}

MissReason WhyGone(const NodeContext& context, const NamespaceState& ns, const BlockKey& key) {
  switch (context.gone.Find(ns.fingerprint, key)) {
    case RecentlyGone::Why::kEvicted:
      return MissReason::kEvicted;
    case RecentlyGone::Why::kCorrupt:
      return MissReason::kCorrupt;
    case RecentlyGone::Why::kExpired:
      return MissReason::kExpired;
    case RecentlyGone::Why::kUnknown:
      break;
  }
  return MissReason::kAbsent;
}

std::optional<format::SliceEntry> FetchSlot::Part::SliceOf(uint32_t layer,
                                                           std::span<const std::byte>* data) const {
  const uint32_t number = layer - rect.layer_begin;
  std::optional<format::SliceEntry> entry;
  if (known == nullptr) {
    entry = format::SliceAt(bytes, number);
  } else if (number < known->slices.size()) {
    entry = known->slices[number];
  }
  if (entry && pieces != nullptr) return entry;
  if (!entry || entry->offset < begin || entry->offset - begin > bytes.size() ||
      entry->length > bytes.size() - (entry->offset - begin)) {
    return std::nullopt;
  }
  *data = bytes.subspan(entry->offset - begin, entry->length);
  return entry;
}

const FetchSlot::Part* FetchSlot::PartOf(uint32_t layer, size_t number) {
  if (!in_layer || *in_layer != layer) EnterLayer(layer);
  return number < begun_end - begun ? &parts[begun + number] : nullptr;
}

void FetchSlot::EnterLayer(uint32_t layer) {
  while (begun_end < parts.size() && parts[begun_end].rect.layer_begin <= layer) ++begun_end;
  // Those that ended go before the others, whose order stays.
  size_t to = begun_end;
  for (size_t from = begun_end; from-- > begun;) {
    if (parts[from].rect.layer_end <= layer) continue;
    --to;
    if (to != from) std::swap(parts[to], parts[from]);
  }
  begun = to;
  in_layer = layer;
}

void FetchSlot::SetReady() {
  const auto before = [](const Part& a, const Part& b) { return a.rect < b.rect; };
  if (!std::is_sorted(parts.begin(), parts.end(), before)) {
    std::sort(parts.begin(), parts.end(), before);
  }
  begun = begun_end = 0;
  in_layer.reset();
  state = State::kReady;
}

LocatedSlots LocateSlots(const FetchServices& services, const LeasePtr& lease,
                         std::span<FetchSlot> slots, const LocateLimits& limits) {
  using Stop = LocatedSlots::Stop;
  WindowRoom* const room = limits.room;
  NodeContext& context = *services.context;
  NamespaceState& ns = *lease->ns;
  size_t count = 0;
  Stop stop = Stop::kNone;
  uint64_t header_bytes = 0;
  PlacePins pins(&context, lease->ns);
  {
    NamespaceLock lock(ns, context.tiers);
    const uint32_t now = context.UseTicksNow();
    for (; count < slots.size(); ++count) {
      FetchSlot& slot = slots[count];
      if (slot.state != FetchSlot::State::kLocate) continue;
      const auto ref =
          ns.dropped.load(std::memory_order_relaxed) ? std::nullopt : ns.index.FindAlive(slot.key);
      std::optional<TierKind> tier;
      if (ref) tier = ReadableIn(ns.index.MetaAt(*ref).tiers & ~slot.unreadable);
      const bool mapped = tier && context.tiers.IsMapped(*tier);
      if (limits.memory_run && !mapped) {
        stop = Stop::kElsewhere;
        break;
      }
      if (tier) slot.places = ns.index.PartsOf(*ref);
      slot.has_pin = mapped && pins.NeedsPin(*ref);
      if (room != nullptr) {
        const uint64_t headers = mapped ? HeaderBytesOf(slot) : 0;
        if (headers > kHeaderBytesAtOnce - std::min(header_bytes, kHeaderBytesAtOnce) &&
            (header_bytes > 0 || (limits.hurry && headers > kHeaderBytesInHurry))) {
          stop = Stop::kEnoughWork;
          break;
        }
        const WindowRoom::Took took = room->Take(slot.MemoryBytes());
        if (took == WindowRoom::Took::kFull) {
          stop = Stop::kNoRoom;
          break;
        }
        if (took == WindowRoom::Took::kNever) {
          slot.places.clear();
          slot.Fail(MissReason::kRefused);
          continue;
        }
        header_bytes += headers;
      }
      if (!tier && slot.located && !slot.source_asked && !ns.dropped.load()) {
        slot.state = FetchSlot::State::kWantSource;
        continue;
      }
      if (!tier) {
        slot.Fail(ref ? slot.missing : WhyGone(context, ns, slot.key));
        continue;
      }
      if (mapped) pins.Add(ns, *ref, slot);
      ns.index.UseAgain(*ref, now, kUsedAgainAfter);
      slot.tier = *tier;
      slot.bytes = ns.index.MetaAt(*ref).bytes_in(slot.tier);
    }
    pins.End(ns);
  }
  OpenLocated(services, lease, slots.first(count));
  return {count, stop};
}

bool AdvanceSlot(const FetchServices& services, const LeasePtr& lease, FetchSlot& slot) {
  for (;;) {
    switch (slot.state) {
      case FetchSlot::State::kReady:
      case FetchSlot::State::kFailed:
        return true;
      case FetchSlot::State::kLocate:
        LocateSlots(services, lease, {&slot, 1}, {});
        break;
      case FetchSlot::State::kPromoting:
        if (services.promoters->IntoHost(slot.tier)->IsPending(*lease->ns, slot.key)) return false;
        slot.promotion_tried = true;
        slot.state = FetchSlot::State::kLocate;
        break;
      case FetchSlot::State::kWantBuffer:
        StartRead(services, lease, slot);
        if (slot.state == FetchSlot::State::kWantBuffer) return false;
        break;
      case FetchSlot::State::kReading:
        if (!slot.read->finished()) return false;
        FinishRead(services, lease, slot);
        break;
      case FetchSlot::State::kWantSource:
        if (!AskSource(services, lease, slot)) return false;
        break;
      case FetchSlot::State::kArriving:
        if (!TakeArrived(lease, slot)) return false;
        break;
    }
  }
}

void RejectSlot(const FetchServices& services, const LeasePtr& lease, FetchSlot& slot,
                const std::string& trace) {
  // Bytes of a buffer were verified when they came, and there is no copy to remove.
  if (slot.arriving != nullptr) return slot.Fail(MissReason::kCorrupt);
  log::Warn("block_corrupt",
            {{"tier", std::string(Name(slot.tier))}, {"key", slot.key.Hex()}, {"trace", trace}});
  services.context->RemoveCorrupt(*lease->ns, slot.key, slot.tier,
                                  slot.places[0].extent[slot.tier]);
  slot.parts.clear();
  // Promoted again once, which repairs the host tier; then read past it.
  slot.promotion_tried = slot.rejections > 0;
  if (++slot.rejections > kMaxRejections) return slot.Fail(MissReason::kCorrupt);
  slot.state = FetchSlot::State::kLocate;
}

}  // namespace cairn::cache
