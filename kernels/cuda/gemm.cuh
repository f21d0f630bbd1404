#pragma once
// Products of bfloat16 matrices, y = a w^T, summed in float32. Every output is summed over the
// columns in one order, whatever its place in a tile and whatever the other rows are.
//
// Many rows: a block makes 128 x 128 outputs of tiles of 32 columns, of which three are in shared
// memory. Few rows: a block makes 16 outputs of up to 64 rows. The weights are read once, straight
// into registers, and are the left factor; the four warps share the columns.

#include "cairn/kernels/batch/linear.h"
#include "kernels/cuda/batch.cuh"

namespace cairn::kernels::cuda {

// ---- many rows ----

constexpr int kGemmThreads = 256;
constexpr int kGemmTile = 128;  // Rows, and outputs.
constexpr int kGemmStep = 32;   // Columns.
constexpr int kGemmStages = 3;
constexpr int kGemmStage = 2 * kGemmTile * kGemmStep;  // Numbers of both matrices.
constexpr size_t kGemmSharedBytes = kGemmStages * kGemmStage * sizeof(uint16_t);

// As Swizzled in attention.cuh, for rows of 64 bytes: two of them fill the banks.
CAIRN_DEVICE int GemmPlace(int row, int chunk) {
  return row * kGemmStep + ((chunk ^ (row >> 1 & 3)) * 8);
}

// 128 rows of a step of one matrix, of which there are `rows` from `from` on.
CAIRN_DEVICE void FetchGemmRows(const uint16_t* from, int64_t stride, int rows, int cols,
                                uint16_t* to) {
  constexpr int kChunks = kGemmStep / 8;
  CAIRN_UNROLL
  for (int i = 0; i < kGemmTile * kChunks / kGemmThreads; ++i) {
    const int at = i * kGemmThreads + static_cast<int>(threadIdx.x);
    const int row = at / kChunks, chunk = at % kChunks;
    const bool there = row < rows && chunk * 8 < cols;
    CopyAsyncOrZero(to + GemmPlace(row, chunk), there ? from + row * stride + chunk * 8 : from,
                    there);
  }
}

// A warp's 64 rows x 32 outputs.
using GemmSums = float[4][4][4];

CAIRN_DEVICE void MultiplyGemmStep(const uint16_t* a, const uint16_t* w, int lane, GemmSums& sums) {
  CAIRN_UNROLL
  for (int step = 0; step < kGemmStep / 16; ++step) {
    uint32_t left[4][4], right[2][4];
    CAIRN_UNROLL
    for (int i = 0; i < 4; ++i) {
      LoadMatrices<false>(left[i], a + GemmPlace(i * 16 + lane % 16, 2 * step + lane / 16));
    }
    CAIRN_UNROLL
    for (int i = 0; i < 2; ++i) {
      LoadMatrices<false>(
          right[i], w + GemmPlace(i * 16 + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2));
    }
    CAIRN_UNROLL
    for (int i = 0; i < 4; ++i) {
      CAIRN_UNROLL
      for (int j = 0; j < 4; ++j) {
        MultiplyAdd<Number16::kBfloat16>(sums[i][j], left[i],
                                         {right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]});
      }
    }
  }
}

// Two neighbouring outputs, of which `count` exist.
CAIRN_DEVICE void StorePair(float* y, float first, float second, int64_t count, bool accumulate) {
  float* const to = Global(y);
  if (count >= 1) to[0] = accumulate ? to[0] + first : first;
  if (count >= 2) to[1] = accumulate ? to[1] + second : second;
}

// Blocks are (rows, outputs): neighbours share weights.
CAIRN_DEVICE void MultiplyTile(const batch::GemmArgs& a) {
  SharedArrays shared;
  auto* const ring = shared.Take<uint16_t>(kGemmStages * kGemmStage);
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kGemmTile;
  const int64_t first_output = static_cast<int64_t>(blockIdx.y) * kGemmTile;
  const auto least = [](int64_t n) { return static_cast<int>(n < kGemmTile ? n : kGemmTile); };
  const int rows = least(a.rows - first_row), outputs = least(a.outputs - first_output);
  const int cols = static_cast<int>(a.cols), steps = (cols + kGemmStep - 1) / kGemmStep;
  const uint16_t* const left = a.a + first_row * a.a_stride;
  const uint16_t* const right = a.w + first_output * a.w_stride;
  const auto fetch = [&](int step) {
    if (step < steps) {
      uint16_t* const to = ring + step % kGemmStages * kGemmStage;
      const int at = step * kGemmStep;
      FetchGemmRows(left + at, a.a_stride, rows, cols - at, to);
      FetchGemmRows(right + at, a.w_stride, outputs, cols - at, to + kGemmStage / 2);
    }
    CommitCopies();
  };
  CAIRN_UNROLL
  for (int s = 0; s < kGemmStages - 1; ++s) fetch(s);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int row = warp / 4 * 64, output = warp % 4 * 32;
  GemmSums sums = {};
  for (int step = 0; step < steps; ++step) {
    WaitForCopies<kGemmStages - 2>();
    __syncthreads();  // All have come here, so nobody still reads the stage that is filled next.
    fetch(step + kGemmStages - 1);
    const uint16_t* const stage = ring + step % kGemmStages * kGemmStage;
    MultiplyGemmStep(stage + row * kGemmStep, stage + kGemmStage / 2 + output * kGemmStep, lane,
                     sums);
  }
  WaitForCopies<0>();
  CAIRN_UNROLL
  for (int i = 0; i < 4; ++i) {
    CAIRN_UNROLL
    for (int j = 0; j < 4; ++j) {
      CAIRN_UNROLL
      for (int r = 0; r < 2; ++r) {
        const int64_t of = first_row + row + i * 16 + lane / 4 + 8 * r;
        const int64_t at = first_output + output + j * 8 + lane % 4 * 2;
        if (of >= a.rows) continue;
        StorePair(a.y + of * a.y_stride + at, sums[i][j][2 * r], sums[i][j][2 * r + 1],
                  a.outputs - at, a.accumulate);
      }
    }
  }
}

// ---- few rows ----

constexpr int kFewThreads = 128;
constexpr int kFewWarps = kFewThreads / kWarp;
constexpr int kFewOutputs = 16;
constexpr int kFewColumns = 128;  // Columns that a warp takes at a time.

template <int kTiles>
constexpr size_t kFewSharedBytes = kFewWarps* kTiles * 8 * (kFewOutputs + 1) * sizeof(float);

// Eight numbers of a row, or zeros.
CAIRN_DEVICE uint4 LoadOrZero(const uint16_t* row, int64_t col, bool there) {
  if (!there) return {0, 0, 0, 0};
  return *Global(reinterpret_cast<const uint4*>(row + col));
}

// A lane holds 8 neighbouring columns of a row, where the small matrices want it to have columns
// 2t, 2t + 1 and two more. As both factors have the same columns in the same places, it does not
// matter which ones they are.
CAIRN_DEVICE void MultiplyColumns8(const uint4& low, const uint4& high, const uint4& x,
                                   float (&sums)[4]) {
  MultiplyAdd<Number16::kBfloat16>(sums, {low.x, high.x, low.y, high.y}, {x.x, x.y});
  MultiplyAdd<Number16::kBfloat16>(sums, {low.z, high.z, low.w, high.w}, {x.z, x.w});
}

// Blocks are (16 outputs, 8 * kTiles rows).
template <int kTiles>
CAIRN_DEVICE void MultiplyFewRows(const batch::GemmArgs& a) {
  constexpr int kPitch = kFewOutputs + 1;
  SharedArrays shared;
  auto* const parts = shared.Take<float>(kFewWarps * kTiles * 8 * kPitch);  // [warp][row][output]
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const int g = lane / 4, t = lane % 4;
  const int64_t output = static_cast<int64_t>(blockIdx.x) * kFewOutputs;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kTiles * 8;
  const uint16_t* const low = a.w + (output + g) * a.w_stride;
  const uint16_t* const high = low + 8 * a.w_stride;
  const uint16_t* const x = a.a + (first_row + g) * a.a_stride;
  float sums[kTiles][4] = {};
  for (int64_t c = warp * kFewColumns; c < a.cols; c += kFewWarps * kFewColumns) {
    uint4 weights[2][4];
    CAIRN_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int64_t col = c + 32 * i + 8 * t;
      weights[0][i] = LoadOrZero(low, col, col < a.cols && output + g < a.outputs);
      weights[1][i] = LoadOrZero(high, col, col < a.cols && output + g + 8 < a.outputs);
    }
    CAIRN_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int64_t col = c + 32 * i + 8 * t;
      CAIRN_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        const bool there = col < a.cols && first_row + tile * 8 + g < a.rows;
        const uint4 v = LoadOrZero(x + static_cast<int64_t>(tile) * 8 * a.a_stride, col, there);
        MultiplyColumns8(weights[0][i], weights[1][i], v, sums[tile]);
      }
    }
  }
  CAIRN_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    CAIRN_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int row = tile * 8 + 2 * t + i % 2;
      parts[(warp * kTiles * 8 + row) * kPitch + g + i / 2 * 8] = sums[tile][i];
    }
  }
  __syncthreads();
  for (int i = thread; i < kTiles * 8 * kFewOutputs; i += kFewThreads) {
    const int row = i / kFewOutputs, o = i % kFewOutputs;
    if (first_row + row >= a.rows || output + o >= a.outputs) continue;
    float sum = parts[row * kPitch + o];
    CAIRN_UNROLL
    for (int w = 1; w < kFewWarps; ++w) sum += parts[(w * kTiles * 8 + row) * kPitch + o];
    StorePair(a.y + (first_row + row) * a.y_stride + output + o, sum, 0.0f, 1, a.accumulate);
  }
}

}  // namespace cairn::kernels::cuda

CAIRN_KERNEL void __launch_bounds__(256)
    cairn_gemm(CAIRN_PARAMETER(cairn::kernels::batch::GemmArgs) args) {
  cairn::kernels::cuda::MultiplyTile(args);
}
CAIRN_KERNEL void __launch_bounds__(128)
    cairn_gemm_8_rows(CAIRN_PARAMETER(cairn::kernels::batch::GemmArgs) args) {
  cairn::kernels::cuda::MultiplyFewRows<1>(args);
}
CAIRN_KERNEL void __launch_bounds__(128)
    cairn_gemm_16_rows(CAIRN_PARAMETER(cairn::kernels::batch::GemmArgs) args) {
  cairn::kernels::cuda::MultiplyFewRows<2>(args);
}
CAIRN_KERNEL void __launch_bounds__(128)
    cairn_gemm_32_rows(CAIRN_PARAMETER(cairn::kernels::batch::GemmArgs) args) {
  cairn::kernels::cuda::MultiplyFewRows<4>(args);
}
CAIRN_KERNEL void __launch_bounds__(128)
    cairn_gemm_64_rows(CAIRN_PARAMETER(cairn::kernels::batch::GemmArgs) args) {
  cairn::kernels::cuda::MultiplyFewRows<8>(args);
}
