#include "services/cache/store/engine/row_fetch.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace cairn::cache {
namespace {

// Hashed by a caller that cannot wait: some 50 us.
constexpr uint64_t kCheckedInHurry = 1 << 20;

// DATA_LOSS: the rows are not all in the pieces.
Status GatherPieces(const SlicePieces& pieces, const SliceRows& rows, const RowGroup& group,
                    std::byte* out) {
  bool all = true;
  rows.ForEachRun(group.head, group.mask, [&](uint64_t offset, uint64_t bytes) {
    const std::span<const std::byte> run = pieces.At(offset, bytes);
    all &= run.size() == bytes;
    std::memcpy(out, run.data(), run.size());
    out += run.size();
  });
  return all ? OkStatus() : Errorf(StatusCode::kDataLoss, "rows that were not read");
}

}  // namespace

Result<std::unique_ptr<FetchStream>> RowFetch::Start(const FetchServices& services,
                                                     const LeasePtr& lease, uint32_t layer,
                                                     std::span<const RowGroup> groups,
                                                     std::string trace) {
  CAIRN_ASSIGN_OR_RETURN(RowLayout layout, RowLayout::Of(lease->ns->spec));
  CAIRN_RETURN_IF_ERROR(layout.Check(layer, groups, lease->covers()));
  auto fetch = std::unique_ptr<RowFetch>(new RowFetch(services, std::move(layout), layer));
  const size_t words = fetch->layout_.mask_words();
  CAIRN_ASSIGN_OR_RETURN(
      fetch->memory_,
      ChargeFetch(&services.context->memory,
                  sizeof(RowFetch) + groups.size() * (sizeof(RowGroup) + sizeof(FetchedRows) +
                                                      words * sizeof(uint64_t))));
  fetch->masks_.reserve(groups.size() * words);
  fetch->groups_.reserve(groups.size());
  std::vector<uint32_t> blocks;
  for (const RowGroup& group : groups) {
    const size_t at = fetch->masks_.size();
    fetch->masks_.insert(fetch->masks_.end(), group.mask.begin(), group.mask.end());
    fetch->groups_.push_back(
        {group.block, group.head, std::span(fetch->masks_).subspan(at, words)});
    if (blocks.empty() || blocks.back() != group.block) blocks.push_back(group.block);
  }
  CAIRN_ASSIGN_OR_RETURN(fetch->slices_,
                         LayeredFetch::Start(services, lease,
                                             {.only = std::move(blocks),
                                              .layers = {layer, layer + 1},
                                              .checks = LayeredFetch::Checks::kOncePerLease,
                                              .rows = fetch.get(),
                                              .trace = std::move(trace)}));
  return fetch;
}

Result<std::optional<FetchStream::Item>> RowFetch::Next(TimePoint deadline) {
  for (;;) {
    if (given_ < ready_.size()) return std::optional<Item>(std::move(ready_[given_++]));
    ready_.clear();
    given_ = 0;
    if (slices_->checked_bytes() - paused_at_ >= kCheckedInHurry) {
      paused_at_ = slices_->checked_bytes();
      if (services_.context->clock->Now() >= deadline) {
        return Errorf(StatusCode::kDeadlineExceeded, "fetch: more slices are to be hashed");
      }
    }
    CAIRN_ASSIGN_OR_RETURN(std::optional<Item> item, slices_->Next(deadline));
    if (!item.has_value()) return item;
    const auto* const slice = std::get_if<FetchedSlice>(&*item);
    if (slice == nullptr) return item;
    if (!Gather(*slice).ok()) {
      return std::optional<Item>(FetchFailure{slice->block, MissReason::kCorrupt});
    }
  }
}

std::span<const RowGroup> RowFetch::GroupsOf(uint32_t block) const {
  const auto [begin, end] =
      std::equal_range(groups_.begin(), groups_.end(), RowGroup{.block = block},
                       [](const RowGroup& a, const RowGroup& b) { return a.block < b.block; });
  return {begin, end};
}

bool RowFetch::EachRun(uint32_t block, uint32_t layer, const format::PartRect& part,
                       format::Codec codec, uint64_t slice_bytes, const Use& use) const {
  const auto rows = layout_.In(layer, part, codec, slice_bytes);
  if (!rows.ok()) return false;
  for (const RowGroup& group : GroupsOf(block)) {
    if (rows->has(group.head)) rows->ForEachRun(group.head, group.mask, use);
  }
  return true;
}

Status RowFetch::Gather(const FetchedSlice& slice) {
  CAIRN_ASSIGN_OR_RETURN(const SliceRows rows,
                         layout_.In(layer_, slice.part, slice.codec, slice.slice_bytes));
  const std::span<const RowGroup> groups = GroupsOf(slice.block);
  uint64_t bytes = 0;
  for (const RowGroup& group : groups) {
    if (rows.has(group.head)) bytes += rows.Bytes(group.head, group.mask);
  }
  const auto buffer = std::make_shared<std::vector<std::byte>>(bytes);
  uint64_t at = 0;
  for (const RowGroup& group : groups) {
    if (!rows.has(group.head)) continue;
    FetchedRows& out = ready_.emplace_back();
    static_cast<RowsInfo&>(out) = {.block = slice.block,
                                   .layer = layer_,
                                   .head = group.head,
                                   .codec = slice.codec,
                                   .slice_xxh3 = slice.xxh3};
    out.tier = slice.tier;
    out.data = std::span(*buffer).subspan(at, rows.Bytes(group.head, group.mask));
    out.hold = buffer;
    if (slice.pieces == nullptr) {
      rows.Gather(slice.data, group.head, group.mask, buffer->data() + at);
    } else {
      CAIRN_RETURN_IF_ERROR(GatherPieces(*slice.pieces, rows, group, buffer->data() + at));
    }
    at += out.data.size();
    out.xxh3 = HashRows(out, group.mask, out.data);
    services_.context->counters.fetched_rows.Add(group.rows());
  }
  Counters& counters = services_.context->counters;
  services_.context->Spend(slices_->ns(), bytes);
  counters.fetched_bytes.Add(bytes);
  if (slice.tier) counters.fetched_from[*slice.tier].Add(bytes);
  return OkStatus();
}

}  // namespace cairn::cache
