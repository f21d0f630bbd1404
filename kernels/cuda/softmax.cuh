#pragma once
// Exponential, logarithm and softmax, the same as on CPUs (kernels/cpu/selection/softmax.inc.h):
// sums over tokens have 16 partial sums, token i in sum i % 16. So 16 lanes have a row, and a warp
// has two.

#include "kernels/cuda/units.cuh"

namespace cairn::kernels::cuda {

constexpr int kRowLanes = 16;
constexpr int kSoftmaxThreads = 256;
constexpr int kRowsOfBlock = kSoftmaxThreads / kRowLanes;

// Not fmaxf: which of two zeros or NaN comes out is that of the CPUs.
CAIRN_DEVICE float Larger(float a, float b) { return a > b ? a : b; }

// As Exp of the CPUs.
CAIRN_DEVICE float ExpOf(float x) {
  x = x > -87.0f ? x : -87.0f;
  x = x < 88.0f ? x : 88.0f;
  const int n = static_cast<int>(rintf(x * 1.44269504088896341f));
  const auto whole = static_cast<float>(n);
  float r = fmaf(whole, -0.693359375f, x);
  r = fmaf(whole, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = fmaf(p, r, 1.3981999507e-3f);
  p = fmaf(p, r, 8.3334519073e-3f);
  p = fmaf(p, r, 4.1665795894e-2f);
  p = fmaf(p, r, 1.6666665459e-1f);
  p = fmaf(p, r, 5.0000001201e-1f);
  p = fmaf(p, r * r, r) + 1.0f;
  return p * FloatOf(static_cast<uint32_t>(n + 127) << 23);
}

// As Log of the CPUs, for normal x in (0, 1].
CAIRN_DEVICE float LogOf(float x) {
  const uint32_t shifted = BitsOf(x) - 0x3f3504f3u;
  const int exponent = static_cast<int>((shifted + (1u << 30)) >> 23) - 128;
  const float m = FloatOf(BitsOf(x) - (static_cast<uint32_t>(exponent) << 23)) - 1.0f;
  const auto e = static_cast<float>(exponent);
  const float z = m * m;
  float p = 7.0376836292e-2f;
  p = fmaf(p, m, -1.1514610310e-1f);
  p = fmaf(p, m, 1.1676998740e-1f);
  p = fmaf(p, m, -1.2420140846e-1f);
  p = fmaf(p, m, 1.4249322787e-1f);
  p = fmaf(p, m, -1.6668057665e-1f);
  p = fmaf(p, m, 2.0000714765e-1f);
  p = fmaf(p, m, -2.4999993993e-1f);
  p = fmaf(p, m, 3.3333331174e-1f);
  p = p * m * z;
  p = fmaf(e, -2.12194440e-4f, p);
  p = fmaf(z, -0.5f, p);
  return fmaf(e, 0.693359375f, m + p);
}

// The sum over the 16 lanes of a row. All lanes of a warp must call these.
CAIRN_DEVICE float SumOfLanes(float x) {
  CAIRN_UNROLL
  for (int d = kRowLanes / 2; d > 0; d /= 2) x += __shfl_xor_sync(kWholeWarp, x, d);
  return x;
}
CAIRN_DEVICE float LargestOfLanes(float x) {
  CAIRN_UNROLL
  for (int d = kRowLanes / 2; d > 0; d /= 2) x = Larger(x, __shfl_xor_sync(kWholeWarp, x, d));
  return x;
}

// x[i] = exp(x[i] - the largest); gives 1 / their sum, or NaN if a number is not finite. A lane
// reads and writes only its own numbers. n = 0: a row that is not there.
CAIRN_DEVICE float Exponentials(float* x, int n, int lane) {
  float top = -INFINITY, check = 0.0f;
  for (int i = lane; i < n; i += kRowLanes) {
    const float v = Global(x)[i];
    top = Larger(top, v);
    check += v - v;  // NaN for infinity too.
  }
  top = LargestOfLanes(top);
  float sum = 0.0f;
  for (int i = lane; i < n; i += kRowLanes) {
    const float e = ExpOf(Global(x)[i] - top);
    Global(x)[i] = e;
    sum += e;
  }
  sum = SumOfLanes(sum);
  return 1.0f / sum + SumOfLanes(check);
}
CAIRN_DEVICE void ScaleRow(float* x, int n, int lane, float factor) {
  for (int i = lane; i < n; i += kRowLanes) Global(x)[i] *= factor;
}

CAIRN_DEVICE int RowLane() { return static_cast<int>(threadIdx.x) % kRowLanes; }
// The index of a row among the block's rows and those of the blocks before it.
CAIRN_DEVICE int RowIndex() {
  return static_cast<int>(blockIdx.x) * kRowsOfBlock + static_cast<int>(threadIdx.x) / kRowLanes;
}

// A row is a unit.
CAIRN_DEVICE void SoftmaxUnits(const UnitBatch<SoftmaxArgs>& batch) {
  const int unit = RowIndex(), lane = RowLane();
  float* x = nullptr;
  int n = 0;
  if (unit < batch.count) {
    x = batch.units[unit].x;
    n = static_cast<int>(batch.units[unit].n);
  }
  ScaleRow(x, n, lane, Exponentials(x, n, lane));
}

CAIRN_DEVICE void EntropyUnits(const UnitBatch<EntropyArgs>& batch) {
  const int unit = RowIndex(), lane = RowLane();
  const float* p = nullptr;
  int n = 0;
  if (unit < batch.count) {
    p = batch.units[unit].p;
    n = static_cast<int>(batch.units[unit].n);
  }
  float sum = 0.0f;
  for (int i = lane; i < n; i += kRowLanes) {
    const float x = Global(p)[i];
    // Numbers below the smallest normal one add nothing that could be seen.
    float within = Larger(x, 1.17549435e-38f);
    within = within < 1.0f ? within : 1.0f;
    sum += x > 0.0f ? x * LogOf(within) : 0.0f;
  }
  sum = SumOfLanes(sum);
  if (unit < batch.count && lane == 0) *Global(batch.units[unit].entropy) = -sum;
}

}  // namespace cairn::kernels::cuda

CAIRN_KERNEL void __launch_bounds__(256) cairn_softmax(CAIRN_UNITS(SoftmaxArgs) batch) {
  cairn::kernels::cuda::SoftmaxUnits(batch);
}
CAIRN_KERNEL void __launch_bounds__(256) cairn_entropy(CAIRN_UNITS(EntropyArgs) batch) {
  cairn::kernels::cuda::EntropyUnits(batch);
}
