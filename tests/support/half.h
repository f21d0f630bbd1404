#pragma once
// Numbers of 16 bits in half precision, for tests and benchmarks.

#include <bit>
#include <cstdint>

namespace cairn::testing {

// GCC 12 knows each of these types for one processor alone.
#ifdef __aarch64__
using Half = __fp16;
#else
using Half = _Float16;
#endif

// Rounded to the nearest, ties to even.
inline uint16_t ToHalf(float number) { return std::bit_cast<uint16_t>(static_cast<Half>(number)); }
inline float FromHalf(uint16_t bits) { return static_cast<float>(std::bit_cast<Half>(bits)); }

}  // namespace cairn::testing
