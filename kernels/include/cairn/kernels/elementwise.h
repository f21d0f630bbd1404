#pragma once
// Operations on rows of float32, and conversions. Strides count numbers, not bytes.
//
// NaN and infinities propagate as IEEE arithmetic does, except where an operation says otherwise.
// Empty input (rows, cols, heads or n = 0) is allowed and writes nothing.

#include <cstddef>
#include <cstdint>

namespace cairn::kernels {

// y = x * weight / sqrt(mean(x^2) + eps), row by row. y may be x.
struct RmsNormArgs {
  const float* x = nullptr;       // [rows][cols]
  const float* weight = nullptr;  // [cols]
  float* y = nullptr;             // [rows][cols]
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t x_stride = 0;
  int64_t y_stride = 0;
  float eps = 1e-5f;
};

// Rotary position embedding in place, half-split: pair p of a head is channels (p, p + rope_dim/2);
// channels from rope_dim on stay.
struct RopeArgs {
  float* x = nullptr;  // [rows][heads][head_dim]
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t rope_dim = 0;  // Even, <= head_dim.
  int64_t row_stride = 0;
  const float* cosine = nullptr;  // [rows][rope_dim / 2], for the rows' positions.
  const float* sine = nullptr;
};

// y = silu(gate) * up with silu(g) = g / (1 + exp(-g)). y may be gate or up.
struct SwiGluArgs {
  const float* gate = nullptr;
  const float* up = nullptr;
  float* y = nullptr;
  int64_t n = 0;
};

// IEEE binary16, round to nearest even; too large becomes infinity; NaN stays NaN (any payload).
struct ToHalfArgs {
  const float* x = nullptr;
  uint16_t* y = nullptr;
  int64_t n = 0;
};

struct FromHalfArgs {
  const uint16_t* x = nullptr;
  float* y = nullptr;
  int64_t n = 0;
};

// bfloat16, round to nearest even. Subnormal numbers may become zero.
struct ToBfloat16Args {
  const float* x = nullptr;
  uint16_t* y = nullptr;
  int64_t n = 0;
};

// *index = the place of the largest number; the lowest place among equals. NaN never wins. -1 when
// n = 0 or all are NaN.
struct ArgMaxArgs {
  const float* x = nullptr;
  int64_t n = 0;
  int64_t* index = nullptr;
};

}  // namespace cairn::kernels
