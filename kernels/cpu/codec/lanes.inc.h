// Sixteen lanes, whatever the registers' width: codec kernels are written once with these and
// compiled per instruction set. A lane always holds the same number, so sums over lanes have one
// order and every instruction set gives the same bytes.
//
//   H  16 x binary16 (bits)     F  16 x float32     I  16 x int32
//
// Compiled with -ffp-contract=off. Included by a translation unit per instruction set, each with
// its own CAIRN_KERNEL_NS (see vec.inc.h); no include guard by design.

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifndef CAIRN_KERNEL_NS
#error "define CAIRN_KERNEL_NS before including this file"
#endif

// Before loops over a row's vectors, which are to be registers. Sixteen single lanes are none:
// unrolled, they only make the compiler slow.
#undef CAIRN_UNROLL
#if defined(__AVX2__)
#define CAIRN_UNROLL _Pragma("GCC unroll 32")
#else
#define CAIRN_UNROLL
#endif

namespace cairn::kernels::CAIRN_KERNEL_NS {

inline constexpr int kLanes = 16;
inline constexpr float kLargestHalf = 65504.0f;

#if defined(__AVX512F__)

struct H {
  __m256i v;
};
struct F {
  __m512 v;
};
struct I {
  __m512i v;
};

static inline H LoadH(const uint16_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
static inline void StoreH(uint16_t* p, H h) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), h.v);
}
static inline void StreamH(uint16_t* p, H h) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), h.v);
}
static inline F ToF(H h) { return {_mm512_cvtph_ps(h.v)}; }
static inline H ToH(F f) { return {_mm512_cvtps_ph(f.v, _MM_FROUND_TO_NEAREST_INT)}; }

static inline F LoadF(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline void StoreF(float* p, F f) { _mm512_storeu_ps(p, f.v); }
static inline F Set(float x) { return {_mm512_set1_ps(x)}; }
static inline F operator+(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline F operator-(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline F operator*(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline F operator/(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
// a * b + c, rounded once.
static inline F Fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
static inline F Sqrt(F a) { return {_mm512_sqrt_ps(a.v)}; }
static inline F Min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
static inline F Max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline F Abs(F a) { return {_mm512_abs_ps(a.v)}; }
// a > 0 ? b : 0.
static inline F WherePositive(F a, F b) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a.v, _mm512_setzero_ps(), _CMP_GT_OQ), b.v)};
}
static inline F FlipSigns(F a, const uint32_t* bits) {
  return {_mm512_xor_ps(a.v, _mm512_castsi512_ps(_mm512_loadu_si512(bits)))};
}

static inline I Round(F a) { return {_mm512_cvtps_epi32(a.v)}; }
static inline F ToF(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
static inline I Bits(F a) { return {_mm512_castps_si512(a.v)}; }
static inline F FromBits(I a) { return {_mm512_castsi512_ps(a.v)}; }
static inline I SetI(int32_t x) { return {_mm512_set1_epi32(x)}; }
static inline I operator+(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
static inline I operator-(I a, I b) { return {_mm512_sub_epi32(a.v, b.v)}; }
static inline I operator&(I a, I b) { return {_mm512_and_si512(a.v, b.v)}; }
static inline I operator|(I a, I b) { return {_mm512_or_si512(a.v, b.v)}; }
template <int n>
static inline I Left(I a) {
  return {_mm512_slli_epi32(a.v, n)};
}
template <int n>
static inline I Right(I a) {
  return {_mm512_srli_epi32(a.v, n)};
}
static inline I Min(I a, I b) { return {_mm512_min_epi32(a.v, b.v)}; }
static inline I Max(I a, I b) { return {_mm512_max_epi32(a.v, b.v)}; }
// acc + (a > limit ? 1 : 0).
static inline I CountAbove(I acc, F a, float limit) {
  return {_mm512_mask_add_epi32(acc.v, _mm512_cmp_ps_mask(a.v, _mm512_set1_ps(limit), _CMP_GT_OQ),
                                acc.v, _mm512_set1_epi32(1))};
}
// a < 0 ? b : c.
static inline I WhereNegative(F a, I b, I c) {
  return {
      _mm512_mask_mov_epi32(c.v, _mm512_cmp_ps_mask(a.v, _mm512_setzero_ps(), _CMP_LT_OQ), b.v)};
}
// a < limit ? b : c.
static inline I WhereBelow(F a, float limit, I b, I c) {
  return {
      _mm512_mask_mov_epi32(c.v, _mm512_cmp_ps_mask(a.v, _mm512_set1_ps(limit), _CMP_LT_OQ), b.v)};
}
// table[i & 15] of 16 floats.
static inline F Lookup(I i, F table) { return {_mm512_permutexvar_ps(i.v, table.v)}; }

// The low byte of each lane.
static inline void StoreBytes(std::byte* p, I a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}
static inline I LoadUnsignedBytes(const std::byte* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
static inline I LoadSignedBytes(const std::byte* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
// Lanes of 16 bits each.
static inline H LowHalves(I a) { return {_mm512_cvtepi32_epi16(a.v)}; }
static inline I WidenBits(H h) { return {_mm512_cvtepu16_epi32(h.v)}; }
// Bit 2 of lane i to bit i, and back to bit 2.
static inline uint16_t GatherBit2(I a) { return _mm512_test_epi32_mask(a.v, _mm512_set1_epi32(4)); }
static inline I SpreadBit2(uint16_t bits) { return {_mm512_maskz_set1_epi32(bits, 4)}; }

// The stage of a Walsh-Hadamard transform between lanes i and i ^ kDistance.
template <int kDistance>
static inline F Butterfly(F a) {
  __m512 other;
  __mmask16 upper;
  if constexpr (kDistance == 1) {
    other = _mm512_permute_ps(a.v, 0xb1);
    upper = 0xaaaa;
  } else if constexpr (kDistance == 2) {
    other = _mm512_permute_ps(a.v, 0x4e);
    upper = 0xcccc;
  } else if constexpr (kDistance == 4) {
    other = _mm512_shuffle_f32x4(a.v, a.v, 0xb1);
    upper = 0xf0f0;
  } else {
    other = _mm512_shuffle_f32x4(a.v, a.v, 0x4e);
    upper = 0xff00;
  }
  return {_mm512_mask_sub_ps(_mm512_add_ps(a.v, other), upper, other, a.v)};
}

#elif defined(__AVX2__)

struct H {
  __m256i v;
};
struct F {
  __m256 a, b;
};
struct I {
  __m256i a, b;
};

static inline H LoadH(const uint16_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
static inline void StoreH(uint16_t* p, H h) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), h.v);
}
static inline void StreamH(uint16_t* p, H h) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), h.v);
}
static inline F ToF(H h) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(h.v)),
          _mm256_cvtph_ps(_mm256_extracti128_si256(h.v, 1))};
}
static inline H ToH(F f) {
  return {_mm256_set_m128i(_mm256_cvtps_ph(f.b, _MM_FROUND_TO_NEAREST_INT),
                           _mm256_cvtps_ph(f.a, _MM_FROUND_TO_NEAREST_INT))};
}

static inline F LoadF(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void StoreF(float* p, F f) {
  _mm256_storeu_ps(p, f.a);
  _mm256_storeu_ps(p + 8, f.b);
}
static inline F Set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline F operator+(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
static inline F operator-(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
static inline F operator*(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
static inline F operator/(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
static inline F Fma(F x, F y, F z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
static inline F Sqrt(F x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
static inline F Min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
static inline F Max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
static inline F Abs(F x) {
  const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  return {_mm256_and_ps(x.a, mask), _mm256_and_ps(x.b, mask)};
}
static inline F WherePositive(F x, F y) {
  const __m256 zero = _mm256_setzero_ps();
  return {_mm256_and_ps(_mm256_cmp_ps(x.a, zero, _CMP_GT_OQ), y.a),
          _mm256_and_ps(_mm256_cmp_ps(x.b, zero, _CMP_GT_OQ), y.b)};
}
static inline F FlipSigns(F x, const uint32_t* bits) {
  const float* p = reinterpret_cast<const float*>(bits);
  return {_mm256_xor_ps(x.a, _mm256_loadu_ps(p)), _mm256_xor_ps(x.b, _mm256_loadu_ps(p + 8))};
}

static inline I Round(F x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
static inline F ToF(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
static inline I Bits(F x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
static inline F FromBits(I x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
static inline I SetI(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
static inline I operator+(I x, I y) {
  return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}
static inline I operator-(I x, I y) {
  return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)};
}
static inline I operator&(I x, I y) {
  return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)};
}
static inline I operator|(I x, I y) {
  return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)};
}
template <int n>
static inline I Left(I x) {
  return {_mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n)};
}
template <int n>
static inline I Right(I x) {
  return {_mm256_srli_epi32(x.a, n), _mm256_srli_epi32(x.b, n)};
}
static inline I Min(I x, I y) { return {_mm256_min_epi32(x.a, y.a), _mm256_min_epi32(x.b, y.b)}; }
static inline I Max(I x, I y) { return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)}; }
static inline I CountAbove(I acc, F x, float limit) {
  const __m256 l = _mm256_set1_ps(limit);
  return {_mm256_sub_epi32(acc.a, _mm256_castps_si256(_mm256_cmp_ps(x.a, l, _CMP_GT_OQ))),
          _mm256_sub_epi32(acc.b, _mm256_castps_si256(_mm256_cmp_ps(x.b, l, _CMP_GT_OQ)))};
}
static inline __m256i Choose(__m256 mask, __m256i yes, __m256i no) {
  return _mm256_castps_si256(
      _mm256_blendv_ps(_mm256_castsi256_ps(no), _mm256_castsi256_ps(yes), mask));
}
static inline I WhereBelow(F x, float limit, I yes, I no) {
  const __m256 l = _mm256_set1_ps(limit);
  return {Choose(_mm256_cmp_ps(x.a, l, _CMP_LT_OQ), yes.a, no.a),
          Choose(_mm256_cmp_ps(x.b, l, _CMP_LT_OQ), yes.b, no.b)};
}
static inline I WhereNegative(F x, I yes, I no) { return WhereBelow(x, 0.0f, yes, no); }
static inline __m256 Lookup8(__m256i i, F table) {
  const __m256 low = _mm256_permutevar8x32_ps(table.a, i);
  const __m256 high = _mm256_permutevar8x32_ps(table.b, i);
  return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(i, 28)));
}
static inline F Lookup(I i, F table) { return {Lookup8(i.a, table), Lookup8(i.b, table)}; }

static inline H LowHalves(I x) {
  const __m256i mask = _mm256_set1_epi32(0xffff);
  const __m256i packed =
      _mm256_packus_epi32(_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask));
  return {_mm256_permute4x64_epi64(packed, 0xd8)};
}
static inline I WidenBits(H h) {
  return {_mm256_cvtepu16_epi32(_mm256_castsi256_si128(h.v)),
          _mm256_cvtepu16_epi32(_mm256_extracti128_si256(h.v, 1))};
}
static inline void StoreBytes(std::byte* p, I x) {
  const __m256i mask = _mm256_set1_epi32(0xff);
  const __m256i words = _mm256_permute4x64_epi64(
      _mm256_packus_epi32(_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask)), 0xd8);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(p),
      _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
static inline I LoadUnsignedBytes(const std::byte* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
}
static inline I LoadSignedBytes(const std::byte* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))};
}
static inline uint16_t GatherBit2(I x) {
  const int low = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_slli_epi32(x.a, 29)));
  const int high = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_slli_epi32(x.b, 29)));
  return static_cast<uint16_t>(low | high << 8);
}
static inline __m256i SpreadByte(int bits) {
  const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i has = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(bits), lane), lane);
  return _mm256_and_si256(has, _mm256_set1_epi32(4));
}
static inline I SpreadBit2(uint16_t bits) {
  return {SpreadByte(bits & 0xff), SpreadByte(bits >> 8)};
}

template <int kDistance>
static inline __m256 Butterfly8(__m256 x) {
  __m256 other;
  if constexpr (kDistance == 1) {
    other = _mm256_permute_ps(x, 0xb1);
    return _mm256_blend_ps(_mm256_add_ps(x, other), _mm256_sub_ps(other, x), 0xaa);
  } else if constexpr (kDistance == 2) {
    other = _mm256_permute_ps(x, 0x4e);
    return _mm256_blend_ps(_mm256_add_ps(x, other), _mm256_sub_ps(other, x), 0xcc);
  } else {
    other = _mm256_permute2f128_ps(x, x, 1);
    return _mm256_blend_ps(_mm256_add_ps(x, other), _mm256_sub_ps(other, x), 0xf0);
  }
}
template <int kDistance>
static inline F Butterfly(F x) {
  if constexpr (kDistance == 8) {
    return {_mm256_add_ps(x.a, x.b), _mm256_sub_ps(x.a, x.b)};
  } else {
    return {Butterfly8<kDistance>(x.a), Butterfly8<kDistance>(x.b)};
  }
}

#else

struct H {
  uint16_t v[16];
};
struct F {
  float v[16];
};
struct I {
  int32_t v[16];
};

// clang-format off
#define CAIRN_LANES(body) for (int i = 0; i < kLanes; ++i) { body; }
// clang-format on

static inline float OneToF(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t rest = h & 0x7fff;
  float value;
  if (rest >= 0x7c00) {
    const uint32_t bits = sign | 0x7f800000 | (rest & 0x3ff) << 13;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  // As if the exponent were a float's, then scaled: exact, subnormal halves too.
  const uint32_t bits = rest << 13;
  std::memcpy(&value, &bits, 4);
  value *= 0x1p112f;
  uint32_t out;
  std::memcpy(&out, &value, 4);
  out |= sign;
  std::memcpy(&value, &out, 4);
  return value;
}
static inline uint16_t OneToH(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (bits >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (bits < 0x38800000) {
    // Subnormal halves: adding 0.5 rounds to a multiple of 2^-24.
    float tiny;
    std::memcpy(&tiny, &bits, 4);
    tiny += 0.5f;
    uint32_t rounded;
    std::memcpy(&rounded, &tiny, 4);
    return static_cast<uint16_t>(sign | (rounded - 0x3f000000));
  }
  bits += 0xfff + (bits >> 13 & 1) - 0x38000000;
  return static_cast<uint16_t>(sign | bits >> 13);
}

static inline H LoadH(const uint16_t* p) {
  H h;
  std::memcpy(&h, p, sizeof(h));
  return h;
}
static inline void StoreH(uint16_t* p, H h) { std::memcpy(p, &h, sizeof(h)); }
static inline void StreamH(uint16_t* p, H h) { std::memcpy(p, &h, sizeof(h)); }
static inline F ToF(H h) {
  F f;
  CAIRN_LANES(f.v[i] = OneToF(h.v[i]))
  return f;
}
static inline H ToH(F f) {
  H h;
  CAIRN_LANES(h.v[i] = OneToH(f.v[i]))
  return h;
}
static inline F LoadF(const float* p) {
  F f;
  std::memcpy(&f, p, sizeof(f));
  return f;
}
static inline void StoreF(float* p, F f) { std::memcpy(p, &f, sizeof(f)); }
static inline F Set(float x) {
  F f;
  CAIRN_LANES(f.v[i] = x)
  return f;
}
static inline F operator+(F a, F b) {
  CAIRN_LANES(a.v[i] += b.v[i])
  return a;
}
static inline F operator-(F a, F b) {
  CAIRN_LANES(a.v[i] -= b.v[i])
  return a;
}
static inline F operator*(F a, F b) {
  CAIRN_LANES(a.v[i] *= b.v[i])
  return a;
}
static inline F operator/(F a, F b) {
  CAIRN_LANES(a.v[i] /= b.v[i])
  return a;
}
static inline F Fma(F a, F b, F c) {
  CAIRN_LANES(c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]))
  return c;
}
static inline F Sqrt(F a) {
  CAIRN_LANES(a.v[i] = __builtin_sqrtf(a.v[i]))
  return a;
}
static inline F Min(F a, F b) {
  CAIRN_LANES(a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i])
  return a;
}
static inline F Max(F a, F b) {
  CAIRN_LANES(a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i])
  return a;
}
static inline F Abs(F a) {
  CAIRN_LANES(a.v[i] = __builtin_fabsf(a.v[i]))
  return a;
}
static inline F WherePositive(F a, F b) {
  CAIRN_LANES(b.v[i] = a.v[i] > 0.0f ? b.v[i] : 0.0f)
  return b;
}
static inline I Bits(F a) {
  I out;
  std::memcpy(&out, &a, sizeof(out));
  return out;
}
static inline F FromBits(I a) {
  F out;
  std::memcpy(&out, &a, sizeof(out));
  return out;
}
static inline F FlipSigns(F a, const uint32_t* bits) {
  uint32_t raw[16];
  std::memcpy(raw, &a, sizeof(raw));
  CAIRN_LANES(raw[i] ^= bits[i])
  std::memcpy(&a, raw, sizeof(raw));
  return a;
}
static inline I Round(F a) {
  // SSE2 is part of x86-64: round to nearest even, and 0x80000000 for what does not fit, as the
  // wider instruction sets do.
  I out;
  CAIRN_LANES(out.v[i] = _mm_cvtss_si32(_mm_set_ss(a.v[i])))
  return out;
}
static inline F ToF(I a) {
  F f;
  CAIRN_LANES(f.v[i] = static_cast<float>(a.v[i]))
  return f;
}
static inline I SetI(int32_t x) {
  I out;
  CAIRN_LANES(out.v[i] = x)
  return out;
}
static inline I operator+(I a, I b) {
  CAIRN_LANES(a.v[i] += b.v[i])
  return a;
}
static inline I operator-(I a, I b) {
  CAIRN_LANES(a.v[i] -= b.v[i])
  return a;
}
static inline I operator&(I a, I b) {
  CAIRN_LANES(a.v[i] &= b.v[i])
  return a;
}
static inline I operator|(I a, I b) {
  CAIRN_LANES(a.v[i] |= b.v[i])
  return a;
}
template <int n>
static inline I Left(I a) {
  CAIRN_LANES(a.v[i] = static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) << n))
  return a;
}
template <int n>
static inline I Right(I a) {
  CAIRN_LANES(a.v[i] = static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) >> n))
  return a;
}
static inline I Min(I a, I b) {
  CAIRN_LANES(a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i])
  return a;
}
static inline I Max(I a, I b) {
  CAIRN_LANES(a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i])
  return a;
}
static inline I CountAbove(I acc, F a, float limit) {
  CAIRN_LANES(acc.v[i] += a.v[i] > limit ? 1 : 0)
  return acc;
}
static inline I WhereBelow(F a, float limit, I yes, I no) {
  CAIRN_LANES(no.v[i] = a.v[i] < limit ? yes.v[i] : no.v[i])
  return no;
}
static inline I WhereNegative(F a, I yes, I no) { return WhereBelow(a, 0.0f, yes, no); }
static inline F Lookup(I index, F table) {
  F f;
  CAIRN_LANES(f.v[i] = table.v[index.v[i] & 15])
  return f;
}
static inline H LowHalves(I a) {
  H h;
  CAIRN_LANES(h.v[i] = static_cast<uint16_t>(a.v[i]))
  return h;
}
static inline I WidenBits(H h) {
  I out;
  CAIRN_LANES(out.v[i] = h.v[i])
  return out;
}
static inline void StoreBytes(std::byte* p, I a) {
  CAIRN_LANES(p[i] = static_cast<std::byte>(a.v[i]))
}
static inline I LoadUnsignedBytes(const std::byte* p) {
  I out;
  CAIRN_LANES(out.v[i] = static_cast<uint8_t>(p[i]))
  return out;
}
static inline I LoadSignedBytes(const std::byte* p) {
  I out;
  CAIRN_LANES(out.v[i] = static_cast<int8_t>(p[i]))
  return out;
}
static inline uint16_t GatherBit2(I a) {
  uint32_t bits = 0;
  CAIRN_LANES(bits |= static_cast<uint32_t>(a.v[i] >> 2 & 1) << i)
  return static_cast<uint16_t>(bits);
}
static inline I SpreadBit2(uint16_t bits) {
  I out;
  CAIRN_LANES(out.v[i] = (bits >> i & 1) << 2)
  return out;
}
template <int kDistance>
static inline F Butterfly(F a) {
  F out;
  CAIRN_LANES(out.v[i] = i & kDistance ? a.v[i ^ kDistance] - a.v[i] : a.v[i] + a.v[i ^ kDistance])
  return out;
}
#undef CAIRN_LANES

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
#else
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
  _mm_prefetch(static_cast<const char*>(p) + 4096, _MM_HINT_T0);
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
