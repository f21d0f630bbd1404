#define CAIRN_KERNEL_NS avx2
#include "kernels/cpu/forward_makers.h"
#include "kernels/cpu/kernels.inc.h"

// Integer products with 16-bit activations: a sign- or zero-extended weight times an activation of
// 15 bits, two at a time, is exact in vpmaddwd.

namespace cairn::kernels {
namespace avx2 {

// An activation row, by steps of 32 columns: int16 q[32] in the order in which a matrix's vectors
// meet them, float scale, float scale * sum(q), int32 sum(q); 16 bytes of padding keep it aligned.
struct Step {
  int16_t q[32];
  float scale;
  float scaled_sum;
  int32_t sum;
  int32_t pad;
};
static_assert(sizeof(Step) == 80);

static void PrepareActivation(const PrepareActivationArgs& a) {
  const float* x = a.x;
  Step* step = reinterpret_cast<Step*>(a.activation);
  for (int64_t s = 0; s < (a.cols + 31) / 32; ++s, ++step, x += 32) {
    float top = 0.0f;
    for (int c = 0; c < 32; ++c) {
      const float v = __builtin_fabsf(x[c]);
      top = v > top ? v : top;
    }
    const float inverse = top > 0.0f ? 16256.0f / top : 0.0f;
    int32_t sum = 0;
    for (int c = 0; c < 32; ++c) {
      const int32_t q = static_cast<int32_t>(__builtin_rintf(x[c] * inverse));
      sum += q;
      // Groups of four columns: 0, 2, 1, 3.
      step->q[c / 4 * 4 + (c % 2) * 2 + c / 2 % 2] = static_cast<int16_t>(q);
    }
    step->scale = top / 16256.0f;
    step->scaled_sum = step->scale * static_cast<float>(sum);
    step->sum = sum;
    step->pad = 0;
  }
}

static inline __m256i Pair(const int16_t* q) {
  int32_t two;
  std::memcpy(&two, q, 4);
  return _mm256_set1_epi32(two);
}

template <bool kNibble>
static inline __m256i StepDot(const std::byte* numbers, const int16_t* q, int from, int to) {
  __m256i dot = _mm256_setzero_si256();
  const __m256i low = _mm256_set1_epi32(0x000f000f);
  for (int j = from; j < to; ++j) {
    const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(numbers + j * 64));
    if constexpr (kNibble) {
      const int16_t* x = q + 8 * j;
      dot = _mm256_add_epi32(dot, _mm256_madd_epi16(_mm256_and_si256(raw, low), Pair(x)));
      dot = _mm256_add_epi32(
          dot, _mm256_madd_epi16(_mm256_and_si256(_mm256_srli_epi32(raw, 8), low), Pair(x + 2)));
      dot = _mm256_add_epi32(
          dot, _mm256_madd_epi16(_mm256_and_si256(_mm256_srli_epi32(raw, 4), low), Pair(x + 4)));
      dot = _mm256_add_epi32(
          dot, _mm256_madd_epi16(_mm256_and_si256(_mm256_srli_epi32(raw, 12), low), Pair(x + 6)));
    } else {
      const int16_t* x = q + 4 * j;
      const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(raw, 8), 8);
      const __m256i odd = _mm256_srai_epi16(raw, 8);
      dot = _mm256_add_epi32(dot, _mm256_madd_epi16(even, Pair(x)));
      dot = _mm256_add_epi32(dot, _mm256_madd_epi16(odd, Pair(x + 2)));
    }
  }
  return dot;
}

template <bool kNibble>
static void IntegerMatVec(const MatVecArgs& a) {
  const PackedView& w = a.w;
  const PackedFormat& f = w.format();
  const size_t number_bytes = f.number_bytes_per_step();
  const size_t scale_bytes = f.scale_bytes_per_step();
  constexpr int kVectors = kNibble ? 4 : 8;
  for (int64_t p = a.panel_begin; p < a.panel_end; ++p) {
    for (int64_t r = 0; r < a.rows; ++r) {
      const Step* x = reinterpret_cast<const Step*>(a.activation + r * a.activation_stride);
      const std::byte* numbers = w.numbers(p);
      const std::byte* scales = w.scales(p);
      Panel acc = {};
      for (int64_t s = 0; s < w.steps(); ++s, ++x) {
        const Panel d = LoadScales(scales, f.wide);
        if (f.group == 16) {
          const Panel d1 = LoadScales(scales + ScaleRowBytes(f), f.wide);
          for (int i = 0; i < kVecs; ++i) {
            const __m256i lo = StepDot<kNibble>(numbers + 32 * i, x->q, 0, kVectors / 2);
            const __m256i hi = StepDot<kNibble>(numbers + 32 * i, x->q, kVectors / 2, kVectors);
            acc.v[i] += d.v[i] * (ToFloat((IntVec)lo) * x->scale);
            acc.v[i] += d1.v[i] * (ToFloat((IntVec)hi) * x->scale);
          }
        } else {
          for (int i = 0; i < kVecs; ++i) {
            const __m256i dot =
                _mm256_sub_epi32(StepDot<kNibble>(numbers + 32 * i, x->q, 0, kVectors),
                                 _mm256_set1_epi32(f.offset * x->sum));
            acc.v[i] += d.v[i] * (ToFloat((IntVec)dot) * x->scale);
          }
        }
        if (f.has_min) {
          const Panel m = LoadScales(scales + ScaleRowBytes(f), f.wide);
          for (int i = 0; i < kVecs; ++i) acc.v[i] += m.v[i] * x->scaled_sum;
        }
        numbers += number_bytes;
        scales += scale_bytes;
      }
      StoreOutputs(acc, w.rows() - p * kPanelRows, a.accumulate,
                   a.y + r * a.y_stride + p * kPanelRows);
    }
  }
}

static void MatVec(const MatVecArgs& a) {
  if (a.activation == nullptr) return MatVecFloat(a);
  switch (a.w.format().kind) {
    case PackedKind::kNibble:
      return IntegerMatVec<true>(a);
    case PackedKind::kByte:
      return IntegerMatVec<false>(a);
    default:
      return MatVecFloat(a);
  }
}

}  // namespace avx2

ForwardKernels MakeAvx2ForwardKernels() {
  ForwardKernels k = avx2::FloatKernels("avx2");
  k.prepare_activation = InlineOp<avx2::PrepareActivation>::Run;
  k.mat_vec = InlineOp<avx2::MatVec>::Run;
  return k;
}

}  // namespace cairn::kernels
