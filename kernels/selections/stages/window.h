#pragma once
// Attention of the last queries of a segment, which many scorers begin with.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/selections/stages/scorer.h"
#include "kernels/selections/stages/scratch.h"

namespace cairn::selections {

inline float AttentionScale(const ModelShape& shape) {
  return 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
}

// The queries of the last `window` rows of each layer. Where a segment has fewer, of all its rows.
class WindowQueries {
 public:
  WindowQueries(const ModelShape& shape, int64_t tokens, int64_t window)
      : rows_(std::min(tokens, window)),
        first_(tokens - rows_),
        width_(int64_t{shape.query_heads} * shape.head_dim),
        head_dim_(shape.head_dim),
        queries_(static_cast<size_t>(shape.layers * rows_ * width_)) {}

  int64_t rows() const { return rows_; }
  int64_t first_row() const { return first_; }

  void Take(const QueryRows& queries) {
    const int64_t begin = std::max(first_, queries.first_row);
    const int64_t end = std::min(first_ + rows_, queries.first_row + queries.rows);
    for (int64_t row = begin; row < end; ++row) {
      std::memcpy(Row(queries.layer, row - first_),
                  queries.q + (row - queries.first_row) * queries.stride,
                  static_cast<size_t>(width_) * sizeof(float));
    }
  }

  // Calls use(query head, thread, weights) for each query head of a layer, from the pool's threads.
  // weights: [rows][tokens], a thread's own until its next call.
  template <typename Use>
  void ForEachHead(const Segment& segment, int32_t layer, Use&& use) {
    const ModelShape& shape = segment.shape;
    const int64_t tokens = segment.kv.tokens;
    Scratch scratch(segment.pool.threads(), kernels::SelectionScratchBytes(head_dim_, 0),
                    rows_ * tokens);
    segment.pool.ParallelFor(shape.query_heads, [&](int64_t head, int thread) {
      kernels::WindowAttentionArgs args;
      args.keys = {segment.kv.layers[static_cast<size_t>(layer)], false, head / shape.group(), 0,
                   tokens};
      args.q = Row(layer, 0) + head * head_dim_;
      args.q_stride = width_;
      args.rows = rows_;
      args.first_row = first_;
      args.scale = AttentionScale(shape);
      args.out = scratch.Numbers(thread);
      args.out_stride = tokens;
      args.scratch = scratch.Bytes(thread);
      segment.kernels.window_attention(segment.stream, args);
      use(head, thread, args.out);
    });
  }

 private:
  float* Row(int32_t layer, int64_t row) {
    return queries_.data() + (layer * rows_ + row) * width_;
  }

  int64_t rows_;
  int64_t first_;
  int64_t width_;
  int64_t head_dim_;
  std::vector<float> queries_;
};

// A scorer that asks the segment's last `window` rows, which stay.
class AsksWindow : public Scorer {
 public:
  int64_t FirstObserved(int64_t tokens) const final {
    return tokens > window_ ? tokens - window_ : tokens;
  }
  Protected Protects(int64_t, int64_t) const final { return {0, window_}; }

 protected:
  explicit AsksWindow(int64_t window) : window_(window) {}
  const int64_t window_;
};

// Means over each group of query heads. `heads`: [query_heads][stride]; `out`: [kv_heads][tokens],
// of which the first `cols` columns are written.
inline void MeanOverGroups(const Segment& segment, const float* heads, int64_t stride, int64_t cols,
                           std::span<float> out) {
  for (int32_t g = 0; g < segment.shape.kv_heads; ++g) {
    segment.kernels.reduce_rows(
        segment.stream,
        {kernels::Reduction::kMean, heads + int64_t{g} * segment.shape.group() * stride,
         segment.shape.group(), cols, stride, out.data() + g * segment.kv.tokens});
  }
}

}  // namespace cairn::selections
