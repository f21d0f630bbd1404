#pragma once
// binary16 by its definition.

#include <cmath>
#include <cstdint>

namespace cairn::kernels {

// Exact.
inline float FromHalf(uint16_t h) {
  const int exponent = h >> 10 & 31, mantissa = h & 0x3ff;
  const float sign = h & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa != 0 ? std::nanf("") : sign * HUGE_VALF;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
}

// Rounds to nearest, ties to even; beyond the range infinity; any NaN is 0x7e00.
inline uint16_t ToHalf(float x) {
  if (std::isnan(x)) return 0x7e00;
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double a = std::fabs(static_cast<double>(x));
  if (a >= 65520.0) return sign | 0x7c00;
  int exponent = a == 0.0 ? -14 : std::ilogb(a);
  if (exponent < -14) exponent = -14;
  // The spacing of halves around a.
  const double unit = std::ldexp(1.0, exponent - 10);
  const auto n = static_cast<uint32_t>(std::rint(a / unit));  // 0 to 2048
  // n counts units from zero; below 1024 it is subnormal. A carry into the exponent adds up right.
  return static_cast<uint16_t>(sign | (static_cast<uint32_t>(exponent + 14) * 1024 + n));
}

}  // namespace cairn::kernels
