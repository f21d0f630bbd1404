#include "services/cache/store/tier/disk/value_file_map.h"

#include <algorithm>
#include <utility>

#include "cairn/common/status.h"

namespace cairn::cache::disk {
namespace {

// At least this share of a segment must be dead for a move to be worth it. Pages that were never
// filled do not count: the place that it moves to has such an end as well.
constexpr uint32_t kWorthMovingShare = 16;
// One for each stream, and one as the target of moves.
constexpr uint64_t kSpareSegments = 3;

}  // namespace

ValueFileMap::ValueFileMap(uint64_t segment_bytes, uint32_t max_segments)
    : segment_pages_(static_cast<uint32_t>(segment_bytes / kPageBytes)),
      max_pages_(uint64_t{max_segments} * segment_pages_) {}

void ValueFileMap::Add(uint32_t index, uint64_t bytes) {
  if (index >= segments_.size()) segments_.resize(index + 1);
  ValueFile& s = segments_[index];
  CAIRN_CHECK(s.state == State::kAbsent);
  s.state = State::kFree;
  s.pages = static_cast<uint32_t>(bytes / kPageBytes);
  ++present_;
  present_pages_ += s.pages;
  if (Ordinary(s)) ++free_;
}

void ValueFileMap::Remove(uint32_t index) {
  ValueFile& s = segments_[index];
  CAIRN_CHECK(s.state == State::kFree);
  --present_;
  if (!s.leaving) present_pages_ -= s.pages;
  if (Ordinary(s)) --free_;
  s = ValueFile();
}

std::optional<uint32_t> ValueFileMap::NextAbsent() const {
  if (present_pages_ + segment_pages_ > max_pages_) return std::nullopt;
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    if (segments_[i].state == State::kAbsent) return i;
  }
  return static_cast<uint32_t>(segments_.size());
}

std::optional<uint32_t> ValueFileMap::Surplus() const {
  for (auto i = static_cast<uint32_t>(segments_.size()); i-- > 0;) {
    if (segments_[i].state != State::kFree) continue;
    if (!Ordinary(segments_[i]) || present_pages_ > max_pages_) return i;
  }
  return std::nullopt;
}

std::optional<uint32_t> ValueFileMap::NextLeaving() const {
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    const ValueFile& s = segments_[i];
    if (s.leaving && s.state == State::kSealed && s.live_pages > 0) return i;
  }
  return std::nullopt;
}

std::optional<Place> ValueFileMap::Allocate(Stream stream, uint64_t id, uint64_t bytes, bool last,
                                            TimePoint now) {
  const auto pages = static_cast<uint32_t>(PagesFor(bytes));
  CAIRN_CHECK(pages <= segment_pages_);
  uint32_t& open = open_[static_cast<size_t>(stream)];
  if (open != kNone && segments_[open].fill_pages + pages > segments_[open].pages) {
    const uint32_t full = std::exchange(open, kNone);
    segments_[full].state = State::kSealed;
    segments_[full].sealed_at = now;
    tail_pages_ += TailOf(segments_[full]);
    Reuse(full);
  }
  if (open == kNone) {
    if (free_ <= (last ? 0u : 1u)) return std::nullopt;
    for (uint32_t i = 0; i < segments_.size() && open == kNone; ++i) {
      if (segments_[i].state == State::kFree && Ordinary(segments_[i])) open = i;
    }
    --free_;
    segments_[open].state = State::kOpen;
    segments_[open].order = next_order_++;
  }
  ValueFile& s = segments_[open];
  const Place place{open, s.fill_pages};
  s.fill_pages += pages;
  s.ids.push_back(id);
  ++s.holds;
  return place;
}

bool ValueFileMap::Continues(Stream stream, uint64_t bytes) const {
  const uint32_t open = open_[static_cast<size_t>(stream)];
  return open != kNone && segments_[open].fill_pages + PagesFor(bytes) <= segments_[open].pages;
}

bool ValueFileMap::Restore(uint64_t id, const Place& place, uint64_t bytes, uint64_t order) {
  restoring_ = true;
  const uint64_t pages = PagesFor(bytes);
  if (place.segment >= segments_.size() || bytes == 0) return false;
  ValueFile& s = segments_[place.segment];
  if (s.state == State::kAbsent || place.page + pages > s.pages) return false;
  if (s.state == State::kFree) {
    if (Ordinary(s)) --free_;
    s.state = State::kSealed;
  }
  s.fill_pages = std::max(s.fill_pages, place.page + static_cast<uint32_t>(pages));
  s.live_pages += static_cast<uint32_t>(pages);
  s.order = std::max(s.order, order);
  s.ids.push_back(id);
  next_order_ = std::max(next_order_, order + 1);
  return true;
}

void ValueFileMap::FinishRestore(TimePoint now) {
  restoring_ = false;
  for (ValueFile& s : segments_) {
    if (s.state != State::kSealed) continue;
    s.sealed_at = now;
    tail_pages_ += TailOf(s);
  }
  // Segments that were refused meanwhile may be forgotten already.
  for (uint32_t i = 0; i < segments_.size(); ++i) Reuse(i);
  if (present_pages_ > max_pages_) ChooseLeaving();
  uint32_t newest = kNone;
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    const ValueFile& s = segments_[i];
    if (s.state != State::kSealed || s.leaving) continue;
    if (newest == kNone || s.order > segments_[newest].order) newest = i;
  }
  if (newest == kNone) return;
  tail_pages_ -= TailOf(segments_[newest]);
  segments_[newest].state = State::kOpen;
  open_[static_cast<size_t>(Stream::kFresh)] = newest;
}

// The newest stay, as far as they leave room for what Fits keeps free.
void ValueFileMap::ChooseLeaving() {
  std::vector<uint32_t> newest_first;
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    if (segments_[i].state == State::kSealed) newest_first.push_back(i);
  }
  std::sort(newest_first.begin(), newest_first.end(),
            [this](uint32_t a, uint32_t b) { return segments_[a].order > segments_[b].order; });
  uint64_t kept = kSpareSegments * segment_pages_;
  for (const uint32_t i : newest_first) {
    ValueFile& s = segments_[i];
    if (kept + s.pages <= max_pages_) {
      kept += s.pages;
      continue;
    }
    s.leaving = true;
    present_pages_ -= s.pages;
    tail_pages_ -= TailOf(s);
  }
}

void ValueFileMap::Settle(const Place& place, uint64_t bytes, bool lives) {
  if (lives) segments_[place.segment].live_pages += static_cast<uint32_t>(PagesFor(bytes));
  Unhold(place.segment);
}

void ValueFileMap::Kill(const Place& place, uint64_t bytes) {
  ValueFile& s = segments_[place.segment];
  s.live_pages -= static_cast<uint32_t>(PagesFor(bytes));
  ++s.holds;
}

void ValueFileMap::Unhold(uint32_t index) {
  CAIRN_CHECK(segments_[index].holds > 0);
  --segments_[index].holds;
  Reuse(index);
}

// Begins the segment again when nothing in it matters any more.
void ValueFileMap::Reuse(uint32_t index) {
  ValueFile& s = segments_[index];
  if (restoring_ || s.live_pages > 0 || s.holds > 0) return;
  if (s.state == State::kSealed) {
    s.state = State::kFree;
    if (Ordinary(s)) ++free_;
    if (!s.leaving) tail_pages_ -= TailOf(s);
  } else if (s.state != State::kOpen) {
    return;
  }
  s.fill_pages = 0;
  s.draining = false;
  s.ids.clear();
}

std::optional<uint32_t> ValueFileMap::TakeVictim() {
  uint32_t oldest = kNone;
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    const ValueFile& s = segments_[i];
    if (s.state != State::kSealed || s.draining || s.live_pages == 0) continue;
    if (oldest == kNone || s.order < segments_[oldest].order) oldest = i;
  }
  if (oldest == kNone) return std::nullopt;
  segments_[oldest].draining = true;
  return oldest;
}

std::optional<uint32_t> ValueFileMap::Cheapest() const {
  uint32_t best = kNone;
  const auto better = [](const ValueFile& a, const ValueFile& b) {
    return a.draining != b.draining ? a.draining : a.live_pages < b.live_pages;
  };
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    const ValueFile& s = segments_[i];
    // One that is empty already frees itself.
    if (s.state != State::kSealed || s.live_pages == 0) continue;
    // Extents that a power loss left may overlap: then more live than there is room for.
    if (s.fill_pages <= s.live_pages) continue;
    if ((s.fill_pages - s.live_pages) * kWorthMovingShare < s.pages) continue;
    if (best == kNone || better(s, segments_[best])) best = i;
  }
  if (best == kNone) return std::nullopt;
  return best;
}

uint32_t ValueFileMap::nearly_free() const {
  return static_cast<uint32_t>(std::count_if(
      segments_.begin(), segments_.end(),
      [](const ValueFile& s) { return s.state == State::kSealed && s.live_pages == 0; }));
}

uint64_t ValueFileMap::draining_bytes() const {
  uint64_t pages = 0;
  for (const ValueFile& s : segments_) {
    if (s.draining) pages += s.live_pages;
  }
  return pages * kPageBytes;
}

bool ValueFileMap::Fits(uint64_t live) const {
  const uint64_t spare = kSpareSegments * segment_pages_;
  const uint64_t usable = max_pages_ > spare ? max_pages_ - spare : 0;
  return PagesFor(live) + tail_pages_ <= usable;
}

bool ValueFileMap::NeedsSpare(Stream stream) const {
  const uint32_t open = open_[static_cast<size_t>(stream)];
  return open != kNone && segments_[open].fill_pages > segments_[open].pages / 2;
}

}  // namespace cairn::cache::disk
