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
  int32_t sum[2];    // Of q, for each half of the columns.
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

// Sum over the vectors [kFrom, kTo) of a step, plus `start`.
template <bool kNibble, int kFrom, int kTo>
static inline __m512 StepDot(const std::byte* numbers, const Step& x, int32_t start) {
  __m512i high = _mm512_setzero_si512();
  __m512i low = _mm512_set1_epi32(start);
  const __m512i mask = _mm512_set1_epi8(15);
  const __m512i flip = _mm512_set1_epi8(-128);
#pragma GCC unroll 8
  for (int j = kFrom; j < kTo; ++j) {
    const __m512i raw = _mm512_loadu_si512(numbers + j * 64);
    if constexpr (kNibble) {
      const __m512i w0 = _mm512_and_si512(raw, mask);
      const __m512i w1 = _mm512_and_si512(_mm512_srli_epi16(raw, 4), mask);
      high = _mm512_dpbusd_epi32(high, w0, Four(x.high + 8 * j));
      low = _mm512_dpbusd_epi32(low, w0, Four(x.low + 8 * j));
      high = _mm512_dpbusd_epi32(high, w1, Four(x.high + 8 * j + 4));
      low = _mm512_dpbusd_epi32(low, w1, Four(x.low + 8 * j + 4));
    } else {
      // Signed weight + 128 is unsigned; `start` takes the 128 back.
      const __m512i w = _mm512_xor_si512(raw, flip);
      high = _mm512_dpbusd_epi32(high, w, Four(x.high + 4 * j));
      low = _mm512_dpbusd_epi32(low, w, Four(x.low + 4 * j));
    }
  }
  return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 7), low));
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

template <bool kNibble, int kGroup, bool kMin, bool kWide>
static void IntegerMatVec(const MatVecArgs& a) {
  const PackedView& w = a.w;
  constexpr int kVectors = kNibble ? 4 : 8;
  constexpr size_t kScaleRow = kWide ? 64 : 32;
  constexpr size_t kScaleStep = kScaleRow * (kGroup == 16 ? 2 : 1) + (kMin ? kScaleRow : 0);
  constexpr size_t kStepBytes = kVectors * 64 + kScaleStep;
  const int32_t offset = kNibble ? w.format().offset : 128;
  for (int64_t p = a.panel_begin; p < a.panel_end; ++p) {
    for (int64_t r = 0; r < a.rows; ++r) {
      const Step* x = reinterpret_cast<const Step*>(a.activation + r * a.activation_stride);
      const std::byte* numbers = w.numbers(p);
      const std::byte* scales = w.scales(p);
      const std::byte* ahead = numbers + kPrefetchBytes;
      __m512 acc = _mm512_setzero_ps();
      const int64_t steps = w.steps();
      for (int64_t s = 0; s < steps; ++s, ++x) {
        Prefetch<kStepBytes>(ahead);
        ahead += kStepBytes;
        const __m512 scale = _mm512_set1_ps(x->scale);
        const __m512 d = Scales<kWide>(scales);
        if constexpr (kGroup == 16) {
          const __m512 d1 = Scales<kWide>(scales + kScaleRow);
          const __m512 lo = StepDot<kNibble, 0, kVectors / 2>(numbers, *x, -offset * x->sum[0]);
          const __m512 hi =
              StepDot<kNibble, kVectors / 2, kVectors>(numbers, *x, -offset * x->sum[1]);
          acc = _mm512_fmadd_ps(d, _mm512_mul_ps(lo, scale), acc);
          acc = _mm512_fmadd_ps(d1, _mm512_mul_ps(hi, scale), acc);
        } else {
          const __m512 dot =
              StepDot<kNibble, 0, kVectors>(numbers, *x, -offset * (x->sum[0] + x->sum[1]));
          acc = _mm512_fmadd_ps(d, _mm512_mul_ps(dot, scale), acc);
        }
        if constexpr (kMin) {
          acc = _mm512_fmadd_ps(Scales<kWide>(scales + kScaleStep - kScaleRow),
                                _mm512_set1_ps(x->scaled_sum), acc);
        }
        numbers += kVectors * 64;
        scales += kScaleStep;
      }
      Panel out;
      out.v[0] = (Vec)acc;
      StoreOutputs(out, w.rows() - p * kPanelRows, a.accumulate,
                   a.y + r * a.y_stride + p * kPanelRows);
    }
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
