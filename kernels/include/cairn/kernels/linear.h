#pragma once
// y = W x. Two families: products with one row (decode: bound by weight bytes) and with many rows
// (prefill: bound by arithmetic). All work on a range of panels, so that threads can share a
// product. A result never depends on the range or on the other rows. Strides count numbers.

#include <cstddef>
#include <cstdint>

#include "cairn/kernels/packed_matrix.h"

namespace cairn::kernels {

// Rounds a row of `cols` activations (padded with zeros to a full step) for MatVecArgs. The bytes
// are for the kernels of this table only. Finite input.
struct PrepareActivationArgs {
  const float* x = nullptr;
  int64_t cols = 0;
  std::byte* activation = nullptr;
};

// A product with few rows. With `activation` set (see PrepareActivationArgs) a quantised
// matrix is multiplied in integers: activations are rounded to 15 bits with a scale per 32
// columns. Otherwise, and for float formats, in float32.
struct MatVecArgs {
  PackedView w;
  const float* x = nullptr;               // [rows][x_stride], padded with zeros to a full step.
  const std::byte* activation = nullptr;  // [rows][activation_stride bytes], or null.
  float* y = nullptr;                     // [rows][y_stride]
  int64_t rows = 1;
  int64_t x_stride = 0;
  int64_t activation_stride = 0;
  int64_t y_stride = 0;
  int64_t panel_begin = 0;  // y is written for outputs [16 * panel_begin, 16 * panel_end).
  int64_t panel_end = 0;
  bool accumulate = false;  // y += W x.
};

// A product with many rows.
struct GemmArgs {
  PackedView w;
  // [rows rounded up to 16][a_stride], padded with zeros to a full step. The contents of the
  // padding rows do not matter. gemm_f32 reads `a`, gemm_bf16 reads `a_bf16`.
  const float* a = nullptr;
  const uint16_t* a_bf16 = nullptr;
  float* y = nullptr;  // [rows][y_stride]
  int64_t rows = 0;
  int64_t a_stride = 0;
  int64_t y_stride = 0;
  int64_t panel_begin = 0;
  int64_t panel_end = 0;
  bool accumulate = false;
  std::byte* scratch = nullptr;  // GemmScratchBytes(cols), 64-byte aligned; of this call alone.
};

// Two unpacked panels in float32.
constexpr size_t GemmScratchBytes(int64_t cols) {
  return static_cast<size_t>((cols + kStepColumns - 1) / kStepColumns * kStepColumns) * 2 *
             kPanelRows * sizeof(float) +
         4096;
}

// Upper bound over all backends of what prepare_activation writes for one row.
constexpr size_t ActivationBytes(int64_t cols) {
  const int64_t steps = (cols + kStepColumns - 1) / kStepColumns;
  return static_cast<size_t>(steps) * (2 * kStepColumns + 4 + 8 + 4 + 48) / 64 * 64 + 128;
}

}  // namespace cairn::kernels
