#include "services/cache/store/engine/buffered_read.h"

#include <algorithm>

#include "services/cache/store/block/part_grid.h"
#include "services/cache/store/engine/apart_read.h"

namespace cairn::cache {
namespace {

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
    if (!read->PartEnded(status)) return;
    // Small reads say little about the pace of whole blocks.
    if (!read->apart) context.pace[tier].End(read->Outcome().ok() ? bytes : 0);
    context.progress.Notify();
  }

  NodeContext& context;
  InFlight::Token token;  // First made, last gone.
  const std::shared_ptr<PathPins> pins;
  const std::shared_ptr<BufferedRead> read;
  const TierKind tier;
  const uint64_t bytes;
};

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

}  // namespace

Status BufferedRead::Add(const Stretch& stretch) {
  const size_t rounded = std::max<uint64_t>(1, (stretch.size + 4095) / 4096) * 4096;
  buffers.emplace_back(static_cast<std::byte*>(std::aligned_alloc(4096, rounded)));
  stretches.push_back(stretch);
  if (buffers.back() != nullptr) return OkStatus();
  return Errorf(StatusCode::kResourceExhausted, "no memory for {} bytes", rounded);
}

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
      stretch.size = std::min(bytes, HeaderBytesToRead(slot, place.rect));
      if (stretch.size == 0) continue;
    }
    if (!read->Add(stretch).ok()) return slot.Fail(MissReason::kRefused);
  }
  ReadStretches(services, lease->ns, read, slot);
  if (slot.apart_bytes > 0) NoteApart(services, lease, slot);
}

void FinishRead(const FetchServices& services, const LeasePtr& lease, FetchSlot& slot) {
  Status status = slot.read->Outcome();
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

}  // namespace cairn::cache
