#include "kernels/codecs/mixed/mixed_plane.h"

#include <algorithm>
#include <cstring>

#include "kernels/codecs/multiple.h"
#include "kernels/codecs/run_inline.h"

namespace cairn::codecs {

std::string MixedPlane::Supports(int64_t, int64_t dim) const {
  if (outliers_ > dim || outliers_ > kMostOutliers) {
    return "dim: got " + std::to_string(dim) +
           ", expected at least outliers=" + std::to_string(outliers_);
  }
  return CheckMultiple(dim, 32);
}

size_t MixedPlane::HeadBytes(int64_t tokens, int64_t dim, const HeadPlace&) const {
  if (tokens == 0) return 0;
  return static_cast<size_t>(2 * outliers_ + 2 * tokens * outliers_ +
                             tokens * kernels::Int4TokenRowBytes(dim, params_.group));
}

bool MixedPlane::EncodeHead(const kernels::HalfRows& x, const HeadPlace&, std::byte* out) const {
  if (x.rows == 0) return true;
  // Magnitudes are compared as bits, which order like them; of equals the lower channel is taken.
  uint16_t top[kernels::kMaxHeadDim] = {};
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t d = 0; d < x.dim; ++d) {
      top[d] = std::max(top[d], static_cast<uint16_t>(x.row(r)[d] & 0x7fff));
    }
  }
  uint16_t channels[kMostOutliers];
  bool taken[kernels::kMaxHeadDim] = {};
  for (int64_t i = 0; i < outliers_; ++i) {
    int64_t best = -1;
    for (int64_t d = 0; d < x.dim; ++d) {
      if (!taken[d] && (best < 0 || top[d] > top[best])) best = d;
    }
    if (top[best] >= 0x7c00) return false;
    taken[best] = true;
    channels[i] = static_cast<uint16_t>(best);
  }
  std::sort(channels, channels + outliers_);
  const auto index_bytes = static_cast<size_t>(2 * outliers_);
  std::memcpy(out, channels, index_bytes);
  std::byte* columns = out + index_bytes;
  std::byte* rows = columns + static_cast<size_t>(x.rows) * index_bytes;
  for (int64_t r = 0; r < x.rows; ++r) {
    uint16_t row[kernels::kMaxHeadDim];
    std::memcpy(row, x.row(r), static_cast<size_t>(2 * x.dim));
    for (int64_t i = 0; i < outliers_; ++i) {
      std::memcpy(columns, &row[channels[i]], 2);
      columns += 2;
      row[channels[i]] = 0;
    }
    if (!EncodeRows(kernels_.int4_token_encode, {row, 1, x.dim, x.dim}, params_, rows)) {
      return false;
    }
    rows += kernels::Int4TokenRowBytes(x.dim, params_.group);
  }
  return true;
}

bool MixedPlane::DecodeHead(const std::byte* in, const HeadPlace&,
                            const kernels::MutableHalfRows& y) const {
  if (y.rows == 0) return true;
  uint16_t channels[kMostOutliers];
  const auto index_bytes = static_cast<size_t>(2 * outliers_);
  std::memcpy(channels, in, index_bytes);
  for (int64_t i = 0; i < outliers_; ++i) {
    if (channels[i] >= y.dim || (i > 0 && channels[i] <= channels[i - 1])) return false;
  }
  const std::byte* columns = in + index_bytes;
  const std::byte* rows = columns + static_cast<size_t>(y.rows) * index_bytes;
  kernels::MutableHalfRows plain = y;
  plain.streaming = false;  // The outliers are written over it.
  if (!DecodeRows(kernels_.int4_token_decode, rows, params_, plain)) return false;
  for (int64_t r = 0; r < y.rows; ++r) {
    for (int64_t i = 0; i < outliers_; ++i, columns += 2) {
      uint16_t bits;
      std::memcpy(&bits, columns, 2);
      if ((bits & 0x7c00) == 0x7c00) return false;
      y.row(r)[channels[i]] = bits;
    }
  }
  return true;
}

}  // namespace cairn::codecs
