// Packed weights to bfloat16 in the order that vdpbf16ps and AMX tiles read: [columns / 2][16
// outputs][2], so that a run of 32 columns is one tile of 1 KiB. Included after vec.inc.h.

namespace cairn::kernels::CAIRN_KERNEL_NS {

static inline __m512i InterleaveIndex() {
  alignas(64) uint16_t index[32];
  for (uint16_t n = 0; n < 16; ++n) {
    index[2 * n] = n;
    index[2 * n + 1] = static_cast<uint16_t>(16 + n);
  }
  return _mm512_load_si512(index);
}

// Lane n of the result holds (first[n], second[n]).
static inline __m512i PairBf16(__m512 first, __m512 second, __m512i interleave) {
  return _mm512_permutexvar_epi16(interleave, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}

static inline __m512 ScaleRow(const std::byte* p, bool wide) {
  if (wide) return _mm512_loadu_ps(reinterpret_cast<const float*>(p));
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

static inline __m512 PlainRow(PackedKind kind, const std::byte* step, int c) {
  if (kind == PackedKind::kFloat) {
    return _mm512_loadu_ps(reinterpret_cast<const float*>(step) + c * 16);
  }
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(step) + c);
  if (kind == PackedKind::kHalf) return _mm512_cvtph_ps(half);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

static void UnpackPanelBf16(const PackedView& w, int64_t panel, uint16_t* out) {
  const PackedFormat& f = w.format();
  const size_t step_bytes = f.number_bytes_per_step();
  const size_t scale_bytes = f.scale_bytes_per_step();
  const size_t scale_row = f.wide ? 64 : 32;
  const std::byte* step = w.numbers(panel);
  const std::byte* scale = w.scales(panel);
  const __m512i interleave = InterleaveIndex();
  // vpermps looks only at the low four bits of an index: masks and converts a nibble in one.
  const __m512 digits = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  for (int64_t s = 0; s < w.steps(); ++s, step += step_bytes, scale += scale_bytes) {
    __m512i* row = reinterpret_cast<__m512i*>(out + s * kStepColumns * kPanelRows);
    if (f.kind == PackedKind::kNibble) {
      const __m512 d = ScaleRow(scale, f.wide);
      const __m512 m = f.has_min ? ScaleRow(scale + scale_row, f.wide)
                                 : _mm512_mul_ps(d, _mm512_set1_ps(static_cast<float>(-f.offset)));
#define CAIRN_NIBBLE(shift) \
  _mm512_fmadd_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(raw, shift), digits), d, m)
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const __m512i raw = _mm512_loadu_si512(step + j * 64);
        const __m512 first = _mm512_fmadd_ps(_mm512_permutexvar_ps(raw, digits), d, m);
        _mm512_store_si512(row + 4 * j, PairBf16(first, CAIRN_NIBBLE(8), interleave));
        _mm512_store_si512(row + 4 * j + 1,
                           PairBf16(CAIRN_NIBBLE(16), CAIRN_NIBBLE(24), interleave));
        _mm512_store_si512(row + 4 * j + 2,
                           PairBf16(CAIRN_NIBBLE(4), CAIRN_NIBBLE(12), interleave));
        _mm512_store_si512(row + 4 * j + 3,
                           PairBf16(CAIRN_NIBBLE(20), CAIRN_NIBBLE(28), interleave));
      }
#undef CAIRN_NIBBLE
    } else if (f.kind == PackedKind::kByte) {
      const __m512 d0 = ScaleRow(scale, f.wide);
      const __m512 d1 = f.group == 16 ? ScaleRow(scale + scale_row, f.wide) : d0;
      const __m512 m = f.has_min ? ScaleRow(scale + scale_row, f.wide) : _mm512_setzero_ps();
      for (int j = 0; j < 8; ++j) {
        const __m512i raw = _mm512_loadu_si512(step + j * 64);
        const __m512 d = j < 4 ? d0 : d1;
#define CAIRN_BYTE(shift) \
  _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(raw, shift), 24)), d, m)
        _mm512_store_si512(row + 2 * j, PairBf16(CAIRN_BYTE(24), CAIRN_BYTE(16), interleave));
        _mm512_store_si512(row + 2 * j + 1, PairBf16(CAIRN_BYTE(8), CAIRN_BYTE(0), interleave));
#undef CAIRN_BYTE
      }
    } else {
      for (int c = 0; c < kStepColumns; c += 2) {
        _mm512_store_si512(row + c / 2, PairBf16(PlainRow(f.kind, step, c),
                                                 PlainRow(f.kind, step, c + 1), interleave));
      }
    }
  }
}

static void ToBfloat16Fast(const ToBfloat16Args& a) {
  int64_t i = 0;
  for (; i + 32 <= a.n; i += 32) {
    _mm512_storeu_si512(a.y + i, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(a.x + i + 16),
                                                              _mm512_loadu_ps(a.x + i)));
  }
  if (i < a.n) {
    float rest[32] = {};
    uint16_t rounded[32];
    std::memcpy(rest, a.x + i, static_cast<size_t>(a.n - i) * sizeof(float));
    _mm512_storeu_si512(
        rounded, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(rest + 16), _mm512_loadu_ps(rest)));
    std::memcpy(a.y + i, rounded, static_cast<size_t>(a.n - i) * sizeof(uint16_t));
  }
}

}  // namespace cairn::kernels::CAIRN_KERNEL_NS
