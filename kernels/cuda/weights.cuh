#pragma once
// Weights in the number formats of GGUF (weight_types.h), as floats and as bfloat16. A thread takes
// 8 neighbouring numbers: they share a scale in every format. Blocks are (row, part of it). Blocks
// of weights begin at even addresses or odd ones, so bytes are read one by one.

#include "cairn/kernels/batch/rows.h"
#include "kernels/cuda/rows.cuh"

namespace cairn::kernels::cuda {

constexpr int kWeightThreads = 128;

CAIRN_DEVICE uint32_t ByteOf(const uint8_t* p, int i) { return *Global(p + i); }
CAIRN_DEVICE uint32_t Word4(const uint8_t* p) { return Load2(p) | Load2(p + 2) << 16; }
CAIRN_DEVICE float HalfOf(const uint8_t* p) { return FromHalf(Load2(p)); }
CAIRN_DEVICE float SignedByte(uint32_t byte) {
  return static_cast<float>(static_cast<int32_t>(byte << 24) >> 24);
}

// Nibbles of 8 numbers out of blocks of 2 * width numbers, the low ones first. `at` < 2 * width.
CAIRN_DEVICE void Nibbles(const uint8_t* qs, int at, int width, uint32_t (&q)[8]) {
  const bool high = at >= width;
  const uint8_t* const from = qs + (high ? at - width : at);
  CAIRN_UNROLL
  for (int i = 0; i < 8; ++i) {
    const uint32_t byte = ByteOf(from, i);
    q[i] = high ? byte >> 4 : byte & 15;
  }
}

// Q4_0, Q4_1, Q5_0 and Q5_1: numbers at to at + 7 of a block of 32.
CAIRN_DEVICE void Nibbles32(const uint8_t* block, int at, bool fifth_bit, bool minimum,
                            float (&y)[8]) {
  const float d = HalfOf(block), m = minimum ? HalfOf(block + 2) : 0.0f;
  const uint8_t* const behind = block + (minimum ? 4 : 2);
  const uint32_t high = fifth_bit ? Word4(behind) >> at : 0;
  const int offset = minimum ? 0 : fifth_bit ? 16 : 8;
  uint32_t q[8];
  Nibbles(behind + (fifth_bit ? 4 : 0), at, 16, q);
  CAIRN_UNROLL
  for (int i = 0; i < 8; ++i) {
    const int number = static_cast<int>(q[i] | (high >> i & 1) << 4) - offset;
    y[i] = d * static_cast<float>(number);
    // Not where there is none: 0 would change the sign of a negative zero.
    if (minimum) y[i] += m;
  }
}

// Q4_K and Q5_K: numbers at to at + 7 of a block of 256.
CAIRN_DEVICE void Nibbles256(const uint8_t* block, int at, bool fifth_bit, float (&y)[8]) {
  const int group = at / 32, within = at % 32;
  const uint8_t* const scales = block + 4;
  uint32_t scale, minimum;
  if (group < 4) {
    scale = ByteOf(scales, group) & 63;
    minimum = ByteOf(scales, group + 4) & 63;
  } else {
    const uint32_t low = ByteOf(scales, group + 4);
    scale = (low & 15) | ByteOf(scales, group - 4) >> 6 << 4;
    minimum = low >> 4 | ByteOf(scales, group) >> 6 << 4;
  }
  const float d = HalfOf(block) * static_cast<float>(scale);
  const float m = HalfOf(block + 2) * static_cast<float>(minimum);
  uint32_t q[8];
  Nibbles(block + (fifth_bit ? 48 : 16) + 32 * (group / 2), 32 * (group % 2) + within, 32, q);
  CAIRN_UNROLL
  for (int i = 0; i < 8; ++i) {
    if (fifth_bit) q[i] |= (ByteOf(block + 16, within + i) >> group & 1) << 4;
    y[i] = d * static_cast<float>(q[i]) - m;
  }
}

CAIRN_DEVICE void SixBits256(const uint8_t* block, int at, float (&y)[8]) {
  const int half = at / 128, group = at / 32 % 4, within = at % 32;
  const uint8_t* const low = block + 64 * half + 32 * (group % 2) + within;
  const uint8_t* const high = block + 128 + 32 * half + within;
  const float scale = SignedByte(ByteOf(block + 192, 8 * half + 2 * group + within / 16));
  const float d = HalfOf(block + 208) * scale;
  CAIRN_UNROLL
  for (int i = 0; i < 8; ++i) {
    const uint32_t byte = ByteOf(low, i);
    const uint32_t q = (group < 2 ? byte & 15 : byte >> 4) | (ByteOf(high, i) >> 2 * group & 3)
                                                                 << 4;
    y[i] = d * static_cast<float>(static_cast<int>(q) - 32);
  }
}

CAIRN_DEVICE void Bytes32(const uint8_t* block, int at, float (&y)[8]) {
  const float d = HalfOf(block);
  CAIRN_UNROLL
  for (int i = 0; i < 8; ++i) y[i] = d * SignedByte(ByteOf(block + 2 + at, i));
}

// Numbers [c, c + count) of a row; count < 8 only at the end of rows of single numbers.
CAIRN_DEVICE void LoadWeights(WeightType type, const uint8_t* row, int c, int count,
                              float (&y)[8]) {
  const auto block = [&](int numbers, int bytes) {
    return row + static_cast<int64_t>(c / numbers) * bytes;
  };
  switch (type) {
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
      CAIRN_UNROLL
      for (int i = 0; i < 8; ++i) {
        if (i >= count) continue;
        const int64_t at = c + i;
        if (type == WeightType::kF32) y[i] = FloatOf(Word4(row + 4 * at));
        if (type == WeightType::kF16) y[i] = HalfOf(row + 2 * at);
        if (type == WeightType::kBF16) y[i] = FloatOf(Load2(row + 2 * at) << 16);
      }
      return;
    case WeightType::kQ8_0:
      return Bytes32(block(32, 34), c % 32, y);
    case WeightType::kQ4_0:
      return Nibbles32(block(32, 18), c % 32, false, false, y);
    case WeightType::kQ4_1:
      return Nibbles32(block(32, 20), c % 32, false, true, y);
    case WeightType::kQ5_0:
      return Nibbles32(block(32, 22), c % 32, true, false, y);
    case WeightType::kQ5_1:
      return Nibbles32(block(32, 24), c % 32, true, true, y);
    case WeightType::kQ4_K:
      return Nibbles256(block(256, 144), c % 256, false, y);
    case WeightType::kQ5_K:
      return Nibbles256(block(256, 176), c % 256, true, y);
    case WeightType::kQ6_K:
      return SixBits256(block(256, 210), c % 256, y);
  }
}

// The column at which this thread begins.
CAIRN_DEVICE int64_t WeightColumn() {
  return (static_cast<int64_t>(blockIdx.y) * kWeightThreads + threadIdx.x) * 8;
}
CAIRN_DEVICE const uint8_t* WeightRow(const std::byte* matrix, int64_t row_bytes, int64_t row) {
  return reinterpret_cast<const uint8_t*>(matrix) + row * row_bytes;
}

CAIRN_DEVICE void EmbedRow(const batch::EmbedArgs& a, int64_t row_bytes) {
  const int64_t row = blockIdx.x, c = WeightColumn();
  if (c >= a.cols) return;
  const int count = a.cols - c < 8 ? static_cast<int>(a.cols - c) : 8;
  float y[8] = {};
  LoadWeights(a.type, WeightRow(a.table, row_bytes, *Global(a.tokens + row)), static_cast<int>(c),
              count, y);
  float* const to = a.x + row * a.x_stride + c;
  if (count == 8) return Store8Floats(to, y);
  CAIRN_UNROLL
  for (int i = 0; i < 8; ++i) {
    if (i < count) *Global(to + i) = y[i];
  }
}

CAIRN_DEVICE void DequantiseRowToBfloat16(const batch::DequantiseArgs& a, int64_t row_bytes) {
  const int64_t row = blockIdx.x, c = WeightColumn();
  if (c >= a.cols) return;
  const int count = a.cols - c < 8 ? static_cast<int>(a.cols - c) : 8;
  const int64_t source = a.source_rows == nullptr ? row : *Global(a.source_rows + row);
  float y[8] = {};
  LoadWeights(a.type, WeightRow(a.matrix, row_bytes, source), static_cast<int>(c), count, y);
  uint16_t* const to = a.out + row * a.out_stride + c;
  if (count == 8) return Store8Bfloat16(to, y);
  CAIRN_UNROLL
  for (int i = 0; i < 8; ++i) {
    if (i < count) *Global(to + i) = static_cast<uint16_t>(ToBfloat16(y[i]));
  }
}

}  // namespace cairn::kernels::cuda

CAIRN_KERNEL void __launch_bounds__(128)
    cairn_embed(CAIRN_PARAMETER(cairn::kernels::batch::EmbedArgs) args, int64_t row_bytes) {
  cairn::kernels::cuda::EmbedRow(args, row_bytes);
}
CAIRN_KERNEL void __launch_bounds__(128)
    cairn_dequantise(CAIRN_PARAMETER(cairn::kernels::batch::DequantiseArgs) args,
                     int64_t row_bytes) {
  cairn::kernels::cuda::DequantiseRowToBfloat16(args, row_bytes);
}
