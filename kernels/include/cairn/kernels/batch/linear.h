#pragma once
// Products with weights: y = a w^T, from bfloat16, summed in float32. The rules of
// forward_kernels.h in this folder hold here, too.

#include <cstdint>

namespace cairn::kernels::batch {

struct GemmArgs {
  const uint16_t* a = nullptr;  // [rows][a_stride], bfloat16.
  const uint16_t* w = nullptr;  // [outputs][w_stride], bfloat16.
  float* y = nullptr;           // [rows][y_stride]
  int64_t rows = 0;
  int64_t outputs = 0;
  int64_t cols = 0;  // REQUIRES: a multiple of 8.
  int64_t a_stride = 0;
  int64_t w_stride = 0;
  int64_t y_stride = 0;
  bool accumulate = false;  // y += a w^T.
};

}  // namespace cairn::kernels::batch
