#pragma once
// mixed: int4 by token, with the channels of largest magnitude in half precision (codec_kernels.h,
// docs/inside/formats/codecs.md). A head is: these channels, their numbers by row, the rows of
// int4.

#include "kernels/cuda/int4.cuh"

namespace cairn::kernels::cuda {

constexpr int kMixedThreads = 128;
constexpr int kMixedRows = 64;  // Rows of a block that decodes.
constexpr int kMostOutliers = 64;
constexpr int kMaskWords = static_cast<int>(kMaxHeadDim / 32);
constexpr size_t kMixedSharedBytes =
    (kMaskWords + kMostOutliers) * sizeof(uint32_t) + kMaxHeadDim * sizeof(uint16_t);

// The outliers of a head, in shared memory: a bit for each channel, and their list.
struct Outliers {
  uint32_t* mask = nullptr;      // [kMaskWords]
  uint32_t* channels = nullptr;  // [count], ascending.
  int count = 0;

  CAIRN_DEVICE bool Has(int channel) const { return (mask[channel / 32] >> channel % 32 & 1) != 0; }
  CAIRN_DEVICE uint8_t* NumbersAt(const Head& head, int row) const {
    return head.bytes + 2 * count + static_cast<int64_t>(row) * 2 * count;
  }
};
// Behind the outliers: where the rows of int4 are.
CAIRN_DEVICE Head WithoutOutliers(const Head& head, int outliers) {
  Head rows = head;
  rows.bytes += 2 * outliers + static_cast<int64_t>(head.rows) * 2 * outliers;
  return rows;
}

// One block for a head: its channels must be known before any row is coded.
CAIRN_DEVICE void MixedEncodeHead(const PlaneBatch& batch) {
  SharedArrays shared;
  Outliers outliers;
  outliers.mask = shared.Take<uint32_t>(kMaskWords);
  outliers.channels = shared.Take<uint32_t>(kMostOutliers);
  auto* const top = shared.Take<uint16_t>(kMaxHeadDim);
  outliers.count = batch.outliers;
  Head head;
  if (!OpenHead(batch, &head) || head.rows == 0) return;
  const int thread = static_cast<int>(threadIdx.x), dim = head.dim;
  uint32_t faults = 0;
  const auto number = [&](int row, int channel) {
    const uint32_t bits = NumberAt(head, head.sink + row, channel);
    return head.bfloat16 ? HalfOfBfloat16(bits, &faults) : bits;
  };
  for (int c = thread; c < dim; c += kMixedThreads) {
    // Magnitudes are compared as bits, which order like them.
    uint32_t most = 0;
    for (int row = 0; row < head.rows; ++row) {
      const uint32_t bits = number(row, c) & 0x7fff;
      most = bits > most ? bits : most;
    }
    if (!IsFinite(most)) faults |= kNonFiniteFault;
    top[c] = static_cast<uint16_t>(most);
  }
  if (thread < kMaskWords) outliers.mask[thread] = 0;
  __syncthreads();
  for (int c = thread; c < dim; c += kMixedThreads) {
    int before = 0;  // Channels that are taken rather than this one.
    for (int other = 0; other < dim; ++other) {
      if (top[other] > top[c] || (top[other] == top[c] && other < c)) ++before;
    }
    if (before < outliers.count) atomicOr(outliers.mask + c / 32, 1u << c % 32);
  }
  __syncthreads();
  for (int c = thread; c < dim; c += kMixedThreads) {
    if (!outliers.Has(c)) continue;
    int before = 0;
    for (int other = 0; other < c; ++other) before += outliers.Has(other) ? 1 : 0;
    outliers.channels[before] = static_cast<uint32_t>(c);
    Store2(head.bytes + 2 * before, static_cast<uint32_t>(c));
  }
  __syncthreads();
  for (int i = thread; i < head.rows * outliers.count; i += kMixedThreads) {
    const int row = i / outliers.count, k = i % outliers.count;
    Store2(outliers.NumbersAt(head, row) + 2 * k,
           number(row, static_cast<int>(outliers.channels[k])));
  }
  Report(head, faults);
  Int4TokenEncodeRows<true>(WithoutOutliers(head, outliers.count), outliers.mask);
}

// A block has some rows, since the numbers of outliers are put over those of int4.
CAIRN_DEVICE void MixedDecodeHead(const PlaneBatch& batch) {
  Head head;
  if (!OpenHead(batch, &head)) return;
  const int first = static_cast<int>(blockIdx.x) * kMixedRows, count = batch.outliers;
  if (first >= head.rows) return;
  const int rows = head.rows - first < kMixedRows ? head.rows - first : kMixedRows;
  const int thread = static_cast<int>(threadIdx.x);
  uint32_t faults = 0;
  // All threads look at all channels, and so agree.
  int last = -1;
  for (int k = 0; k < count; ++k) {
    const int channel = static_cast<int>(Load2(head.bytes + 2 * k));
    if (channel <= last || channel >= head.dim) faults |= kScaleFault;
    last = channel;
  }
  if (faults != 0) {
    if (thread == 0) Report(head, faults);
    return;
  }
  const Head coded = WithoutOutliers(head, count);
  const int chunks = head.dim / 32;
  for (int i = thread; i < rows * chunks; i += kMixedThreads) {
    Int4TokenDecodeChunk(coded, first + i / chunks, i % chunks * 32, &faults);
  }
  __syncthreads();
  for (int i = thread; i < rows * count; i += kMixedThreads) {
    const int row = first + i / count, k = i % count;
    const int channel = static_cast<int>(Load2(head.bytes + 2 * k));
    uint32_t half = Load2(head.bytes + 2 * count + (static_cast<int64_t>(row) * count + k) * 2);
    if (!IsFinite(half)) faults |= kScaleFault;
    if (head.bfloat16) half = ToBfloat16(FromHalf(half));
    Store2(AddressOf(head, head.sink + row, channel), half);
  }
  Report(head, faults);
}

}  // namespace cairn::kernels::cuda

CAIRN_KERNEL void __launch_bounds__(128)
    cairn_mixed_encode(CAIRN_PARAMETER(cairn::kernels::cuda::PlaneBatch) batch) {
  cairn::kernels::cuda::MixedEncodeHead(batch);
}
CAIRN_KERNEL void __launch_bounds__(128)
    cairn_mixed_decode(CAIRN_PARAMETER(cairn::kernels::cuda::PlaneBatch) batch) {
  cairn::kernels::cuda::MixedDecodeHead(batch);
}
