#include "services/cache/store/engine/apart_read.h"

#include <algorithm>
#include <utility>

#include "services/cache/store/block/part_grid.h"

namespace cairn::cache {
namespace {

constexpr uint64_t kPage = Tier::kRangeGrain;

// The wanted layers that the part has.
std::pair<uint32_t, uint32_t> WantedOf(const FetchSlot& slot, const format::PartRect& rect) {
  return {std::max<uint32_t>(slot.layer_begin, rect.layer_begin),
          std::min<uint32_t>(slot.layer_end, rect.layer_end)};
}

// Pages of the part that these bytes lie in, as far as the part goes.
BufferedRead::Stretch StretchOf(size_t number, const PartPlace& place, TierKind tier,
                                const SlicePages& pages, std::shared_ptr<const KnownPart> known) {
  const uint64_t from = pages.begin * kPage;
  const uint64_t to = std::min<uint64_t>(place.bytes[tier], pages.end * kPage);
  return {
      .place = number, .begin = from, .size = to > from ? to - from : 0, .known = std::move(known)};
}

// Appends the pages of the slice that have wanted rows, if the lease knows the hashes of its pages,
// and if they are not all of them. False: nothing was appended.
bool AddPages(const Lease& lease, const FetchSlot& slot, size_t number,
              const std::shared_ptr<const KnownPart>& known,
              std::vector<BufferedRead::Stretch>* stretches) {
  if (slot.rows == nullptr || slot.layer_end != slot.layer_begin + 1) return false;
  const PartPlace& place = slot.places[number];
  const size_t slice = slot.layer_begin - place.rect.layer_begin;
  const format::SliceEntry& entry = known->slices[slice];
  const std::vector<uint64_t> hashes =
      lease.known.PagesOf(slot.tier, place.extent[slot.tier], slice);
  const SlicePages all = SlicePages::Of(entry);
  if (hashes.empty() || hashes.size() != all.count()) return false;
  PagesToRead pages(entry);
  if (!slot.rows->EachRun(slot.block, slot.layer_begin, place.rect, known->codec, entry.length,
                          [&](uint64_t offset, uint64_t bytes) { pages.Want(offset, bytes); })) {
    return false;
  }
  const std::vector<SlicePages> runs = pages.Runs();
  if (runs.empty() || runs.front().count() == all.count()) return false;
  for (const SlicePages& run : runs) {
    BufferedRead::Stretch& stretch =
        stretches->emplace_back(StretchOf(number, place, slot.tier, run, known));
    const auto first = hashes.begin() + static_cast<ptrdiff_t>(run.begin - all.begin);
    stretch.hashes.assign(first, first + static_cast<ptrdiff_t>(run.count()));
  }
  return true;
}

// Appends what is to be read of the wanted slices of a part. False: they have no bytes.
bool AddSlices(const Lease& lease, const FetchSlot& slot, size_t number,
               std::shared_ptr<const KnownPart> known,
               std::vector<BufferedRead::Stretch>* stretches) {
  const PartPlace& place = slot.places[number];
  const auto [first, end] = WantedOf(slot, place.rect);
  if (end - place.rect.layer_begin > known->slices.size()) return false;
  if (AddPages(lease, slot, number, known, stretches)) return true;
  const format::SliceEntry& begin = known->slices[first - place.rect.layer_begin];
  const format::SliceEntry& last = known->slices[end - 1 - place.rect.layer_begin];
  const SlicePages pages = {SlicePages::Of(begin).begin, SlicePages::Of(last).end};
  stretches->push_back(StretchOf(number, place, slot.tier, pages, std::move(known)));
  return stretches->back().size > 0;
}

}  // namespace

uint64_t HeaderBytesToRead(const FetchSlot& slot, const format::PartRect& rect) {
  const auto [begin, end] = WantedOf(slot, rect);
  if (begin >= end) return 0;
  const uint64_t header = format::HeaderBytes(uint32_t{rect.layer_end} - rect.layer_begin);
  return (header + kPage - 1) / kPage * kPage;
}

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
    // Slices begin and end somewhere in a page.
    bytes += HeaderBytesToRead(slot, place.rect) + *most + 2 * kPage;
  }
  if (bytes == 0 || bytes > slot.bytes / 2) return std::nullopt;
  return bytes;
}

std::optional<std::vector<BufferedRead::Stretch>> KnownSlices(const LeasePtr& lease,
                                                              const FetchSlot& slot) {
  std::vector<BufferedRead::Stretch> stretches;
  for (size_t i = 0; i < slot.places.size(); ++i) {
    const PartPlace& place = slot.places[i];
    if (HeaderBytesToRead(slot, place.rect) == 0) continue;
    auto known = lease->known.Find(slot.tier, place.extent[slot.tier]);
    if (known == nullptr || !AddSlices(*lease, slot, i, std::move(known), &stretches)) {
      return std::nullopt;
    }
  }
  return stretches;
}

Status ReadSlices(const FetchServices& services, const LeasePtr& lease,
                  const std::shared_ptr<BufferedRead>& headers, FetchSlot& slot) {
  const NamespacePtr& ns = lease->ns;
  auto read = std::make_shared<BufferedRead>(services.context);
  read->apart = read->slices = true;
  read->headers = headers;
  std::vector<BufferedRead::Stretch> stretches;
  for (size_t i = 0; i < headers->stretches.size(); ++i) {
    const size_t number = headers->stretches[i].place;
    const PartPlace& place = slot.places[number];
    auto header = CheckedHeader(ns->storage().in_tier[slot.tier], place.rect, headers->bytes(i),
                                place.bytes[slot.tier]);
    if (!header.ok()) return Errorf(StatusCode::kDataLoss, "{}", Message(header.status()));
    auto known = std::make_shared<const KnownPart>(
        KnownPart{.codec = header->codec, .slices = std::move(header->slices)});
    lease->known.Add(slot.tier, place.extent[slot.tier], known, &services.context->memory);
    // Layers without KV have no bytes.
    if (!AddSlices(*lease, slot, number, std::move(known), &stretches)) {
      return Errorf(StatusCode::kUnimplemented, "a part has nothing to read");
    }
  }
  for (const BufferedRead::Stretch& stretch : stretches) {
    CAIRN_RETURN_IF_ERROR(read->Add(stretch));
  }
  ReadStretches(services, lease, read, slot);
  return OkStatus();
}

void LearnPart(const LeasePtr& lease, TierKind tier, const PartPlace& place,
               std::span<const std::byte> bytes, MemoryAccount* account) {
  auto header = CheckedHeader(lease->ns->storage().in_tier[tier], place.rect, bytes);
  if (!header.ok()) return;  // Whoever opens the part says so.
  const auto known = std::make_shared<const KnownPart>(
      KnownPart{.codec = header->codec, .slices = std::move(header->slices)});
  const uint64_t extent = place.extent[tier];
  lease->known.Add(tier, extent, known, account);
  for (size_t i = 0; i < known->slices.size(); ++i) {
    const auto slice = bytes.subspan(known->slices[i].offset, known->slices[i].length);
    if (!format::VerifySlice(known->slices[i], slice)) continue;
    lease->known.AddPages(tier, extent, i, slice, account);
  }
}

void OpenApart(const std::shared_ptr<BufferedRead>& read, FetchSlot& slot) {
  slot.parts.clear();
  for (size_t i = 0; i < read->stretches.size();) {
    const BufferedRead::Stretch& first = read->stretches[i];
    const PartPlace& place = slot.places[first.place];
    FetchSlot::Part& part = slot.parts.emplace_back();
    part.rect = place.rect;
    part.codec = first.known->codec;
    part.buffer = read;
    part.extent = place.extent[slot.tier];
    part.known = first.known;
    if (first.hashes.empty()) {
      part.bytes = read->bytes(i);
      part.begin = first.begin;
      ++i;
      continue;
    }
    auto pieces = std::make_shared<SlicePieces>(
        first.known->slices[slot.layer_begin - place.rect.layer_begin]);
    for (; i < read->stretches.size() && read->stretches[i].place == first.place; ++i) {
      const BufferedRead::Stretch& piece = read->stretches[i];
      const uint64_t begin = piece.begin / kPage;
      pieces->Add({begin, begin + piece.hashes.size()}, read->bytes(i), piece.hashes);
    }
    part.pieces = std::move(pieces);
  }
  slot.SetReady();
}

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

}  // namespace cairn::cache
