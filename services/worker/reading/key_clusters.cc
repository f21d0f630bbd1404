#include "services/worker/reading/key_clusters.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

namespace cairn::worker {
namespace {

constexpr int kMostRounds = 8;
// Rows and centres that a call of the kernel multiplies.
constexpr int64_t kTile = 256;
constexpr int64_t kGroup = 32;

// Means of the rows of each cluster; of those without rows, what they were.
void Average(std::span<const float> rows, int64_t dim, std::span<const uint16_t> of_row,
             std::vector<float>* means) {
  const auto width = static_cast<size_t>(dim);
  std::vector<double> sums(means->size());
  std::vector<int64_t> counts(means->size() / width);
  for (size_t r = 0; r < of_row.size(); ++r) {
    ++counts[of_row[r]];
    for (size_t c = 0; c < width; ++c) {
      sums[of_row[r] * width + c] += static_cast<double>(rows[r * width + c]);
    }
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    const int64_t count = counts[i / width];
    if (count > 0) (*means)[i] = static_cast<float>(sums[i] / static_cast<double>(count));
  }
}

class Lloyd {
 public:
  Lloyd(std::span<const float> keys, int64_t dim, int64_t count, const kernels::Backend& backend)
      : backend_(backend),
        dim_(dim),
        count_(count),
        rows_(keys.begin(), keys.end()),
        keys_(keys.size()),
        of_row_(keys.size() / static_cast<size_t>(dim)),
        products_(static_cast<size_t>(count * kTile)),
        scratch_(kernels::ReadingScratchBytes(kGroup, dim) + 64) {
    kernels::InlineStream stream;
    backend_.forward->to_half(stream, {keys.data(), keys_.data(), std::ssize(keys)});
    ScaleToOne();
    const int64_t n = std::ssize(of_row_);
    for (int64_t c = 0; c < count; ++c) {
      const auto first = rows_.begin() + c * n / count * dim;
      centres_.insert(centres_.end(), first, first + dim);
    }
  }

  std::vector<uint16_t> Run() {
    Assign();
    for (int round = 1; round < kMostRounds; ++round) {
      Average(rows_, dim_, of_row_, &centres_);
      if (!Assign()) break;
    }
    return std::move(of_row_);
  }

 private:
  void ScaleToOne() {
    const auto width = static_cast<size_t>(dim_);
    for (size_t at = 0; at < rows_.size(); at += width) {
      double square = 0;
      for (size_t c = at; c < at + width; ++c) {
        square += static_cast<double>(rows_[c]) * static_cast<double>(rows_[c]);
      }
      scales_.push_back(static_cast<float>(square > 0 ? 1 / std::sqrt(square) : 0));
      for (size_t c = at; c < at + width; ++c) rows_[c] *= scales_.back();
    }
  }
  // Each row to the nearest centre, of equally near ones to the first. Whether any row moved.
  bool Assign() {
    std::vector<float> penalties(static_cast<size_t>(count_));  // Half the squares of the lengths.
    for (size_t i = 0; i < centres_.size(); ++i) {
      penalties[i / static_cast<size_t>(dim_)] += 0.5f * centres_[i] * centres_[i];
    }
    bool moved = false;
    const int64_t n = std::ssize(of_row_);
    for (int64_t first = 0; first < n; first += kTile) {
      const int64_t rows = std::min(kTile, n - first);
      Compare(first, rows);
      float nearness[kTile];
      uint16_t nearest[kTile] = {};
      std::fill_n(nearness, rows, -std::numeric_limits<float>::infinity());
      for (int64_t c = 0; c < count_; ++c) {
        const float* const x = products_.data() + c * kTile;
        const float penalty = penalties[static_cast<size_t>(c)];
        for (int64_t r = 0; r < rows; ++r) {
          const float near = x[r] * scales_[static_cast<size_t>(first + r)] - penalty;
          const bool nearer = near > nearness[r];
          nearness[r] = nearer ? near : nearness[r];
          nearest[r] = nearer ? static_cast<uint16_t>(c) : nearest[r];
        }
      }
      const auto now = of_row_.begin() + first;
      moved = moved || !std::equal(now, now + rows, nearest);
      std::copy_n(nearest, rows, now);
    }
    return moved;
  }
  // Products of centres and keys: products_ [count][kTile].
  void Compare(int64_t first, int64_t rows) {
    kernels::InlineStream stream;
    for (int64_t c = 0; c < count_; c += kGroup) {
      kernels::RowLogitsArgs a;
      a.keys = {.dim = dim_, .data = reinterpret_cast<const std::byte*>(keys_.data())};
      a.keys.data += first * a.keys.row_bytes();
      a.q = centres_.data() + c * dim_;
      a.q_stride = dim_;
      a.group = std::min(kGroup, count_ - c);
      a.end = rows;
      a.logits = products_.data() + c * kTile;
      a.stride = kTile;
      a.scratch = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(scratch_.data()) + 63) &
                                               ~uintptr_t{63});
      backend_.reading->row_logits(stream, a);
    }
  }

  const kernels::Backend& backend_;
  const int64_t dim_;
  const int64_t count_;
  std::vector<float> rows_;     // Rows of length 1.
  std::vector<uint16_t> keys_;  // As they are, in binary16: what the kernel multiplies.
  std::vector<float> scales_;   // The factors that bring the rows to length 1.
  std::vector<uint16_t> of_row_;
  std::vector<float> centres_;  // [count][dim]
  std::vector<float> products_;
  std::vector<std::byte> scratch_;
};

}  // namespace

KeyClusters ClusterKeys(std::span<const float> keys, int64_t dim, int64_t count,
                        const kernels::Backend& backend) {
  KeyClusters clusters;
  clusters.of_row = Lloyd(keys, dim, count, backend).Run();
  clusters.means.resize(static_cast<size_t>(count * dim));
  Average(keys, dim, clusters.of_row, &clusters.means);
  return clusters;
}

}  // namespace cairn::worker
