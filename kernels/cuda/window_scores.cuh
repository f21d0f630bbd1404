#pragma once
// Attention weights of a window of queries, and sums of them: logits tile by tile, then softmax row
// by row. Blocks are (tile of keys, tile of rows, query head).

#include "kernels/cuda/softmax.cuh"

namespace cairn::kernels::cuda {

// Rows [first, first + rows) of a unit, of which row r is the token `position` + r.
struct WindowRows {
  const float* q = nullptr;
  int64_t q_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  float scale = 1.0f;
  int rows = 0;
  int position = 0;
  int columns = 0;  // Columns that are written: 0 where a row does not see the key.
};

CAIRN_DEVICE WindowRows RowsOf(const WindowAttentionArgs& a) {
  WindowRows rows;
  rows.q = a.q;
  rows.q_stride = a.q_stride;
  rows.out = a.out;
  rows.out_stride = a.out_stride;
  rows.scale = a.scale;
  rows.rows = static_cast<int>(a.rows);
  rows.position = static_cast<int>(a.first_row);
  rows.columns = static_cast<int>(a.keys.end);
  return rows;
}

// Rows `first` to first + kAccumulatedRows - 1 of those that are summed.
CAIRN_DEVICE WindowRows RowsOf(const AccumulateAttentionArgs& a, int first) {
  WindowRows rows;
  rows.q = a.q + first * a.q_stride;
  rows.q_stride = a.q_stride;
  rows.out = a.weights;
  rows.out_stride = RoundedTokens(a.keys.end);
  rows.scale = a.scale;
  rows.rows = LeastOf(kAccumulatedRows, a.rows - first);  // Not positive: there are no more.
  rows.position = static_cast<int>(a.first_row) + first;
  rows.columns = rows.position + rows.rows;
  return rows;
}

CAIRN_DEVICE void LogitsTile(const TokenRows& keys, const WindowRows& w) {
  SharedArrays shared;
  const ProductTile tile(&shared);
  const int first_key = static_cast<int>(blockIdx.x) * kProductTile;
  const int first_row = static_cast<int>(blockIdx.y) * kProductTile;
  if (first_key >= w.columns || first_row >= w.rows) return;
  const int last_row = LeastOf(first_row + kProductTile, w.rows) - 1;
  float acc[4][4] = {};
  if (first_key <= w.position + last_row) {
    tile.Open(keys, first_key);
    tile.Multiply(w.q + first_row * w.q_stride, w.q_stride, w.rows - first_row,
                  static_cast<int>(keys.kv.head_dim), acc);
  }
  CAIRN_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int row = first_row + tile.row() + i;
    if (row >= w.rows) continue;
    float* const out = Global(w.out + row * w.out_stride);
    CAIRN_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int key = first_key + tile.token() + j;
      if (key < w.columns) out[key] = key <= w.position + row ? acc[i][j] * w.scale : 0.0f;
    }
  }
}

// ---- weights ----

CAIRN_DEVICE void WindowLogits(const UnitBatch<WindowAttentionArgs>& batch) {
  const WindowAttentionArgs& a = batch.units[blockIdx.z];
  LogitsTile(a.keys, RowsOf(a));
}

CAIRN_DEVICE void WindowWeights(const UnitBatch<WindowAttentionArgs>& batch) {
  const WindowAttentionArgs& a = batch.units[blockIdx.z];
  const int row = RowIndex(), lane = RowLane();
  float* x = nullptr;
  int visible = 0;
  if (row < a.rows) {
    x = a.out + row * a.out_stride;
    visible = static_cast<int>(a.first_row) + row + 1;
  }
  ScaleRow(x, visible, lane, Exponentials(x, visible, lane));
}

// ---- their sums ----
// kAccumulatedRows rows at a time: logits, exponentials, and a chain of sums for each key.

CAIRN_DEVICE void SummedLogits(const UnitBatch<AccumulateAttentionArgs>& batch, int first) {
  const AccumulateAttentionArgs& a = batch.units[blockIdx.z];
  LogitsTile(a.keys, RowsOf(a, first));
}

// The factor by which the exponentials of each row must be multiplied.
CAIRN_DEVICE float* InverseOfSums(const AccumulateAttentionArgs& a) {
  return Global(reinterpret_cast<float*>(a.scratch));
}
static_assert(SelectionScratchBytes(1, 0) >= kAccumulatedRows * sizeof(float));

CAIRN_DEVICE void SummedExponentials(const UnitBatch<AccumulateAttentionArgs>& batch, int first) {
  const AccumulateAttentionArgs& a = batch.units[blockIdx.z];
  const WindowRows w = RowsOf(a, first);
  const int row = RowIndex(), lane = RowLane();
  float* x = nullptr;
  int visible = 0;
  if (row < w.rows) {
    x = w.out + row * w.out_stride;
    visible = w.position + row + 1;
  }
  const float inverse = Exponentials(x, visible, lane);
  if (row < w.rows && lane == 0) InverseOfSums(a)[row] = inverse;
}

CAIRN_DEVICE void SumWeights(const UnitBatch<AccumulateAttentionArgs>& batch, int first) {
  const AccumulateAttentionArgs& a = batch.units[blockIdx.z];
  const WindowRows w = RowsOf(a, first);
  const int key = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (w.rows <= 0 || key >= w.columns) return;
  const float* const inverse = InverseOfSums(a);
  float sum = Global(a.sums)[key];
  for (int row = 0; row < w.rows; ++row) {
    sum = fmaf(Global(w.out)[row * w.out_stride + key], inverse[row], sum);
  }
  Global(a.sums)[key] = sum;
}

}  // namespace cairn::kernels::cuda

CAIRN_KERNEL void __launch_bounds__(256)
    cairn_window_logits(CAIRN_UNITS(WindowAttentionArgs) batch) {
  cairn::kernels::cuda::WindowLogits(batch);
}
CAIRN_KERNEL void __launch_bounds__(256)
    cairn_window_weights(CAIRN_UNITS(WindowAttentionArgs) batch) {
  cairn::kernels::cuda::WindowWeights(batch);
}
CAIRN_KERNEL void __launch_bounds__(256)
    cairn_summed_logits(CAIRN_UNITS(AccumulateAttentionArgs) batch, int first) {
  cairn::kernels::cuda::SummedLogits(batch, first);
}
CAIRN_KERNEL void __launch_bounds__(256)
    cairn_summed_exponentials(CAIRN_UNITS(AccumulateAttentionArgs) batch, int first) {
  cairn::kernels::cuda::SummedExponentials(batch, first);
}
CAIRN_KERNEL void __launch_bounds__(256)
    cairn_sum_weights(CAIRN_UNITS(AccumulateAttentionArgs) batch, int first) {
  cairn::kernels::cuda::SumWeights(batch, first);
}
