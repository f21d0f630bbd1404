// Sixteen lanes in registers of 512 bits.
// Included by lanes.inc.h, in its namespace; no include guard by design.

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
