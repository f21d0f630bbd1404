// The widest float vector of the instruction set this file is compiled for, as a GCC vector type:
// arithmetic is written with operators, and only what those lack is an intrinsic.
//
// Included by a translation unit per instruction set, each with its own CAIRN_KERNEL_NS: functions
// of one must never be merged with those of another by the linker. For the same reason kernels use
// no templates of the standard library. No include guard by design: see kernels.inc.h.

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

namespace cairn::kernels::CAIRN_KERNEL_NS {

#if defined(__AVX512F__)
inline constexpr int kWidth = 16;
#elif defined(__AVX2__)
inline constexpr int kWidth = 8;
#else
inline constexpr int kWidth = 4;
#endif

// may_alias and the alignment of one number: they are read from and written to plain arrays.
typedef float Vec __attribute__((vector_size(kWidth * 4)));
typedef int32_t IntVec __attribute__((vector_size(kWidth * 4)));
typedef float VecU __attribute__((vector_size(kWidth * 4), aligned(4), may_alias));
typedef int32_t IntVecU __attribute__((vector_size(kWidth * 4), aligned(4), may_alias));

inline constexpr float kInfinity = __builtin_inff();

static inline int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

static inline Vec Load(const float* p) { return *reinterpret_cast<const VecU*>(p); }
static inline void Store(float* p, Vec v) { *reinterpret_cast<VecU*>(p) = v; }
static inline IntVec LoadInt(const void* p) { return *reinterpret_cast<const IntVecU*>(p); }
static inline Vec Set(float x) { return x - Vec{}; }
static inline Vec ToFloat(IntVec v) { return __builtin_convertvector(v, Vec); }

#if defined(__AVX512F__)

static inline Vec Max(Vec a, Vec b) { return (Vec)_mm512_max_ps((__m512)a, (__m512)b); }
static inline Vec LoadHalf(const uint16_t* p) {
  return (Vec)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
static inline void StoreHalf(uint16_t* p, Vec v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
}

#elif defined(__AVX2__)

static inline Vec Max(Vec a, Vec b) { return (Vec)_mm256_max_ps((__m256)a, (__m256)b); }
static inline Vec LoadHalf(const uint16_t* p) {
  return (Vec)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
static inline void StoreHalf(uint16_t* p, Vec v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
}

#else

static inline Vec Max(Vec a, Vec b) { return a > b ? a : b; }

#endif

#if defined(CAIRN_NEON)

static inline Vec LoadHalf(const uint16_t* p) {
  return (Vec)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
static inline void StoreHalf(uint16_t* p, Vec v) {
  vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)v)));
}

#endif

static inline float ScalarFromHalf(uint16_t h) {
#if defined(__F16C__)
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
#elif defined(CAIRN_NEON)
  __fp16 half;
  std::memcpy(&half, &h, 2);
  return half;
#else
  // Shifting exponent and mantissa into place leaves the exponent too small by 112; multiplying by
  // 2^112 corrects that, subnormal numbers included.
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  uint32_t bits = static_cast<uint32_t>(h & 0x7fff) << 13;
  float f;
  if ((h & 0x7c00) == 0x7c00) {
    bits |= 0x7f800000;
    std::memcpy(&f, &bits, 4);
  } else {
    std::memcpy(&f, &bits, 4);
    f *= 0x1p112f;
  }
  std::memcpy(&bits, &f, 4);
  bits |= sign;
  std::memcpy(&f, &bits, 4);
  return f;
#endif
}

static inline uint16_t ScalarToHalf(float x) {
#if defined(__F16C__)
  return static_cast<uint16_t>(
      _mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT)));
#elif defined(CAIRN_NEON)
  const auto half = static_cast<__fp16>(x);
  uint16_t bits;
  std::memcpy(&bits, &half, 2);
  return bits;
#else
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint32_t sign = (bits >> 16) & 0x8000;
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (bits >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (bits < 0x38800000) {
    // Subnormal result: adding 2^-1 * 2^... aligns the mantissa so that the hardware rounds it.
    float f;
    std::memcpy(&f, &bits, 4);
    f += 0.5f;
    std::memcpy(&bits, &f, 4);
    return static_cast<uint16_t>(sign | (bits - 0x3f000000));
  }
  bits += 0xfff + ((bits >> 13) & 1);
  return static_cast<uint16_t>(sign | ((bits - 0x38000000) >> 13));
#endif
}

#if !defined(__AVX2__) && !defined(CAIRN_NEON)
static inline Vec LoadHalf(const uint16_t* p) {
  Vec v;
  for (int i = 0; i < kWidth; ++i) v[i] = ScalarFromHalf(p[i]);
  return v;
}
static inline void StoreHalf(uint16_t* p, Vec v) {
  for (int i = 0; i < kWidth; ++i) p[i] = ScalarToHalf(v[i]);
}
#endif

static inline float Sum(Vec v) {
  float s[kWidth];
  Store(s, v);
  for (int half = kWidth / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) s[i] += s[i + half];
  }
  return s[0];
}

static inline float MaxOf(Vec v) {
  float s[kWidth];
  Store(s, v);
  float m = s[0];
  for (int i = 1; i < kWidth; ++i) m = s[i] > m ? s[i] : m;
  return m;
}

// exp(x) to about 2 ulp for x in [-87, 88]; below it stays at exp(-87), which is 1.6e-38; NaN and
// +infinity are not for this function. Cody-Waite reduction, polynomial of Cephes' expf.
static inline Vec Exp(Vec x) {
  const Vec low = Set(-87.0f);
  x = Max(x, low);
  x = x < 88.0f ? x : Set(88.0f);
  // Adding 1.5 * 2^23 rounds to an integer, which is then in the low mantissa bits.
  const Vec magic = Set(12582912.0f);
  const Vec shifted = x * 1.44269504088896341f + magic;
  const Vec n = shifted - magic;
  Vec r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  Vec p = Set(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const IntVec scale = ((IntVec)shifted - (IntVec)magic + 127) << 23;
  return p * (Vec)scale;
}

}  // namespace cairn::kernels::CAIRN_KERNEL_NS
