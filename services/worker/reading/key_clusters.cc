#include "services/worker/reading/key_clusters.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace cairn::worker {
namespace {

constexpr int kMostRounds = 8;
// Rows that a call of the kernel compares with the centres.
constexpr int64_t kTile = 32;

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

std::vector<float> ScaledToOne(std::span<const float> keys, int64_t dim) {
  const auto width = static_cast<size_t>(dim);
  std::vector<float> rows(keys.begin(), keys.end());
  for (size_t at = 0; at < rows.size(); at += width) {
    double square = 0;
    for (size_t c = at; c < at + width; ++c) {
      square += static_cast<double>(rows[c]) * static_cast<double>(rows[c]);
    }
    const auto scale = static_cast<float>(square > 0 ? 1 / std::sqrt(square) : 0);
    for (size_t c = at; c < at + width; ++c) rows[c] *= scale;
  }
  return rows;
}

class Lloyd {
 public:
  Lloyd(std::span<const float> keys, int64_t dim, int64_t count, const kernels::Backend& backend)
      : backend_(backend),
        dim_(dim),
        count_(count),
        rows_(ScaledToOne(keys, dim)),
        of_row_(keys.size() / static_cast<size_t>(dim)),
        half_(static_cast<size_t>(count * dim)),
        logits_(static_cast<size_t>(kTile * count)),
        scratch_(kernels::ReadingScratchBytes(kTile, dim) + 64) {
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
  // Each row to the nearest centre, of equally near ones to the first. Whether any row moved.
  bool Assign() {
    kernels::InlineStream stream;
    backend_.forward->to_half(stream, {centres_.data(), half_.data(), std::ssize(centres_)});
    std::vector<float> penalty(static_cast<size_t>(count_));  // Half the square of the length.
    for (int64_t i = 0; i < std::ssize(centres_); ++i) {
      const float x = centres_[static_cast<size_t>(i)];
      penalty[static_cast<size_t>(i / dim_)] += 0.5f * x * x;
    }
    bool moved = false;
    const int64_t n = std::ssize(of_row_);
    for (int64_t first = 0; first < n; first += kTile) {
      const int64_t tile = std::min(kTile, n - first);
      Compare(stream, first, tile);
      for (int64_t r = 0; r < tile; ++r) {
        const float* const x = logits_.data() + r * count_;
        int64_t best = 0;
        for (int64_t c = 1; c < count_; ++c) {
          const auto at = static_cast<size_t>(c), of_best = static_cast<size_t>(best);
          if (x[c] - penalty[at] > x[best] - penalty[of_best]) best = c;
        }
        uint16_t& now = of_row_[static_cast<size_t>(first + r)];
        moved = moved || now != best;
        now = static_cast<uint16_t>(best);
      }
    }
    return moved;
  }
  // Products of rows and centres: logits_ [tile][count].
  void Compare(kernels::InlineStream& stream, int64_t first, int64_t tile) {
    kernels::RowLogitsArgs a;
    a.keys = {.dim = dim_, .data = reinterpret_cast<const std::byte*>(half_.data())};
    a.q = rows_.data() + first * dim_;
    a.q_stride = dim_;
    a.group = tile;
    a.end = count_;
    a.logits = logits_.data();
    a.stride = count_;
    a.scratch = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(scratch_.data()) + 63) &
                                             ~uintptr_t{63});
    backend_.reading->row_logits(stream, a);
  }

  const kernels::Backend& backend_;
  const int64_t dim_;
  const int64_t count_;
  const std::vector<float> rows_;
  std::vector<uint16_t> of_row_;
  std::vector<float> centres_;  // [count][dim]
  std::vector<uint16_t> half_;  // The same, as the kernel takes them.
  std::vector<float> logits_;
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
