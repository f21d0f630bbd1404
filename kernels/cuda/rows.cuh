#pragma once
// Rows of a batch: norms, sums, activations, the largest number. A block is a row, or a part of
// one; a thread takes 8 neighbouring numbers at a time. Sums have one order, whatever the other
// rows are.

#include "cairn/kernels/batch/rows.h"
#include "kernels/cuda/batch.cuh"

namespace cairn::kernels::cuda {

constexpr int kRowThreads = 256;

// Eight floats at an address that is aligned to 16 bytes.
CAIRN_DEVICE void Load8Floats(const float* from, float (&x)[8]) {
  CAIRN_UNROLL
  for (int part = 0; part < 2; ++part) {
    const uint4 v = *Global(reinterpret_cast<const uint4*>(from + 4 * part));
    x[4 * part] = FloatOf(v.x);
    x[4 * part + 1] = FloatOf(v.y);
    x[4 * part + 2] = FloatOf(v.z);
    x[4 * part + 3] = FloatOf(v.w);
  }
}
CAIRN_DEVICE void Store8Floats(float* to, const float (&x)[8]) {
  CAIRN_UNROLL
  for (int part = 0; part < 2; ++part) {
    *Global(reinterpret_cast<uint4*>(to + 4 * part)) = {
        BitsOf(x[4 * part]), BitsOf(x[4 * part + 1]), BitsOf(x[4 * part + 2]),
        BitsOf(x[4 * part + 3])};
  }
}
// Eight floats as bfloat16, to an address that is aligned to 16 bytes.
CAIRN_DEVICE void Store8Bfloat16(uint16_t* to, const float (&x)[8]) {
  uint32_t bits[8];
  CAIRN_UNROLL
  for (int i = 0; i < 8; ++i) bits[i] = ToBfloat16(x[i]);
  *Global(reinterpret_cast<uint4*>(to)) = PackHalves(bits);
}

// The sum of a number of each of the block's threads: by halves within a warp, then warp by warp.
// `warps` has room for kRowThreads / 32 numbers.
CAIRN_DEVICE float SumOfBlock(float x, float* warps) {
  CAIRN_UNROLL
  for (int distance = 16; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(kWholeWarp, x, distance);
  }
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = x;
  __syncthreads();
  float sum = warps[0];
  CAIRN_UNROLL
  for (int i = 1; i < kRowThreads / kWarp; ++i) sum += warps[i];
  return sum;
}

CAIRN_DEVICE void RmsNormRow(const batch::RmsNormArgs& a) {
  SharedArrays shared;
  float* const warps = shared.Take<float>(kRowThreads / kWarp);
  const int64_t row = blockIdx.x;
  const int64_t source = a.source_rows == nullptr ? row : *Global(a.source_rows + row);
  const float* const x = a.x + source * a.x_stride;
  uint16_t* const y = a.y + row * a.y_stride;
  const int cols = static_cast<int>(a.cols), first = static_cast<int>(threadIdx.x) * 8;
  float own = 0.0f, v[8], w[8];
  for (int c = first; c < cols; c += kRowThreads * 8) {
    Load8Floats(x + c, v);
    CAIRN_UNROLL
    for (int i = 0; i < 8; ++i) own += v[i] * v[i];
  }
  const float mean = SumOfBlock(own, warps) / static_cast<float>(cols);
  const float inverse = 1.0f / sqrtf(mean + a.eps);
  for (int c = first; c < cols; c += kRowThreads * 8) {
    Load8Floats(x + c, v);
    Load8Floats(a.weight + c, w);
    CAIRN_UNROLL
    for (int i = 0; i < 8; ++i) v[i] = v[i] * inverse * w[i];
    Store8Bfloat16(y + c, v);
  }
}

CAIRN_DEVICE void AddNumbers(const batch::AddArgs& a) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x) * 8;
  if (at + 8 <= a.n) {
    float x[8], y[8];
    Load8Floats(a.x + at, x);
    Load8Floats(a.y + at, y);
    CAIRN_UNROLL
    for (int i = 0; i < 8; ++i) x[i] += y[i];
    Store8Floats(a.x + at, x);
  } else {
    for (int64_t i = at; i < a.n; ++i) *Global(a.x + i) += *Global(a.y + i);
  }
}

// Infinity in the denominator makes silu 0, as it should be.
CAIRN_DEVICE float Silu(float gate) { return gate / (1.0f + expf(-gate)); }

CAIRN_DEVICE void SwiGluPart(const batch::SwiGluArgs& a) {
  const int64_t row = blockIdx.x;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * kRowThreads + threadIdx.x) * 8;
  if (c >= a.cols) return;
  float gate[8], up[8];
  Load8Floats(a.gate + row * a.in_stride + c, gate);
  Load8Floats(a.up + row * a.in_stride + c, up);
  CAIRN_UNROLL
  for (int i = 0; i < 8; ++i) gate[i] = Silu(gate[i]) * up[i];
  Store8Bfloat16(a.y + row * a.y_stride + c, gate);
}

// A number and its place. The larger of two candidates counts; if they are equal, the first. Place
// -1: no number yet.
struct Candidate {
  float value = 0.0f;
  int32_t place = -1;
};
CAIRN_DEVICE Candidate BetterOf(const Candidate& a, const Candidate& b) {
  if (a.place < 0) return b;
  if (b.place < 0) return a;
  if (a.value != b.value) return a.value > b.value ? a : b;
  return a.place < b.place ? a : b;
}

CAIRN_DEVICE void ArgMaxRow(const batch::ArgMaxArgs& a) {
  SharedArrays shared;
  float* const values = shared.Take<float>(kRowThreads / kWarp);
  int32_t* const places = shared.Take<int32_t>(kRowThreads / kWarp);
  const float* const x = Global(a.x + blockIdx.x * a.stride);
  const auto n = static_cast<int32_t>(a.n);
  const int thread = static_cast<int>(threadIdx.x);
  Candidate best;
  for (int32_t i = thread; i < n; i += kRowThreads) {
    const float v = x[i];
    // NaN is not equal to itself.
    if (v == v && (best.place < 0 || v > best.value)) best = {v, i};
  }
  CAIRN_UNROLL
  for (int distance = 16; distance > 0; distance /= 2) {
    const Candidate other{__shfl_xor_sync(kWholeWarp, best.value, distance),
                          __shfl_xor_sync(kWholeWarp, best.place, distance)};
    best = BetterOf(best, other);
  }
  if (thread % kWarp == 0) {
    values[thread / kWarp] = best.value;
    places[thread / kWarp] = best.place;
  }
  __syncthreads();
  if (thread != 0) return;
  CAIRN_UNROLL
  for (int i = 1; i < kRowThreads / kWarp; ++i) best = BetterOf(best, {values[i], places[i]});
  *Global(a.index + blockIdx.x) = best.place;
}

}  // namespace cairn::kernels::cuda

CAIRN_KERNEL void __launch_bounds__(256)
    cairn_rms_norm(CAIRN_PARAMETER(cairn::kernels::batch::RmsNormArgs) args) {
  cairn::kernels::cuda::RmsNormRow(args);
}
CAIRN_KERNEL void __launch_bounds__(256)
    cairn_add(CAIRN_PARAMETER(cairn::kernels::batch::AddArgs) args) {
  cairn::kernels::cuda::AddNumbers(args);
}
CAIRN_KERNEL void __launch_bounds__(256)
    cairn_swiglu(CAIRN_PARAMETER(cairn::kernels::batch::SwiGluArgs) args) {
  cairn::kernels::cuda::SwiGluPart(args);
}
CAIRN_KERNEL void __launch_bounds__(256)
    cairn_arg_max(CAIRN_PARAMETER(cairn::kernels::batch::ArgMaxArgs) args) {
  cairn::kernels::cuda::ArgMaxRow(args);
}
