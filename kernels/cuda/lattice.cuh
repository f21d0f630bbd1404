#pragma once
// Whole multiples of a step (codec_kernels.h), and the count of numbers that are not finite: one
// head a launch, since so far only single operations need them.

#include "kernels/cuda/batch.cuh"

namespace cairn::kernels::cuda {

constexpr int kLatticeThreads = 256;

CAIRN_DEVICE int LatticeCode(float x, float inverse) {
  return RoundWithin(x * inverse, -32767.0f, 32767.0f) + kLatticeZero;
}

// Adds 16 partial sums: i and i + 8, then + 4, + 2, + 1.
CAIRN_DEVICE float SumOfParts(const float* parts) {
  const auto two = [&](int i) { return parts[i] + parts[i + 8]; };
  const auto four = [&](int i) { return two(i) + two(i + 4); };
  const auto eight = [&](int i) { return four(i) + four(i + 2); };
  return eight(0) + eight(1);
}

// The step, from the partial sums of squares.
CAIRN_DEVICE uint32_t LatticeStep(const float* parts, int numbers, int64_t step64) {
  const float mean = SumOfParts(parts) / static_cast<float>(numbers);
  return ToHalf(sqrtf(mean) * (static_cast<float>(step64) / 64.0f));
}

// One block.
CAIRN_DEVICE void LatticeEncodeRows(const LatticeEncodeArgs& a) {
  SharedArrays shared;
  float* const parts = shared.Take<float>(16);
  auto* const step = shared.Take<uint32_t>(1);
  const int thread = static_cast<int>(threadIdx.x), dim = static_cast<int>(a.x.dim);
  const int numbers = static_cast<int>(a.x.rows) * dim;
  // Partial sum i has the columns i, i + 16, ... of all rows, in order. So 16 threads add, and the
  // others wait: many whole heads at a time fill the device.
  if (thread < 16) {
    float sum = 0.0f;
    for (int64_t row = 0; row < a.x.rows; ++row) {
      for (int column = thread; column < dim; column += 16) {
        const float x = FromHalf(*Global(a.x.data + row * a.x.stride + column));
        sum += x * x;
      }
    }
    parts[thread] = sum;
  }
  __syncthreads();
  if (thread == 0) {
    *step = LatticeStep(parts, numbers, a.step64);
    *Global(a.step) = static_cast<uint16_t>(*step);
  }
  __syncthreads();
  const float inverse = Reciprocal(*step);
  uint32_t faults = 0;
  for (int i = thread; i < numbers; i += kLatticeThreads) {
    const uint32_t half = *Global(a.x.data + i / dim * a.x.stride + i % dim);
    if (!IsFinite(half)) faults |= kNonFiniteFault;
    *Global(a.out + i) = static_cast<uint16_t>(LatticeCode(FromHalf(half), inverse));
  }
  if (faults != 0) atomicOr(Global(a.faults), faults);
}

CAIRN_DEVICE void LatticeDecodeRows(const LatticeDecodeArgs& a) {
  const int dim = static_cast<int>(a.y.dim), numbers = static_cast<int>(a.y.rows) * dim;
  const int begin = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const float step = FromHalf(a.step);
  for (int i = begin; i < numbers; i += static_cast<int>(gridDim.x * blockDim.x)) {
    const auto n = static_cast<float>(static_cast<int>(*Global(a.in + i)) - kLatticeZero);
    *Global(a.y.data + i / dim * a.y.stride + i % dim) = static_cast<uint16_t>(Decoded(n * step));
  }
  if (begin == 0 && !IsScale(a.step)) atomicOr(Global(a.faults), kScaleFault);
}

CAIRN_DEVICE void CountNonFiniteNumbers(const CountNonFiniteArgs& a) {
  const int dim = static_cast<int>(a.x.dim), numbers = static_cast<int>(a.x.rows) * dim;
  unsigned long long count = 0;
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < numbers;
       i += static_cast<int>(gridDim.x * blockDim.x)) {
    if (!IsFinite(*Global(a.x.data + i / dim * a.x.stride + i % dim))) ++count;
  }
  if (count > 0) atomicAdd(reinterpret_cast<unsigned long long*>(a.count), count);
}

}  // namespace cairn::kernels::cuda

CAIRN_KERNEL void __launch_bounds__(256)
    cairn_lattice_encode(CAIRN_PARAMETER(cairn::kernels::LatticeEncodeArgs) args) {
  cairn::kernels::cuda::LatticeEncodeRows(args);
}
CAIRN_KERNEL void __launch_bounds__(256)
    cairn_lattice_decode(CAIRN_PARAMETER(cairn::kernels::LatticeDecodeArgs) args) {
  cairn::kernels::cuda::LatticeDecodeRows(args);
}
CAIRN_KERNEL void __launch_bounds__(256)
    cairn_count_non_finite(CAIRN_PARAMETER(cairn::kernels::CountNonFiniteArgs) args) {
  cairn::kernels::cuda::CountNonFiniteNumbers(args);
}
