// Sixteen lanes, whatever the registers' width: codec kernels are written once with these and
// compiled per instruction set. A lane always holds the same number, so sums over lanes have one
// order and every instruction set gives the same bytes.
//
//   H  16 x binary16 (bits)     F  16 x float32     I  16 x int32
//
// Compiled with -ffp-contract=off. Included by a translation unit per instruction set, each with
// its own CAIRN_KERNEL_NS (see vec.inc.h); no include guard by design.

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(CAIRN_NEON)
#include <arm_neon.h>
#endif

#ifndef CAIRN_KERNEL_NS
#error "define CAIRN_KERNEL_NS before including this file"
#endif

// Before loops over a row's vectors, which are to be registers. Sixteen single lanes are none:
// unrolled, they only make the compiler slow.
#undef CAIRN_UNROLL
#if defined(__AVX2__) || defined(CAIRN_NEON)
#define CAIRN_UNROLL _Pragma("GCC unroll 32")
#else
#define CAIRN_UNROLL
#endif

namespace cairn::kernels::CAIRN_KERNEL_NS {

inline constexpr int kLanes = 16;
inline constexpr float kLargestHalf = 65504.0f;

#if defined(__AVX512F__)
#include "kernels/cpu/codec/lanes_avx512.inc.h"
#elif defined(__AVX2__)
#include "kernels/cpu/codec/lanes_avx2.inc.h"
#elif defined(CAIRN_NEON)
#include "kernels/cpu/codec/lanes_neon.inc.h"
#else
#include "kernels/cpu/codec/lanes_portable.inc.h"
#endif

// --- Bits of halves, and order without converting them ---

#if defined(__AVX2__)
static inline H AbsBits(H h) { return {_mm256_and_si256(h.v, _mm256_set1_epi16(0x7fff))}; }
static inline H MaxBits(H a, H b) { return {_mm256_max_epi16(a.v, b.v)}; }
static inline H MinBits(H a, H b) { return {_mm256_min_epi16(a.v, b.v)}; }
// Signed 16-bit integers in the order of the numbers; its own inverse.
static inline H OrderBits(H h) {
  const __m256i negative = _mm256_srai_epi16(h.v, 15);
  return {_mm256_xor_si256(h.v, _mm256_and_si256(negative, _mm256_set1_epi16(0x7fff)))};
}
static inline int LargestOf(H h) {
  __m128i m = _mm_max_epi16(_mm256_castsi256_si128(h.v), _mm256_extracti128_si256(h.v, 1));
  // minpos finds the smallest unsigned: turn the order round.
  m = _mm_minpos_epu16(_mm_xor_si128(m, _mm_set1_epi16(0x7fff)));
  return static_cast<int16_t>(_mm_cvtsi128_si32(m) ^ 0x7fff);
}
static inline int SmallestOf(H h) {
  __m128i m = _mm_min_epi16(_mm256_castsi256_si128(h.v), _mm256_extracti128_si256(h.v, 1));
  m = _mm_minpos_epu16(_mm_xor_si128(m, _mm_set1_epi16(-0x8000)));
  return static_cast<int16_t>(_mm_cvtsi128_si32(m) ^ 0x8000);
}
static inline float HalfToFloat(uint16_t h) { return _cvtsh_ss(h); }
static inline uint16_t FloatToHalf(float f) { return _cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT); }
static inline void EndStreaming() { _mm_sfence(); }
#elif !defined(CAIRN_NEON)
static inline H AbsBits(H h) {
  for (int i = 0; i < kLanes; ++i) h.v[i] &= 0x7fff;
  return h;
}
static inline H MaxBits(H a, H b) {
  for (int i = 0; i < kLanes; ++i) {
    a.v[i] = static_cast<int16_t>(a.v[i]) > static_cast<int16_t>(b.v[i]) ? a.v[i] : b.v[i];
  }
  return a;
}
static inline H MinBits(H a, H b) {
  for (int i = 0; i < kLanes; ++i) {
    a.v[i] = static_cast<int16_t>(a.v[i]) < static_cast<int16_t>(b.v[i]) ? a.v[i] : b.v[i];
  }
  return a;
}
static inline H OrderBits(H h) {
  for (int i = 0; i < kLanes; ++i) h.v[i] ^= h.v[i] & 0x8000 ? 0x7fff : 0;
  return h;
}
static inline int LargestOf(H h) {
  int out = static_cast<int16_t>(h.v[0]);
  for (int i = 1; i < kLanes; ++i) {
    const int x = static_cast<int16_t>(h.v[i]);
    out = x > out ? x : out;
  }
  return out;
}
static inline int SmallestOf(H h) {
  int out = static_cast<int16_t>(h.v[0]);
  for (int i = 1; i < kLanes; ++i) {
    const int x = static_cast<int16_t>(h.v[i]);
    out = x < out ? x : out;
  }
  return out;
}
static inline float HalfToFloat(uint16_t h) { return OneToF(h); }
static inline uint16_t FloatToHalf(float f) { return OneToH(f); }
static inline void EndStreaming() {}
#endif

inline constexpr int kInfiniteHalf = 0x7c00;
// In OrderBits: -infinity.
inline constexpr int kNegativeInfinite = -31745;

static inline float OrderToFloat(int order) {
  const auto bits = static_cast<uint16_t>(order < 0 ? order ^ 0x7fff : order);
  return HalfToFloat(bits) + 0.0f;  // -0 becomes 0.
}

// Lanes i and i + 8, then + 4, + 2, + 1: the order of every sum over lanes.
static inline float SumLanes(F f) {
  float v[16];
  StoreF(v, f);
  for (int n = 8; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) v[i] += v[i + n];
  }
  return v[0];
}

// Decoded numbers beyond half's range become its largest: never infinity.
static inline H DecodedHalf(F f) { return ToH(Min(Max(f, Set(-kLargestHalf)), Set(kLargestHalf))); }

static inline void StoreDecoded(uint16_t* p, F f, bool stream) {
  if (stream) {
    StreamH(p, DecodedHalf(f));
  } else {
    StoreH(p, DecodedHalf(f));
  }
}
// 32 numbers: a whole cache line, which streams twice as fast as its halves.
static inline void StoreDecoded(uint16_t* p, F f0, F f1, bool stream) {
#if defined(__AVX512F__)
  const __m512i both =
      _mm512_inserti64x4(_mm512_castsi256_si512(DecodedHalf(f0).v), DecodedHalf(f1).v, 1);
  if (stream) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(p), both);
  } else {
    _mm512_storeu_si512(p, both);
  }
#else
  StoreDecoded(p, f0, stream);
  StoreDecoded(p + kLanes, f1, stream);
#endif
}

// Far enough ahead for memory, and across the end of a page, where the hardware's prefetch stops.
static inline void PrefetchAhead(const void* p) {
  __builtin_prefetch(static_cast<const char*>(p) + 4096);
}

static inline uint16_t LoadU16(const std::byte* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}
static inline void StoreU16(std::byte* p, uint16_t v) { std::memcpy(p, &v, 2); }

// A scale: not negative, finite.
static inline bool IsScale(uint16_t bits) { return bits < kInfiniteHalf; }
static inline bool IsFinite(uint16_t bits) { return (bits & 0x7fff) < kInfiniteHalf; }

static inline bool CanStream(const uint16_t* data, int64_t stride, bool wanted) {
  return wanted && reinterpret_cast<uintptr_t>(data) % 64 == 0 && stride % 32 == 0;
}

}  // namespace cairn::kernels::CAIRN_KERNEL_NS
