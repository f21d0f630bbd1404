#include "services/cache/store/engine/buffered_read.h"

#include <algorithm>

#include "services/cache/store/block/part_grid.h"
#include "services/cache/store/engine/apart_read.h"

namespace cairn::cache {
namespace {

constexpr uint64_t kPage = Tier::kRangeGrain;
uint64_t PagesIn(uint64_t bytes) { return (bytes + kPage - 1) / kPage; }

// Shared by the callbacks of a block's reads. It keeps the pins, since an extent must not be
// released while it is read.
struct ReadOperation {
  ReadOperation(NodeContext* context_in, LeasePtr lease_in, std::shared_ptr<BufferedRead> read_in,
                const FetchSlot& slot)
      : context(*context_in),
        token(&context_in->in_flight),
        lease(std::move(lease_in)),
        pins(slot.pins),
        read(std::move(read_in)),
        reads(slot.reads),
        tier(slot.tier),
        bytes(slot.buffer_bytes()) {
    if (reads != nullptr) reads->fetch_add(1);
    if (!read->apart) context.pace[tier].Begin();
  }
  void PartEnded(const Status& status) {
    if (!read->PartEnded(status)) return;
    // Small reads say little about the pace of whole blocks.
    if (!read->apart) context.pace[tier].End(read->Outcome().ok() ? bytes : 0);
    if (reads == nullptr || reads->fetch_sub(1) == 1) context.progress.Notify();
  }

  NodeContext& context;
  InFlight::Token token;  // First made, last gone.
  const LeasePtr lease;
  const std::shared_ptr<PathPins> pins;
  const std::shared_ptr<BufferedRead> read;
  const std::shared_ptr<std::atomic<uint32_t>> reads;
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
  const size_t rounded = std::max<uint64_t>(1, PagesIn(stretch.size)) * kPage;
  buffers.emplace_back(static_cast<std::byte*>(std::aligned_alloc(kPage, rounded)));
  stretches.push_back(stretch);
  if (buffers.back() != nullptr) return OkStatus();
  return Errorf(StatusCode::kResourceExhausted, "no memory for {} bytes", rounded);
}

void ReadStretches(const FetchServices& services, const LeasePtr& lease,
                   const std::shared_ptr<BufferedRead>& read, FetchSlot& slot) {
  slot.read = read;
  slot.state = FetchSlot::State::kReading;
  auto operation = std::make_shared<ReadOperation>(services.context, lease, read, slot);
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
      [operation, key = slot.key, places = slot.places, place_of = std::move(place_of),
       learn = slot.whole && slot.rows != nullptr](size_t part, Status status) {
        NodeContext& context = operation->context;
        const NamespaceState& ns = *operation->lease->ns;
        const PartPlace& place = places[place_of[part]];
        // For slices, the read of the header has asked, perhaps in an earlier fetch of the lease.
        if (status.ok() && !operation->read->slices) {
          status = context.CheckOwner(ns, key, place, operation->tier);
        }
        // On the thread of the tier, which hashes what it reads.
        if (status.ok() && learn) {
          LearnPart(operation->lease, operation->tier, place, operation->read->bytes(part),
                    &context.memory);
        }
        operation->PartEnded(status);
      });
}

void StartRead(const FetchServices& services, const LeasePtr& lease, FetchSlot& slot) {
  std::optional<std::vector<BufferedRead::Stretch>> known;
  if (slot.apart_bytes > 0) known = KnownSlices(lease, slot);
  if (known) {
    slot.apart_bytes = 0;
    for (const auto& stretch : *known) slot.apart_bytes += PagesIn(stretch.size) * kPage;
  }
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
  read->slices = known.has_value();
  for (size_t i = 0; known && i < known->size(); ++i) {
    if (!read->Add((*known)[i]).ok()) return slot.Fail(MissReason::kRefused);
  }
  for (size_t i = 0; !known && i < slot.places.size(); ++i) {
    const PartPlace& place = slot.places[i];
    const uint64_t bytes = place.bytes[slot.tier];
    BufferedRead::Stretch stretch{.place = i, .size = bytes};
    if (read->apart) {
      stretch.size = std::min(bytes, HeaderBytesToRead(slot, place.rect));
      if (stretch.size == 0) continue;
    }
    if (!read->Add(stretch).ok()) return slot.Fail(MissReason::kRefused);
  }
  ReadStretches(services, lease, read, slot);
  if (slot.apart_bytes > 0) NoteApart(services, lease, slot);
}

void FinishRead(const FetchServices& services, const LeasePtr& lease, FetchSlot& slot) {
  Status status = slot.read->Outcome();
  NamespaceState& ns = *lease->ns;
  const std::shared_ptr<BufferedRead> read = std::move(slot.read);
  if (read->apart && status.ok() && !read->slices) {
    status = ReadSlices(services, lease, read, slot);
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
