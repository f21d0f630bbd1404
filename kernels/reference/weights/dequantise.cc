// The definition of every weight type: written for reading, never tuned. Compiled without
// contraction of a * b + c, so that the result has the same bits on every machine.

#include <bit>
#include <cstring>

#include "cairn/kernels/weight_types.h"

namespace cairn::kernels {
namespace {

uint16_t LoadU16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }

uint32_t LoadU32(const uint8_t* p) {
  return static_cast<uint32_t>(LoadU16(p)) | static_cast<uint32_t>(LoadU16(p + 2)) << 16;
}

float LoadHalf(const uint8_t* p) { return HalfToFloat(LoadU16(p)); }

// Number i of a run of nibbles laid out in blocks of 2 * width numbers: low nibbles first.
int Nibble(const uint8_t* qs, int i, int width) {
  const uint8_t byte = qs[i % width];
  return i < width ? byte & 15 : byte >> 4;
}

void Q8_0(const uint8_t* b, float* y) {
  const float d = LoadHalf(b);
  for (int i = 0; i < 32; ++i) y[i] = d * static_cast<float>(static_cast<int8_t>(b[2 + i]));
}

void Q4_0(const uint8_t* b, float* y) {
  const float d = LoadHalf(b);
  for (int i = 0; i < 32; ++i) y[i] = d * static_cast<float>(Nibble(b + 2, i, 16) - 8);
}

void Q4_1(const uint8_t* b, float* y) {
  const float d = LoadHalf(b), m = LoadHalf(b + 2);
  for (int i = 0; i < 32; ++i) y[i] = d * static_cast<float>(Nibble(b + 4, i, 16)) + m;
}

int FiveBits(const uint8_t* qs, uint32_t qh, int i) {
  return Nibble(qs, i, 16) | static_cast<int>(qh >> i & 1) << 4;
}

void Q5_0(const uint8_t* b, float* y) {
  const float d = LoadHalf(b);
  const uint32_t qh = LoadU32(b + 2);
  for (int i = 0; i < 32; ++i) y[i] = d * static_cast<float>(FiveBits(b + 6, qh, i) - 16);
}

void Q5_1(const uint8_t* b, float* y) {
  const float d = LoadHalf(b), m = LoadHalf(b + 2);
  const uint32_t qh = LoadU32(b + 4);
  for (int i = 0; i < 32; ++i) y[i] = d * static_cast<float>(FiveBits(b + 8, qh, i)) + m;
}

// The 6-bit scale and minimum of group g, packed as the header draws them.
struct ScaleMin {
  int scale;
  int min;
};
ScaleMin GroupScaleMin(const uint8_t* scales, int g) {
  if (g < 4) return {scales[g] & 63, scales[g + 4] & 63};
  return {(scales[g + 4] & 15) | (scales[g - 4] >> 6) << 4, (scales[g + 4] >> 4) | (scales[g] >> 6)
                                                                                       << 4};
}

// Q4_K, and Q5_K when qh is given.
void Q45K(const uint8_t* scales, const uint8_t* qs, const uint8_t* qh, float d, float dmin,
          float* y) {
  for (int g = 0; g < 8; ++g) {
    const ScaleMin sm = GroupScaleMin(scales, g);
    const float scale = d * static_cast<float>(sm.scale);
    const float min = dmin * static_cast<float>(sm.min);
    for (int i = 0; i < 32; ++i) {
      int q = Nibble(qs + 32 * (g / 2), 32 * (g % 2) + i, 32);
      if (qh != nullptr) q |= (qh[i] >> g & 1) << 4;
      y[32 * g + i] = scale * static_cast<float>(q) - min;
    }
  }
}

void Q4_K(const uint8_t* b, float* y) {
  Q45K(b + 4, b + 16, nullptr, LoadHalf(b), LoadHalf(b + 2), y);
}

void Q5_K(const uint8_t* b, float* y) {
  Q45K(b + 4, b + 48, b + 16, LoadHalf(b), LoadHalf(b + 2), y);
}

void Q6_K(const uint8_t* b, float* y) {
  const uint8_t *ql = b, *qh = b + 128, *scales = b + 192;
  const float d = LoadHalf(b + 208);
  for (int h = 0; h < 2; ++h) {
    for (int g = 0; g < 4; ++g) {
      for (int i = 0; i < 32; ++i) {
        const uint8_t low = ql[64 * h + 32 * (g % 2) + i];
        const int q = (g < 2 ? low & 15 : low >> 4) | (qh[32 * h + i] >> 2 * g & 3) << 4;
        const int8_t scale = static_cast<int8_t>(scales[8 * h + 2 * g + i / 16]);
        y[128 * h + 32 * g + i] = d * static_cast<float>(scale) * static_cast<float>(q - 32);
      }
    }
  }
}

void DequantiseBlock(WeightType type, const uint8_t* b, float* y) {
  switch (type) {
    case WeightType::kF32:
      y[0] = std::bit_cast<float>(LoadU32(b));
      return;
    case WeightType::kF16:
      y[0] = LoadHalf(b);
      return;
    case WeightType::kBF16:
      y[0] = Bfloat16ToFloat(LoadU16(b));
      return;
    case WeightType::kQ8_0:
      return Q8_0(b, y);
    case WeightType::kQ4_0:
      return Q4_0(b, y);
    case WeightType::kQ4_1:
      return Q4_1(b, y);
    case WeightType::kQ5_0:
      return Q5_0(b, y);
    case WeightType::kQ5_1:
      return Q5_1(b, y);
    case WeightType::kQ4_K:
      return Q4_K(b, y);
    case WeightType::kQ5_K:
      return Q5_K(b, y);
    case WeightType::kQ6_K:
      return Q6_K(b, y);
  }
}

}  // namespace

float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = half >> 10 & 31;
  const uint32_t mantissa = half & 0x3ff;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  // Zero and subnormals: mantissa * 2^-24, exact in float32.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

float Bfloat16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

void DequantiseRow(WeightType type, const std::byte* src, float* dst, int64_t n) {
  const auto* block = reinterpret_cast<const uint8_t*>(src);
  for (int64_t i = 0; i < n; i += BlockElements(type)) {
    DequantiseBlock(type, block, dst + i);
    block += BlockBytes(type);
  }
}

}  // namespace cairn::kernels
