// What an earlier process left.

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/log/log.h"
#include "services/cache/store/tier/disk/impl.h"

namespace cairn::cache {
namespace {

constexpr std::string_view kCapacityKey = "i/capacity";
// Of extents that are not kept, so many wait at most until the records thread is woken.
constexpr size_t kForgetAtOnce = 4096;

}  // namespace

// Reads the records once more than otherwise, but only where the capacity became smaller.
Result<std::optional<DiskTier::Impl::Trim>> DiskTier::Impl::ChooseTrim() {
  uint64_t last_capacity = UINT64_MAX;
  if (const auto stored = store_->GetSmall(kCapacityKey);
      stored.ok() && stored->size() == sizeof(last_capacity)) {
    std::memcpy(&last_capacity, stored->data(), sizeof(last_capacity));
  }
  if (last_capacity != options.capacity_bytes) {
    const std::string_view value(reinterpret_cast<const char*>(&options.capacity_bytes),
                                 sizeof(options.capacity_bytes));
    CAIRN_RETURN_IF_ERROR(store_->PutSmall(kCapacityKey, value));
  }
  {
    MutexLock lock(mu_);
    const bool shrunk = last_capacity != UINT64_MAX && options.capacity_bytes < last_capacity;
    if (!shrunk && !map_.TooLarge()) return std::optional<Trim>();
  }
  struct Segment {
    uint64_t order = 0;
    uint64_t pages = 0;
    uint32_t end = 0;
  };
  absl::flat_hash_map<uint32_t, Segment> segments;
  CAIRN_RETURN_IF_ERROR(Explain(store_->Scan(
      [&](const disk::StoredExtent& found) {
        if (found.length > segment_bytes_) return;
        const auto pages = static_cast<uint32_t>(disk::PagesFor(found.length));
        Segment& segment = segments[found.place.segment];
        segment.order = std::max(segment.order, found.order);
        segment.pages += pages;
        segment.end = std::max(segment.end, found.place.page + pages);
      },
      [](uint64_t) {})));
  std::vector<Segment> newest_first;
  newest_first.reserve(segments.size());
  for (const auto& [index, segment] : segments) newest_first.push_back(segment);
  std::sort(newest_first.begin(), newest_first.end(),
            [](const Segment& a, const Segment& b) { return a.order > b.order; });
  uint64_t left = options.capacity_bytes / disk::kPageBytes;
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

bool DiskTier::Impl::Keeps(const disk::StoredExtent& found, const std::optional<Trim>& trim) {
  // A move of it would find no segment that it fits into.
  if (found.length > segment_bytes_) return false;
  if (used_bytes_ + Rounded(found.length) > options.capacity_bytes) return false;
  if (!trim || found.order > trim->oldest_order) return true;
  return found.order == trim->oldest_order && found.place.page >= trim->first_page;
}

void DiskTier::Impl::Restore(const disk::StoredExtent& found, const std::optional<Trim>& trim,
                             const RecoverVisitor& visitor) {
  const Extent extent{found.id, found.length};
  {
    MutexLock lock(mu_);
    if (forgotten_.size() >= kForgetAtOnce) records_cv_.NotifyOne();
    if (!map_.Restore(found.id, found.place, found.length, found.order)) {
      ++corrupt_records_;  // Its segment is gone.
      ++changes_;
      forgotten_.push_back({found.id, kNoSegment});
      return;
    }
    if (!Keeps(found, trim)) {
      ++trimmed_extents_;
      ++changes_;
      map_.Kill(found.place, found.length);
      forgotten_.push_back({found.id, found.place.segment});
      return;
    }
    entries_[found.id] = {
        .place = found.place, .length = found.length, .state = State::kWritten, .hash = found.hash};
    used_bytes_ += Rounded(found.length);
    // The process before may have died before it synced these bytes. A block that is found now must
    // survive a power loss after the next Flush, as one that is written now.
    unsynced_.insert(found.place.segment);
  }
  if (!visitor(extent, found.record)) Release(extent);
}

Status DiskTier::Impl::Recover(const RecoverVisitor& visitor) {
  {
    MutexLock lock(mu_);
    if (recovered_ || !entries_.empty()) {
      return Errorf(StatusCode::kFailedPrecondition,
                    "disk tier: call Recover once, before any other call");
    }
  }
  CAIRN_ASSIGN_OR_RETURN(const std::optional<Trim> trim, ChooseTrim());
  const Status status =
      store_->Scan([&](const disk::StoredExtent& found) { Restore(found, trim, visitor); },
                   [&](uint64_t id) {
                     ++corrupt_records_;
                     MutexLock lock(mu_);
                     ++changes_;
                     forgotten_.push_back({id, kNoSegment});
                   });
  // Without all records nothing may be written: what was not seen would be overwritten.
  if (!status.ok()) return Explain(status);
  if (const uint64_t trimmed = trimmed_extents_; trimmed > 0) {
    log::Info("disk_tier_trimmed",
              {{"capacity", log::Num(options.capacity_bytes)}, {"extents", log::Num(trimmed)}});
  }
  MutexLock lock(mu_);
  map_.FinishRestore(SteadyClock::Get().Now());
  recovered_ = true;
  WantRoom();
  records_cv_.NotifyOne();
  return OkStatus();
}

}  // namespace cairn::cache
