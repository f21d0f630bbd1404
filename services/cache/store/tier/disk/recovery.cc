// The extents that an earlier process left.

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/log/log.h"
#include "services/cache/store/tier/disk/extent_store.h"

namespace cairn::cache::disk {
namespace {

constexpr std::string_view kCapacityKey = "i/capacity";
// At most this many records of extents that are not kept wait until they are deleted.
constexpr size_t kForgetAtOnce = 4096;

}  // namespace

bool ExtentStore::Trim::Keeps(const StoredExtent& found) const {
  if (found.order > oldest_order) return true;
  return found.order == oldest_order && found.place.page >= first_page;
}

// Reads the records once more than otherwise, but only where the capacity became smaller.
Result<std::optional<ExtentStore::Trim>> ExtentStore::ChooseTrim() {
  const uint64_t capacity = options_.capacity_bytes;
  uint64_t last_capacity = UINT64_MAX;
  if (const auto stored = parts_.store.GetSmall(kCapacityKey);
      stored.ok() && stored->size() == sizeof(last_capacity)) {
    std::memcpy(&last_capacity, stored->data(), sizeof(last_capacity));
  }
  if (last_capacity != capacity) {
    CAIRN_RETURN_IF_ERROR(parts_.store.PutSmall(
        kCapacityKey, {reinterpret_cast<const char*>(&capacity), sizeof(capacity)}));
  }
  const bool shrunk = last_capacity != UINT64_MAX && capacity < last_capacity;
  if (!shrunk && !table_.FilesAreTooLarge()) return std::optional<Trim>();
  struct Segment {
    uint64_t order = 0;
    uint64_t pages = 0;
    uint32_t end = 0;
  };
  absl::flat_hash_map<uint32_t, Segment> segments;
  CAIRN_RETURN_IF_ERROR(parts_.store.Scan(
      [&](const StoredExtent& found) {
        if (found.length > segment_bytes()) return;
        const auto pages = static_cast<uint32_t>(PagesFor(found.length));
        Segment& segment = segments[found.place.segment];
        segment.order = std::max(segment.order, found.order);
        segment.pages += pages;
        segment.end = std::max(segment.end, found.place.page + pages);
      },
      [](uint64_t) {}));
  std::vector<Segment> newest_first;
  newest_first.reserve(segments.size());
  for (const auto& [index, segment] : segments) newest_first.push_back(segment);
  std::sort(newest_first.begin(), newest_first.end(),
            [](const Segment& a, const Segment& b) { return a.order > b.order; });
  uint64_t left = capacity / kPageBytes;
  for (const Segment& segment : newest_first) {
    if (segment.pages <= left) {
      left -= segment.pages;
      continue;
    }
    const auto kept = static_cast<uint32_t>(std::min<uint64_t>(left, segment.end));
    return std::optional<Trim>({.oldest_order = segment.order, .first_page = segment.end - kept});
  }
  return std::optional<Trim>();
}

void ExtentStore::Restore(const StoredExtent& found, const std::optional<Trim>& trim,
                          const PersistentTier::RecoverVisitor& visitor) {
  const auto forget = [&](uint32_t segment, uint64_t before) {
    records_.Forget({found.id, segment}, /*wake=*/before % kForgetAtOnce == 0);
  };
  switch (table_.Restore(found, !trim || trim->Keeps(found))) {
    case ExtentTable::Restored::kBroken:
      return forget(ForgottenExtent::kNoSegment, ++corrupt_records_);
    case ExtentTable::Restored::kTrimmed:
      return forget(found.place.segment, ++trimmed_extents_);
    case ExtentTable::Restored::kKept:
      break;
  }
  // The process before may have died before it synced these bytes. A block that is found now must
  // survive a power loss after the next Flush, as one that is written now.
  syncs_.Wrote(found.place.segment);
  const Extent extent{found.id, found.length};
  if (!visitor(extent, found.record)) Release(extent);
}

Status ExtentStore::Recover(const PersistentTier::RecoverVisitor& visitor) {
  if (!table_.Untouched()) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "disk tier: call Recover once, before any other call");
  }
  // The process before may have died before it synced the name of a file that it made. Blocks that
  // this one wrote there were gone with the file after a power loss.
  CAIRN_RETURN_IF_ERROR(parts_.files.SyncNames());
  CAIRN_ASSIGN_OR_RETURN(const std::optional<Trim> trim, ChooseTrim());
  // Without all records nothing may be written: what was not seen would be overwritten.
  CAIRN_RETURN_IF_ERROR(
      parts_.store.Scan([&](const StoredExtent& found) { Restore(found, trim, visitor); },
                        [&](uint64_t id) {
                          ++corrupt_records_;
                          records_.Forget({id, ForgottenExtent::kNoSegment}, /*wake=*/false);
                        }));
  if (const uint64_t trimmed = trimmed_extents_; trimmed > 0) {
    log::Info("disk_tier_trimmed",
              {{"capacity", log::Num(options_.capacity_bytes)}, {"extents", log::Num(trimmed)}});
  }
  table_.FinishRecovery(parts_.clock.Now());
  records_.Wake();
  room_.Want();
  return OkStatus();
}

}  // namespace cairn::cache::disk
