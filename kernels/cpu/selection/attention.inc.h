// Attention weights of a window of queries, and sums of them. Included through selection.inc.h.

namespace cairn::kernels::CAIRN_KERNEL_NS {

// Logits of rows [0, rows) with all keys that the last of them sees, tile by tile. Columns behind a
// row's own token are written too, up to the tile's end or `limit`.
static void Logits(const WindowAttentionArgs& a, int64_t limit) {
  float* tile = reinterpret_cast<float*>(a.scratch);
  const int64_t dim = a.keys.kv.head_dim;
  const int64_t seen = a.first_row + a.rows;
  for (int64_t t = 0; t < seen; t += kSelectionTile) {
    LoadTile(a.keys, t, tile);
    // Rows before the tile see none of it.
    const int64_t from = t > a.first_row ? t - a.first_row : 0;
    const Product p{a.q + from * a.q_stride,
                    a.q_stride,
                    tile,
                    kSelectionTile,
                    a.out + from * a.out_stride + t,
                    a.out_stride,
                    dim,
                    a.scale,
                    false};
    if (t + kSelectionTile <= limit) {
      Multiply(a.rows - from, kSelectionTile, p);
      continue;
    }
    float row[kSelectionTile];
    for (int64_t r = from; r < a.rows; ++r) {
      Product one = p;
      one.a = a.q + r * a.q_stride;
      one.c = row;
      Multiply(1, kSelectionTile, one);
      StoreFirst(a.out + r * a.out_stride + t, row, limit - t);
    }
  }
}

static void WindowAttention(const WindowAttentionArgs& a) {
  if (a.rows == 0) return;
  Logits(a, a.keys.end);
  for (int64_t r = 0; r < a.rows; ++r) {
    float* row = a.out + r * a.out_stride;
    const int64_t visible = a.first_row + r + 1;
    ScaleRow(row, visible, Exponentials(row, visible));
    for (int64_t j = visible; j < a.keys.end; ++j) row[j] = 0.0f;
  }
}

static void AccumulateAttention(const AccumulateAttentionArgs& a) {
  const int64_t width = RoundedTokens(a.keys.end);
  for (int64_t at = 0; at < a.rows; at += kAccumulatedRows) {
    const int64_t rows = Least(kAccumulatedRows, a.rows - at);
    const int64_t first = a.first_row + at;
    Logits({a.keys, a.q + at * a.q_stride, a.q_stride, rows, first, a.scale, a.weights, width,
            a.scratch},
           width);
    float inverse[kAccumulatedRows];
    for (int64_t r = 0; r < rows; ++r) {
      float* row = a.weights + r * width;
      const int64_t visible = first + r + 1;
      inverse[r] = Exponentials(row, visible);
      for (int64_t j = visible; j < first + rows; ++j) row[j] = 0.0f;
    }
    // Rows in order, whatever the cuts: each column is one chain of sums.
    const int64_t cols = first + rows;
    int64_t j = 0;
    for (; j + kLanes <= cols; j += kLanes) {
      F sum = LoadF(a.sums + j);
      for (int64_t r = 0; r < rows; ++r) {
        sum = Fma(LoadF(a.weights + r * width + j), Set(inverse[r]), sum);
      }
      StoreF(a.sums + j, sum);
    }
    for (; j < cols; ++j) {
      float sum = a.sums[j];
      for (int64_t r = 0; r < rows; ++r) {
        sum = __builtin_fmaf(a.weights[r * width + j], inverse[r], sum);
      }
      a.sums[j] = sum;
    }
  }
}

}  // namespace cairn::kernels::CAIRN_KERNEL_NS
