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
