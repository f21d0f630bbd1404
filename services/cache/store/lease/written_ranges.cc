#include "services/cache/store/lease/written_ranges.h"

#include <algorithm>

namespace cairn::cache {

bool WrittenRanges::Add(uint32_t begin, uint32_t end) {
  if (begin >= end) return true;
  if (!ranges_.empty() && begin >= ranges_.back().begin && begin <= ranges_.back().end) {
    ranges_.back().end = std::max(ranges_.back().end, end);
    return true;
  }
  // Those that touch the new one become one with it.
  const auto first = std::find_if(ranges_.begin(), ranges_.end(),
                                  [&](const Range& range) { return range.end >= begin; });
  const auto last =
      std::find_if(first, ranges_.end(), [&](const Range& range) { return range.begin > end; });
  if (first == last) {
    if (ranges_.size() == kMaxRanges) return false;
    ranges_.insert(first, Range{begin, end});
    return true;
  }
  first->begin = std::min(first->begin, begin);
  first->end = std::max((last - 1)->end, end);
  ranges_.erase(first + 1, last);
  return true;
}

uint32_t WrittenRanges::FirstMissing() const {
  return ranges_.empty() || ranges_.front().begin > 0 ? 0 : ranges_.front().end;
}

}  // namespace cairn::cache
