#pragma once
// bfloat16 and half precision, as bits.

#include <bit>
#include <cstdint>

namespace cairn::kernels {

// Exact.
inline float FloatOfHalf(uint16_t half) {
  uint32_t bits = static_cast<uint32_t>(half & 0x7fff) << 13;
  if ((half & 0x7c00) == 0x7c00) {
    bits |= 0x7f800000;
  } else {
    // The exponent is too small by 112 then. Subnormal numbers come right too.
    bits = std::bit_cast<uint32_t>(std::bit_cast<float>(bits) * 0x1p112f);
  }
  return std::bit_cast<float>(bits | static_cast<uint32_t>(half & 0x8000) << 16);
}

// To nearest even; beyond the range infinity.
inline uint16_t HalfOfFloat(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits >> 16 & 0x8000;
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (bits >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (bits < 0x38800000) {
    // Subnormal: adding 0.5 rounds to a multiple of 2^-24.
    const float rounded = std::bit_cast<float>(bits) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(rounded) - 0x3f000000));
  }
  bits += 0xfff + (bits >> 13 & 1);
  return static_cast<uint16_t>(sign | (bits - 0x38000000) >> 13);
}

// *exact becomes false if the number is none of half precision. NaN is none.
inline uint16_t HalfOfBfloat16(uint16_t bits, bool* exact) {
  const auto x = std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  const uint16_t half = HalfOfFloat(x);
  if (!(FloatOfHalf(half) == x)) *exact = false;
  return half;
}

// To nearest even.
inline uint16_t Bfloat16OfHalf(uint16_t half) {
  const auto bits = std::bit_cast<uint32_t>(FloatOfHalf(half));
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace cairn::kernels
