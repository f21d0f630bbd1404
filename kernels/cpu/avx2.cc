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

// dot[row][half of the panel]: the sums over the vectors [kFrom, kTo) of a step.
template <bool kNibble, int kFrom, int kTo, int kRows>
static inline __attribute__((always_inline)) void StepDots(const std::byte* numbers,
                                                           const Step* const* x,
                                                           __m256i (*dot)[2]) {
  const __m256i low = _mm256_set1_epi32(0x000f000f);
  for (int r = 0; r < kRows; ++r) dot[r][0] = dot[r][1] = _mm256_setzero_si256();
  const auto add = [&](int q, __m256i w0, __m256i w1) __attribute__((always_inline)) {
    for (int r = 0; r < kRows; ++r) {
      const __m256i pair = Pair(x[r]->q + q);
      dot[r][0] = _mm256_add_epi32(dot[r][0], _mm256_madd_epi16(w0, pair));
      dot[r][1] = _mm256_add_epi32(dot[r][1], _mm256_madd_epi16(w1, pair));
      // Added in this order: GCC would add products to each other first, and run out of registers.
      asm("" : "+x"(dot[r][0]), "+x"(dot[r][1]));
    }
  };
#pragma GCC unroll 8
  for (int j = kFrom; j < kTo; ++j) {
    const auto* raw = reinterpret_cast<const __m256i*>(numbers + j * 64);
    const __m256i a = _mm256_loadu_si256(raw), b = _mm256_loadu_si256(raw + 1);
    if constexpr (kNibble) {
      const int q = 8 * j;
      add(q, _mm256_and_si256(a, low), _mm256_and_si256(b, low));
      add(q + 2, _mm256_and_si256(_mm256_srli_epi32(a, 8), low),
          _mm256_and_si256(_mm256_srli_epi32(b, 8), low));
      add(q + 4, _mm256_and_si256(_mm256_srli_epi32(a, 4), low),
          _mm256_and_si256(_mm256_srli_epi32(b, 4), low));
      add(q + 6, _mm256_and_si256(_mm256_srli_epi32(a, 12), low),
          _mm256_and_si256(_mm256_srli_epi32(b, 12), low));
    } else {
      const int q = 4 * j;
      add(q, _mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8),
          _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
      add(q + 2, _mm256_srai_epi16(a, 8), _mm256_srai_epi16(b, 8));
    }
  }
}

// Some rows times one panel: acc[row].
template <bool kNibble, int kGroup, int kRows>
static inline void IntegerPanelDots(const MatVecArgs& a, int64_t panel, int64_t first, Panel* acc) {
  const PackedView& w = a.w;
  const PackedFormat& f = w.format();
  const size_t number_bytes = f.number_bytes_per_step();
  const size_t scale_bytes = f.scale_bytes_per_step();
  constexpr int kVectors = kNibble ? 4 : 8;
  const Step* x[kRows];
  for (int r = 0; r < kRows; ++r) {
    x[r] = reinterpret_cast<const Step*>(a.activation + (first + r) * a.activation_stride);
    acc[r] = {};
  }
  const std::byte* numbers = w.numbers(panel);
  const std::byte* scales = w.scales(panel);
  for (int64_t s = 0; s < w.steps(); ++s, numbers += number_bytes, scales += scale_bytes) {
    const Panel d = LoadScales(scales, f.wide);
    __m256i dot[kRows][2];
    if constexpr (kGroup == 16) {
      const Panel d1 = LoadScales(scales + ScaleRowBytes(f), f.wide);
      StepDots<kNibble, 0, kVectors / 2, kRows>(numbers, x, dot);
      for (int r = 0; r < kRows; ++r) {
        for (int i = 0; i < kVecs; ++i) {
          acc[r].v[i] += d.v[i] * (ToFloat((IntVec)dot[r][i]) * x[r]->scale);
        }
      }
      StepDots<kNibble, kVectors / 2, kVectors, kRows>(numbers, x, dot);
      for (int r = 0; r < kRows; ++r) {
        for (int i = 0; i < kVecs; ++i) {
          acc[r].v[i] += d1.v[i] * (ToFloat((IntVec)dot[r][i]) * x[r]->scale);
        }
      }
    } else {
      StepDots<kNibble, 0, kVectors, kRows>(numbers, x, dot);
      for (int r = 0; r < kRows; ++r) {
        const __m256i shift = _mm256_set1_epi32(f.offset * x[r]->sum);
        for (int i = 0; i < kVecs; ++i) {
          acc[r].v[i] +=
              d.v[i] * (ToFloat((IntVec)_mm256_sub_epi32(dot[r][i], shift)) * x[r]->scale);
        }
      }
    }
    if (f.has_min) {
      const Panel m = LoadScales(scales + ScaleRowBytes(f), f.wide);
      for (int r = 0; r < kRows; ++r) {
        for (int i = 0; i < kVecs; ++i) acc[r].v[i] += m.v[i] * x[r]->scaled_sum;
      }
    }
    for (int r = 0; r < kRows; ++r) ++x[r];
  }
}

template <bool kNibble, int kGroup>
static void IntegerMatVec(const MatVecArgs& a) {
  for (int64_t p = a.panel_begin; p < a.panel_end; ++p) {
    ByFours(a.rows, [&](auto rows, int64_t first) {
      Panel acc[rows.value];
      IntegerPanelDots<kNibble, kGroup, rows.value>(a, p, first, acc);
      StoreRows(a, p, first, rows.value, acc);
    });
  }
}

static void MatVec(const MatVecArgs& a) {
  if (a.activation == nullptr) return MatVecFloat(a);
  switch (a.w.format().kind) {
    case PackedKind::kNibble:
      return IntegerMatVec<true, 32>(a);
    case PackedKind::kByte:
      return a.w.format().group == 16 ? IntegerMatVec<false, 16>(a) : IntegerMatVec<false, 32>(a);
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
