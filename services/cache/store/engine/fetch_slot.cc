#include "services/cache/store/engine/fetch_slot.h"

#include <algorithm>
#include <cstdlib>

#include "common/log/log.h"
#include "services/cache/store/block/part_grid.h"

namespace cairn::cache {

// Buffers of one block that is read from a tier that is not mapped. `share` goes back with the last
// slice that is held.
struct BufferedRead {
  explicit BufferedRead(NodeContext* context) : token(&context->in_flight) {}
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  InFlight::Token token;  // The budget is the engine's, which waits.
  std::shared_ptr<TransferBudget::Share> share;
  std::vector<std::unique_ptr<std::byte, Free>> buffers;
  // A part of the places' bytes in the buffers: [begin, begin + size). If the block is read apart,
  // these are headers first, and then slices, of a read that keeps that of the headers.
  struct Stretch {
    size_t place = 0;
    uint64_t begin = 0;
    uint64_t size = 0;
    format::Codec codec = format::Codec::kRaw;  // The codec of slices, as the header says.
  };
  std::vector<Stretch> stretches;
  bool apart = false;
  std::shared_ptr<BufferedRead> headers;
  std::span<std::byte> bytes(size_t i) const { return {buffers[i].get(), stretches[i].size}; }
  // RESOURCE_EXHAUSTED: no memory.
  Status Add(const Stretch& stretch) {
    const size_t rounded = std::max<uint64_t>(1, (stretch.size + 4095) / 4096) * 4096;
    buffers.emplace_back(static_cast<std::byte*>(std::aligned_alloc(4096, rounded)));
    stretches.push_back(stretch);
    if (buffers.back() != nullptr) return OkStatus();
    return Errorf(StatusCode::kResourceExhausted, "no memory for {} bytes", rounded);
  }
  Mutex mu;
  size_t done ABSL_GUARDED_BY(mu) = 0;
  bool finished ABSL_GUARDED_BY(mu) = false;
  Status status ABSL_GUARDED_BY(mu);
};

namespace {

constexpr uint64_t kPage = Tier::kRangeGrain;
constexpr uint8_t kMaxRejections = 3;
// Ticks (some 17 ms) after which a fetch counts as another use of a block: so what is read under a
// long lease stays in host as other blocks in use do.
constexpr uint32_t kUsedAgainAfter = 60;
// Headers that are read and hashed in one step, unless one block has more.
constexpr uint64_t kHeaderBytesAtOnce = 256 << 10;
// Limit for one block, where the caller cannot wait.
constexpr uint64_t kHeaderBytesInHurry = 1 << 20;

// Shared by the callbacks of a block's reads. It keeps the pins, since an extent must not be
// released while it is read.
struct ReadOperation {
  ReadOperation(NodeContext* context_in, std::shared_ptr<PathPins> pins_in,
                std::shared_ptr<BufferedRead> read_in, TierKind tier_in, uint64_t bytes_in)
      : context(*context_in),
        token(&context_in->in_flight),
        pins(std::move(pins_in)),
        read(std::move(read_in)),
        tier(tier_in),
        bytes(bytes_in) {
    if (!read->apart) context.pace[tier].Begin();
  }
  void PartEnded(const Status& status) {
    bool ok;
    {
      MutexLock lock(read->mu);
      if (read->status.ok()) read->status = status;
      if (++read->done < read->buffers.size()) return;
      read->finished = true;
      ok = read->status.ok();
    }
    // Small reads say little about the pace of whole blocks.
    if (!read->apart) context.pace[tier].End(ok ? bytes : 0);
    context.progress.Notify();
  }

  NodeContext& context;
  InFlight::Token token;  // First made, last gone.
  const std::shared_ptr<PathPins> pins;
  const std::shared_ptr<BufferedRead> read;
  const TierKind tier;
  const uint64_t bytes;
};

// The parts are there. They are sent in the order of their rectangles, whatever order they came in.
void PartsReady(FetchSlot& slot) {
  const auto before = [](const FetchSlot::Part& a, const FetchSlot::Part& b) {
    return a.rect < b.rect;
  };
  if (!std::is_sorted(slot.parts.begin(), slot.parts.end(), before)) {
    std::sort(slot.parts.begin(), slot.parts.end(), before);
  }
  slot.begun = slot.begun_end = 0;
  slot.in_layer.reset();
  slot.state = FetchSlot::State::kReady;
}

// Bytes -> parts with checked headers. False when a header is bad.
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
  PartsReady(slot);
  return true;
}

// Pins the place that the slot was told. False: the block does not lie there any more.
bool PinPlace(NodeContext& context, const NamespacePtr& ns, FetchSlot& slot) {
  auto pins = std::make_shared<PathPins>(&context, ns);
  {
    NamespaceLock lock(*ns, context.tiers);
    const auto ref = ns->index.FindAlive(slot.key);
    const bool there = !ns->dropped.load(std::memory_order_relaxed) && ref &&
                       ns->index.LiesAt(*ref, slot.tier, slot.places);
    if (!there) return false;
    pins->Add(ns->index.PinBlock(*ref));
  }
  slot.pins = std::move(pins);
  return true;
}

// Reads the stretches of `read` into its buffers.
void ReadStretches(const FetchServices& services, const NamespacePtr& ns,
                   const std::shared_ptr<BufferedRead>& read, FetchSlot& slot) {
  slot.read = read;
  slot.state = FetchSlot::State::kReading;
  auto operation = std::make_shared<ReadOperation>(services.context, slot.pins, read, slot.tier,
                                                   slot.buffer_bytes());
  std::vector<ReadLine::Part> reads;
  std::vector<size_t> place_of;
  reads.reserve(read->buffers.size());
  for (size_t i = 0; i < read->buffers.size(); ++i) {
    const size_t place = read->stretches[i].place;
    place_of.push_back(place);
    ReadLine::Part& part =
        reads.emplace_back(ReadLine::Part{slot.places[place].In(slot.tier), read->bytes(i)});
    if (read->apart) part.offset = read->stretches[i].begin;
  }
  services.context->reads[slot.tier].Read(
      services.context->tiers.Get(slot.tier), std::move(reads),
      [operation, ns, key = slot.key, places = slot.places, place_of = std::move(place_of),
       kind = slot.tier](size_t part, Status status) {
        // For slices, the read of the header has asked.
        if (status.ok() && operation->read->headers == nullptr) {
          status = operation->context.CheckOwner(*ns, key, places[place_of[part]], kind);
        }
        operation->PartEnded(status);
      });
}

// The wanted layers that the part has.
std::pair<uint32_t, uint32_t> WantedOf(const FetchSlot& slot, const format::PartRect& rect) {
  return {std::max<uint32_t>(slot.layer_begin, rect.layer_begin),
          std::min<uint32_t>(slot.layer_end, rect.layer_end)};
}

// Limit for the bytes that are read if header and slices of the wanted layers are read apart.
// nullopt: that is not much less than the whole block, or not possible.
std::optional<uint64_t> ApartBytes(const NamespaceState& ns, const Tier& tier,
                                   const FetchSlot& slot) {
  if (slot.whole || slot.layer_end == 0 || !tier.reads_ranges()) return std::nullopt;
  uint64_t bytes = 0;
  for (const PartPlace& place : slot.places) {
    const auto [begin, end] = WantedOf(slot, place.rect);
    if (begin >= end) continue;
    format::PartRect wanted = place.rect;
    wanted.layer_begin = static_cast<uint16_t>(begin);
    wanted.layer_end = static_cast<uint16_t>(end);
    const auto most = MostSliceBytes(ns.storage().in_tier[slot.tier], wanted);
    if (!most) return std::nullopt;
    const uint64_t header =
        format::HeaderBytes(uint32_t{place.rect.layer_end} - place.rect.layer_begin);
    // Slices begin and end somewhere in a page.
    bytes += (header + kPage - 1) / kPage * kPage + *most + 2 * kPage;
  }
  if (bytes == 0 || bytes > slot.bytes / 2) return std::nullopt;
  return bytes;
}

// Slices that are read from a slower tier again and again cost more than the block once. So when a
// slice is read for the second time under the lease, the block is asked for, behind this read.
void NoteApart(const FetchServices& services, const LeasePtr& lease, const FetchSlot& slot) {
  if (slot.located || lease->blocks == 0 || !Faster(TierKind::kHost, slot.tier)) return;
  bool again = true;
  for (uint32_t layer = slot.layer_begin; layer < slot.layer_end; ++layer) {
    again &= lease->read_apart.Has(slot.block, layer);
    lease->read_apart.Add(slot.block, layer, lease->blocks, lease->ns->spec.layout.Layers(),
                          &services.context->memory);
  }
  if (!again) return;
  lease->read_apart.Forget(slot.block);
  Promoter& promoter = *services.promoters->IntoHost(slot.tier);
  promoter.Request(lease->ns, {{{slot.key, slot.bytes}}}, MovePriority::kDemand, lease);
  promoter.Kick();
}

void StartRead(const FetchServices& services, const LeasePtr& lease, FetchSlot& slot) {
  // Their answers are small, so nothing else slows down who asks for many of them.
  const SessionId reader = slot.apart_bytes > 0 ? services.reader : 0;
  auto share = services.budget->TryTake(slot.buffer_bytes(), reader);
  if (share == nullptr) return;
  if (!PinPlace(*services.context, lease->ns, slot)) {
    slot.state = FetchSlot::State::kLocate;
    return;
  }
  auto read = std::make_shared<BufferedRead>(services.context);
  read->share = std::move(share);
  read->apart = slot.apart_bytes > 0;
  for (size_t i = 0; i < slot.places.size(); ++i) {
    const PartPlace& place = slot.places[i];
    const uint64_t bytes = place.bytes[slot.tier];
    BufferedRead::Stretch stretch{.place = i, .size = bytes};
    if (read->apart) {
      const auto [begin, end] = WantedOf(slot, place.rect);
      if (begin >= end) continue;
      const uint64_t header =
          format::HeaderBytes(uint32_t{place.rect.layer_end} - place.rect.layer_begin);
      stretch.size = std::min(bytes, (header + kPage - 1) / kPage * kPage);
    }
    if (!read->Add(stretch).ok()) return slot.Fail(MissReason::kRefused);
  }
  ReadStretches(services, lease->ns, read, slot);
  if (slot.apart_bytes > 0) NoteApart(services, lease, slot);
}

// The headers are here: reads the slices. DATA_LOSS: a header is bad.
Status ReadSlices(const FetchServices& services, const NamespacePtr& ns,
                  const std::shared_ptr<BufferedRead>& headers, FetchSlot& slot) {
  auto read = std::make_shared<BufferedRead>(services.context);
  read->apart = true;
  read->headers = headers;
  for (size_t i = 0; i < headers->stretches.size(); ++i) {
    const PartPlace& place = slot.places[headers->stretches[i].place];
    const auto header = CheckedHeader(ns->storage().in_tier[slot.tier], place.rect,
                                      headers->bytes(i), place.bytes[slot.tier]);
    if (!header.ok()) return Errorf(StatusCode::kDataLoss, "{}", Message(header.status()));
    const auto [first, end] = WantedOf(slot, place.rect);
    const format::SliceEntry& begin = header->slices[first - place.rect.layer_begin];
    const format::SliceEntry& last = header->slices[end - 1 - place.rect.layer_begin];
    // Pages that the slices lie in, as far as the part goes.
    const uint64_t from = begin.offset / kPage * kPage;
    const uint64_t to = std::min<uint64_t>(place.bytes[slot.tier],
                                           (last.offset + last.length + kPage - 1) / kPage * kPage);
    const uint64_t size = to > from ? to - from : 0;
    CAIRN_RETURN_IF_ERROR(read->Add({headers->stretches[i].place, from, size, header->codec}));
  }
  // Layers without KV have no bytes.
  const bool none = std::any_of(read->stretches.begin(), read->stretches.end(),
                                [](const BufferedRead::Stretch& s) { return s.size == 0; });
  if (none) return Errorf(StatusCode::kUnimplemented, "a part has nothing to read");
  ReadStretches(services, ns, read, slot);
  return OkStatus();
}

// Header and slices are here.
void OpenApart(const std::shared_ptr<BufferedRead>& read, FetchSlot& slot) {
  slot.parts.clear();
  for (size_t i = 0; i < read->stretches.size(); ++i) {
    const PartPlace& place = slot.places[read->stretches[i].place];
    const std::span<const std::byte> head = read->headers->bytes(i);
    slot.parts.push_back({.rect = place.rect,
                          .codec = read->stretches[i].codec,
                          .bytes = read->bytes(i),
                          .buffer = read,
                          .extent = place.extent[slot.tier],
                          .header = head,
                          .begin = read->stretches[i].begin});
  }
  PartsReady(slot);
}

void FinishRead(const FetchServices& services, const LeasePtr& lease, FetchSlot& slot) {
  Status status;
  {
    MutexLock lock(slot.read->mu);
    status = slot.read->status;
  }
  NamespaceState& ns = *lease->ns;
  const std::shared_ptr<BufferedRead> read = std::move(slot.read);
  if (read->apart && status.ok() && read->headers == nullptr) {
    status = ReadSlices(services, lease->ns, read, slot);
    if (status.ok()) return;
  }
  slot.pins.reset();  // The bytes are in buffers.
  if (read->apart && status.ok()) return OpenApart(read, slot);
  if (read->apart && (status.code() == StatusCode::kFailedPrecondition ||
                      status.code() == StatusCode::kUnimplemented)) {
    slot.whole = true;
    slot.state = FetchSlot::State::kLocate;
    return;
  }
  if (status.ok()) {
    std::vector<std::span<const std::byte>> bytes;
    for (size_t i = 0; i < slot.places.size(); ++i) {
      bytes.emplace_back(read->buffers[i].get(), slot.places[i].bytes[slot.tier]);
    }
    if (OpenParts(ns, slot, bytes, read)) return;
    status = Errorf(StatusCode::kDataLoss, "part header");
  }
  const bool bad = status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kNotFound;
  bool elsewhere = true;
  if (bad) {
    elsewhere =
        services.context->RemoveCorrupt(ns, slot.key, slot.tier, slot.places[0].extent[slot.tier]);
  }
  // Without damage, the block may be readable later, and until then in another tier.
  slot.unreadable |= BlockMeta::Bit(slot.tier);
  slot.missing = MissReason::kAbsent;
  if (bad) slot.missing = MissReason::kCorrupt;
  if (status.code() == StatusCode::kResourceExhausted) slot.missing = MissReason::kRefused;
  if (!elsewhere) return slot.Fail(slot.missing);
  slot.state = FetchSlot::State::kLocate;
}

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
  PartsReady(slot);
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
  const auto entry =
      header.empty() ? format::SliceAt(bytes, number) : format::SliceEntryAt(header, number);
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
      case FetchSlot::State::kReading: {
        bool finished;
        {
          MutexLock lock(slot.read->mu);
          finished = slot.read->finished;
        }
        if (!finished) return false;
        FinishRead(services, lease, slot);
        break;
      }
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
