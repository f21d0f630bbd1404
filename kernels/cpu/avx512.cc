#define CAIRN_KERNEL_NS avx512
#include "kernels/cpu/forward_makers.h"
#include "kernels/cpu/kernels.inc.h"

// Integer products with vpdpbusd: weights as unsigned bytes, lane = output, four columns a lane.
// An activation of 15 bits is split in two signed bytes, q = 128 * high + low, so the integer sums
// are the same as those of the AVX2 kernel.

namespace cairn::kernels {
namespace avx512 {

struct Step {
  int8_t high[32];
  int8_t low[32];
  float scale;
  float scaled_sum;  // scale * sum(q)
  int32_t sum[2];    // The sum of q, for each half of the columns.
};
static_assert(sizeof(Step) == 80);

static void PrepareActivation(const PrepareActivationArgs& a) {
  const float* x = a.x;
  Step* step = reinterpret_cast<Step*>(a.activation);
  for (int64_t s = 0; s < (a.cols + 31) / 32; ++s, ++step, x += 32) {
    const __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16);
    const float top = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(x0), _mm512_abs_ps(x1)));
    // The largest q is 127 * 128, so that rounding to the nearest multiple of 128 fits a byte.
    const __m512 inverse = _mm512_set1_ps(top > 0.0f ? 16256.0f / top : 0.0f);
    const __m512i q0 = _mm512_cvtps_epi32(_mm512_mul_ps(x0, inverse));
    const __m512i q1 = _mm512_cvtps_epi32(_mm512_mul_ps(x1, inverse));
    const __m512i half = _mm512_set1_epi32(64);
    const __m512i h0 = _mm512_srai_epi32(_mm512_add_epi32(q0, half), 7);
    const __m512i h1 = _mm512_srai_epi32(_mm512_add_epi32(q1, half), 7);
    const __m512i l0 = _mm512_sub_epi32(q0, _mm512_slli_epi32(h0, 7));
    const __m512i l1 = _mm512_sub_epi32(q1, _mm512_slli_epi32(h1, 7));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(step->high), _mm512_cvtepi32_epi8(h0));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(step->high + 16), _mm512_cvtepi32_epi8(h1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(step->low), _mm512_cvtepi32_epi8(l0));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(step->low + 16), _mm512_cvtepi32_epi8(l1));
    step->scale = top / 16256.0f;
    step->sum[0] = _mm512_reduce_add_epi32(q0);
    step->sum[1] = _mm512_reduce_add_epi32(q1);
    step->scaled_sum = step->scale * static_cast<float>(step->sum[0] + step->sum[1]);
  }
}

static inline __m512i Four(const int8_t* q) {
  int32_t four;
  std::memcpy(&four, q, 4);
  return _mm512_set1_epi32(four);
}

// dot[row]: the sum over the vectors [kFrom, kTo) of a step, plus `start`.
template <bool kNibble, int kFrom, int kTo, int kRows>
static inline void StepDots(const std::byte* numbers, const Step* const* x, const int32_t* start,
                            __m512* dot) {
  __m512i high[kRows], low[kRows];
  for (int r = 0; r < kRows; ++r) {
    high[r] = _mm512_setzero_si512();
    low[r] = _mm512_set1_epi32(start[r]);
  }
  const __m512i mask = _mm512_set1_epi8(15);
  const __m512i flip = _mm512_set1_epi8(-128);
  const auto add = [&](int q, __m512i w) {
    for (int r = 0; r < kRows; ++r) {
      high[r] = _mm512_dpbusd_epi32(high[r], w, Four(x[r]->high + q));
      low[r] = _mm512_dpbusd_epi32(low[r], w, Four(x[r]->low + q));
    }
  };
#pragma GCC unroll 8
  for (int j = kFrom; j < kTo; ++j) {
    const __m512i raw = _mm512_loadu_si512(numbers + j * 64);
    if constexpr (kNibble) {
      add(8 * j, _mm512_and_si512(raw, mask));
      add(8 * j + 4, _mm512_and_si512(_mm512_srli_epi16(raw, 4), mask));
    } else {
      // Signed weight + 128 is unsigned; `start` takes the 128 back.
      add(4 * j, _mm512_xor_si512(raw, flip));
    }
  }
  for (int r = 0; r < kRows; ++r) {
    dot[r] = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high[r], 7), low[r]));
  }
}

template <bool kWide>
static inline __m512 Scales(const std::byte* p) {
  if constexpr (kWide) return _mm512_loadu_ps(reinterpret_cast<const float*>(p));
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// Panels lie behind each other, so what comes next is known. The hardware prefetcher stops at page
// ends and at the jump from numbers to scales; far from cache that costs most of the time.
inline constexpr size_t kPrefetchBytes = 8192;

template <size_t kBytes>
static inline void Prefetch(const std::byte* p) {
#pragma GCC unroll 16
  for (size_t i = 0; i < kBytes; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(p + i), _MM_HINT_T0);
  }
}

// Some rows times one panel: acc[row].
template <bool kNibble, int kGroup, bool kMin, bool kWide, int kRows>
static inline void IntegerPanelDots(const MatVecArgs& a, int64_t panel, int64_t first, Panel* out) {
  const PackedView& w = a.w;
  constexpr int kVectors = kNibble ? 4 : 8;
  constexpr size_t kScaleRow = kWide ? 64 : 32;
  constexpr size_t kScaleStep = kScaleRow * (kGroup == 16 ? 2 : 1) + (kMin ? kScaleRow : 0);
  constexpr size_t kStepBytes = kVectors * 64 + kScaleStep;
  const int32_t offset = kNibble ? w.format().offset : 128;
  const Step* x[kRows];
  __m512 acc[kRows];
  for (int r = 0; r < kRows; ++r) {
    x[r] = reinterpret_cast<const Step*>(a.activation + (first + r) * a.activation_stride);
    acc[r] = _mm512_setzero_ps();
  }
  const std::byte* numbers = w.numbers(panel);
  const std::byte* scales = w.scales(panel);
  const std::byte* ahead = numbers + kPrefetchBytes;
  const int64_t steps = w.steps();
  for (int64_t s = 0; s < steps; ++s, numbers += kVectors * 64, scales += kScaleStep) {
    // The rows after the first four find the panel in the cache.
    if (first == 0) Prefetch<kStepBytes>(ahead);
    ahead += kStepBytes;
    const __m512 d = Scales<kWide>(scales);
    int32_t start[kRows];
    __m512 dot[kRows];
    if constexpr (kGroup == 16) {
      const __m512 d1 = Scales<kWide>(scales + kScaleRow);
      __m512 hi[kRows];
      for (int r = 0; r < kRows; ++r) start[r] = -offset * x[r]->sum[0];
      StepDots<kNibble, 0, kVectors / 2, kRows>(numbers, x, start, dot);
      for (int r = 0; r < kRows; ++r) start[r] = -offset * x[r]->sum[1];
      StepDots<kNibble, kVectors / 2, kVectors, kRows>(numbers, x, start, hi);
      for (int r = 0; r < kRows; ++r) {
        const __m512 scale = _mm512_set1_ps(x[r]->scale);
        acc[r] = _mm512_fmadd_ps(d, _mm512_mul_ps(dot[r], scale), acc[r]);
        acc[r] = _mm512_fmadd_ps(d1, _mm512_mul_ps(hi[r], scale), acc[r]);
      }
    } else {
      for (int r = 0; r < kRows; ++r) start[r] = -offset * (x[r]->sum[0] + x[r]->sum[1]);
      StepDots<kNibble, 0, kVectors, kRows>(numbers, x, start, dot);
      for (int r = 0; r < kRows; ++r) {
        const __m512 scale = _mm512_set1_ps(x[r]->scale);
        acc[r] = _mm512_fmadd_ps(d, _mm512_mul_ps(dot[r], scale), acc[r]);
      }
    }
    if constexpr (kMin) {
      const __m512 m = Scales<kWide>(scales + kScaleStep - kScaleRow);
      for (int r = 0; r < kRows; ++r) {
        acc[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(x[r]->scaled_sum), acc[r]);
      }
    }
    for (int r = 0; r < kRows; ++r) ++x[r];
  }
  for (int r = 0; r < kRows; ++r) out[r].v[0] = (Vec)acc[r];
}

template <bool kNibble, int kGroup, bool kMin, bool kWide>
static void IntegerMatVec(const MatVecArgs& a) {
  for (int64_t p = a.panel_begin; p < a.panel_end; ++p) {
    ByFours(a.rows, [&](auto rows, int64_t first) {
      Panel acc[rows.value];
      IntegerPanelDots<kNibble, kGroup, kMin, kWide, rows.value>(a, p, first, acc);
      StoreRows(a, p, first, rows.value, acc);
    });
  }
}

static void MatVec(const MatVecArgs& a) {
  const PackedFormat& f = a.w.format();
  if (a.activation == nullptr || f.group == 0) return MatVecFloat(a);
  if (f.kind == PackedKind::kNibble) {
    if (!f.has_min) return IntegerMatVec<true, 32, false, false>(a);
    return f.wide ? IntegerMatVec<true, 32, true, true>(a)
                  : IntegerMatVec<true, 32, true, false>(a);
  }
  if (f.group == 16) return IntegerMatVec<false, 16, false, true>(a);
  if (!f.has_min) return IntegerMatVec<false, 32, false, false>(a);
  return f.wide ? IntegerMatVec<false, 32, true, true>(a)
                : IntegerMatVec<false, 32, true, false>(a);
}

}  // namespace avx512

ForwardKernels MakeAvx512ForwardKernels() {
  ForwardKernels k = avx512::FloatKernels("avx512");
  k.prepare_activation = InlineOp<avx512::PrepareActivation>::Run;
  k.mat_vec = InlineOp<avx512::MatVec>::Run;
  return k;
}

}  // namespace cairn::kernels
