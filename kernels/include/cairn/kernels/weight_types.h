#pragma once
// The number formats of GGUF weights, and their definition: DequantiseRow.
//
// A row is a run of blocks; a block holds BlockElements numbers in BlockBytes bytes. Everything is
// little-endian, "f16" is IEEE binary16. Numbers are float32 and every product and sum below is
// rounded to float32 in the order written (no fused multiply-add): the result is equal to the last
// bit to that of the `gguf` Python package.
//
// clang-format off
// Blocks of 32 numbers (j = 0..15; low nibbles hold numbers 0..15, high nibbles numbers 16..31):
//   Q8_0  34 B  f16 d; i8 q[32]               y[i] = d * q[i]
//   Q4_0  18 B  f16 d; u8 qs[16]              y = d * (nibble - 8)
//   Q4_1  20 B  f16 d, m; u8 qs[16]           y = d * nibble + m
//   Q5_0  22 B  f16 d; u32 qh; u8 qs[16]      y[i] = d * ((nibble | (bit i of qh) << 4) - 16)
//   Q5_1  24 B  f16 d, m; u32 qh; u8 qs[16]   y[i] = d * (nibble | (bit i of qh) << 4) + m
// Blocks of 256 numbers:
//   Q4_K 144 B  f16 d, dmin; u8 scales[12]; u8 qs[128]
//   Q5_K 176 B  f16 d, dmin; u8 scales[12]; u8 qh[32]; u8 qs[128]
//     8 groups of 32, group g with a 6-bit scale s and a 6-bit minimum m:
//       g < 4:   s = scales[g] & 63       m = scales[g+4] & 63
//       g >= 4:  s = (scales[g+4] & 15) | (scales[g-4] >> 6) << 4
//                m = (scales[g+4] >> 4) | (scales[g] >> 6) << 4
//     q of number i of group g: nibble (g even: low, odd: high) of qs[32*(g/2) + i];
//     Q5_K adds (bit g of qh[i]) << 4.
//     y = (d * s) * q - (dmin * m)
//   Q6_K 210 B  u8 ql[128]; u8 qh[64]; i8 scales[16]; f16 d
//     Two halves h of 128 numbers, each of four groups g of 32: number i of group g has
//       low 4 bits: nibble (g < 2: low, else high) of ql[64*h + 32*(g%2) + i]
//       high 2 bits: bits 2g, 2g+1 of qh[32*h + i]
//     y = (d * scales[8*h + 2*g + i/16]) * (q - 32)
// clang-format on
// Blocks of one number: F32, F16, BF16 (the upper half of a float32).

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cairn::kernels {

enum class WeightType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4_K,
  kQ5_K,
  kQ6_K,
};

inline constexpr int kWeightTypeCount = 11;

// Numbers per block: 1, 32 or 256.
constexpr int64_t BlockElements(WeightType type) {
  switch (type) {
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
      return 1;
    case WeightType::kQ8_0:
    case WeightType::kQ4_0:
    case WeightType::kQ4_1:
    case WeightType::kQ5_0:
    case WeightType::kQ5_1:
      return 32;
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:
    case WeightType::kQ6_K:
      return 256;
  }
  return 1;
}

constexpr int64_t BlockBytes(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return 4;
    case WeightType::kF16:
    case WeightType::kBF16:
      return 2;
    case WeightType::kQ8_0:
      return 34;
    case WeightType::kQ4_0:
      return 18;
    case WeightType::kQ4_1:
      return 20;
    case WeightType::kQ5_0:
      return 22;
    case WeightType::kQ5_1:
      return 24;
    case WeightType::kQ4_K:
      return 144;
    case WeightType::kQ5_K:
      return 176;
    case WeightType::kQ6_K:
      return 210;
  }
  return 4;
}

// Bytes of a row of n numbers. REQUIRES: n is a multiple of BlockElements(type).
constexpr int64_t RowBytes(WeightType type, int64_t n) {
  return n / BlockElements(type) * BlockBytes(type);
}

// "Q4_1", as GGUF files and tools spell it.
constexpr std::string_view Name(WeightType type) {
  constexpr std::string_view kNames[kWeightTypeCount] = {
      "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"};
  return kNames[static_cast<int>(type)];
}

// Exact for every input, subnormals, infinities and NaN included.
float HalfToFloat(uint16_t half);
float Bfloat16ToFloat(uint16_t bits);

// Writes the n numbers of the row at src (no alignment needed) to dst.
// REQUIRES: n is a multiple of BlockElements(type); src holds RowBytes(type, n) bytes.
void DequantiseRow(WeightType type, const std::byte* src, float* dst, int64_t n);

}  // namespace cairn::kernels
