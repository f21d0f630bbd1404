#include "services/cache/tier/disk/collection.h"

#include <algorithm>

namespace cairn::cache::disk {

void LiveValues::Seal(uint64_t horizon) {
  horizon_ = horizon;
  std::sort(values_.begin(), values_.end());
  bytes_before_.assign(1, 0);
  bytes_before_.reserve(values_.size() + 1);
  for (const auto& [sequence, bytes] : values_) bytes_before_.push_back(bytes_before_.back() + bytes);
}

size_t LiveValues::LowerBound(uint64_t sequence) const {
  const auto it = std::lower_bound(
      values_.begin(), values_.end(), sequence,
      [](const std::pair<uint64_t, uint32_t>& value, uint64_t s) { return value.first < s; });
  return static_cast<size_t>(it - values_.begin());
}

bool LiveValues::Lives(uint64_t sequence) const {
  if (sequence > horizon_) return true;
  const size_t i = LowerBound(sequence);
  return i < values_.size() && values_[i].first == sequence;
}

uint64_t LiveValues::NextLiving(uint64_t sequence) const {
  if (sequence > horizon_) return sequence;
  const size_t i = LowerBound(sequence);
  return i < values_.size() ? std::min(values_[i].first, horizon_ + 1) : horizon_ + 1;
}

uint64_t LiveValues::BytesIn(uint64_t first, uint64_t last) const {
  return bytes_before_[LowerBound(last + 1)] - bytes_before_[LowerBound(first)];
}

CollectionPlan PlanCollection(std::vector<ValueFile> files, const LiveValues& live,
                              const CollectionPolicy& policy) {
  CollectionPlan plan;
  std::sort(files.begin(), files.end(),
            [](const ValueFile& a, const ValueFile& b) { return a.first < b.first; });
  struct Candidate {
    const ValueFile* file;
    uint64_t living;
  };
  std::vector<Candidate> candidates;  // In key order, the gaps left by files that are not to be touched as null.
  uint64_t garbage = 0;
  for (const ValueFile& file : files) {
    // What was written after the snapshot lives, whatever the snapshot says.
    const uint64_t living =
        file.last > live.horizon() ? file.bytes : std::min(live.BytesIn(file.first, file.last), file.bytes);
    if (file.level == 0 || file.busy) {
      garbage += file.bytes - living;
      candidates.push_back({nullptr, 0});
    } else if (living == 0) {
      plan.drop.emplace_back(file.first, file.last);
    } else {
      garbage += file.bytes - living;
      candidates.push_back({&file, living});
    }
  }

  const auto extend = [&](size_t begin, size_t end, uint64_t living, auto accept) {
    // Grows to the right, then to the left, while the result fits one file.
    while (end < candidates.size() && candidates[end].file && accept(candidates[end]) &&
           living + candidates[end].living <= policy.target_file_bytes) {
      living += candidates[end++].living;
    }
    while (begin > 0 && candidates[begin - 1].file && accept(candidates[begin - 1]) &&
           living + candidates[begin - 1].living <= policy.target_file_bytes) {
      living += candidates[--begin].living;
    }
    return std::make_pair(begin, end);
  };
  const auto take = [&](std::pair<size_t, size_t> range) {
    for (size_t i = range.first; i < range.second; ++i) plan.rewrite.push_back(candidates[i].file->name);
  };

  if (garbage > policy.allowed_garbage_bytes) {
    size_t best = candidates.size();
    double best_share = 0.95;  // A file that lives almost whole gives nothing back.
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (!candidates[i].file) continue;
      const double share = static_cast<double>(candidates[i].living) /
                           static_cast<double>(candidates[i].file->bytes);
      if (share < best_share) {
        best = i;
        best_share = share;
      }
    }
    if (best < candidates.size()) {
      take(extend(best, best + 1, candidates[best].living, [](const Candidate& c) {
        return c.living * 10 < c.file->bytes * 9;
      }));
      return plan;
    }
  }

  const auto small = [&](const Candidate& c) {
    return c.file && c.file->bytes * 4 < policy.target_file_bytes;
  };
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (!small(candidates[i])) continue;
    const auto range = extend(i, i + 1, candidates[i].living, small);
    if (range.second - range.first >= policy.small_files) {
      take(range);
      return plan;
    }
    i = range.second - 1;
  }
  return plan;
}

}  // namespace cairn::cache::disk
