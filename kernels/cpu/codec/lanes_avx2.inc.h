// Sixteen lanes in two registers of 256 bits.
// Included by lanes.inc.h, in its namespace; no include guard by design.

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
