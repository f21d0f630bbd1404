#pragma once
// bfloat16 and half precision, as bits.

#include <cmath>
#include <cstdint>
#include <cstring>

namespace cairn::kernels {

// *exact becomes false if the number is none of half precision. NaN is none.
inline uint16_t HalfOfBfloat16(uint16_t bits, bool* exact) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float x;
  std::memcpy(&x, &wide, sizeof(x));
  const auto half = static_cast<_Float16>(x);
  if (!(static_cast<float>(half) == x)) *exact = false;
  uint16_t out;
  std::memcpy(&out, &half, sizeof(out));
  return out;
}

// To nearest even.
inline uint16_t Bfloat16OfHalf(uint16_t bits) {
  _Float16 half;
  std::memcpy(&half, &bits, sizeof(half));
  const auto x = static_cast<float>(half);
  uint32_t wide;
  std::memcpy(&wide, &x, sizeof(wide));
  if (std::isnan(x)) return static_cast<uint16_t>(wide >> 16 | 0x40);
  return static_cast<uint16_t>((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
}

}  // namespace cairn::kernels
