#define CAIRN_KERNEL_NS avx512_bf16
// The order matters: each of these uses what stands before it.
// clang-format off
#include "kernels/cpu/forward_makers.h"
#include "kernels/cpu/vec.inc.h"
#include "cairn/kernels/forward_kernels.h"
#include "cairn/kernels/inline_op.h"

#include "kernels/cpu/bf16_panel.inc.h"
// clang-format on

// Products in bfloat16 with vdpbf16ps, for machines without tiles.

namespace cairn::kernels {
namespace avx512_bf16 {

static inline __m512bh PairOf(const uint16_t* a) {
  int32_t two;
  std::memcpy(&two, a, 4);
  return (__m512bh)_mm512_set1_epi32(two);
}

// kRows rows times kPanels unpacked panels.
template <int kRows, int kPanels>
static inline void Block(const uint16_t* a, int64_t a_stride, const uint16_t* b, int64_t k,
                         float* y, int64_t y_stride, bool accumulate) {
  __m512 acc[kRows][kPanels];
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPanels; ++p) acc[r][p] = _mm512_setzero_ps();
  }
  for (int64_t c = 0; c < k; c += 2) {
    __m512bh w[kPanels];
    for (int p = 0; p < kPanels; ++p) {
      w[p] = (__m512bh)_mm512_load_si512(b + p * k * kPanelRows + c * kPanelRows);
    }
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const __m512bh x = PairOf(a + r * a_stride + c);
      for (int p = 0; p < kPanels; ++p) acc[r][p] = _mm512_dpbf16_ps(acc[r][p], x, w[p]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPanels; ++p) {
      float* out = y + r * y_stride + p * kPanelRows;
      if (accumulate) acc[r][p] = _mm512_add_ps(acc[r][p], _mm512_loadu_ps(out));
      _mm512_storeu_ps(out, acc[r][p]);
    }
  }
}

template <int kRows, int kPanels>
static void Rows(int64_t rows, const uint16_t* a, int64_t a_stride, const uint16_t* b, int64_t k,
                 float* y, int64_t y_stride, bool accumulate) {
  if constexpr (kRows > 0) {
    if (rows >= kRows) return Block<kRows, kPanels>(a, a_stride, b, k, y, y_stride, accumulate);
    return Rows<kRows - 1, kPanels>(rows, a, a_stride, b, k, y, y_stride, accumulate);
  }
}

static void Gemm(const GemmArgs& g) {
  constexpr int64_t kRows = 12;
  const PackedView& w = g.w;
  const int64_t k = w.steps() * kStepColumns;
  uint16_t* b = reinterpret_cast<uint16_t*>(g.scratch);
  for (int64_t p = g.panel_begin; p < g.panel_end; p += 2) {
    const int64_t panels = Min(2, g.panel_end - p);
    for (int64_t i = 0; i < panels; ++i) UnpackPanelBf16(w, p + i, b + i * k * kPanelRows);
    const int64_t outputs = Min(panels * kPanelRows, w.rows() - p * kPanelRows);
    float* y = g.y + p * kPanelRows;
    for (int64_t r = 0; r < g.rows; r += kRows) {
      const int64_t rows = Min(kRows, g.rows - r);
      const uint16_t* a = g.a_bf16 + r * g.a_stride;
      float* out = y + r * g.y_stride;
      int64_t out_stride = g.y_stride;
      float aside[kRows * 2 * kPanelRows];
      const bool whole = outputs == panels * kPanelRows;
      const size_t bytes = static_cast<size_t>(outputs) * sizeof(float);
      if (!whole) {
        if (g.accumulate) {
          for (int64_t i = 0; i < rows; ++i) {
            std::memset(aside + i * 32, 0, 32 * sizeof(float));
            std::memcpy(aside + i * 32, out + i * g.y_stride, bytes);
          }
        }
        out = aside;
        out_stride = 32;
      }
      if (panels == 2) {
        Rows<kRows, 2>(rows, a, g.a_stride, b, k, out, out_stride, g.accumulate);
      } else {
        Rows<kRows, 1>(rows, a, g.a_stride, b, k, out, out_stride, g.accumulate);
      }
      if (!whole) {
        for (int64_t i = 0; i < rows; ++i) {
          std::memcpy(y + (r + i) * g.y_stride, aside + i * 32, bytes);
        }
      }
    }
  }
}

}  // namespace avx512_bf16

ForwardKernels AddAvx512Bf16(ForwardKernels kernels) {
  kernels.name = "avx512-bf16";
  kernels.to_bf16 = InlineOp<avx512_bf16::ToBfloat16Fast>::Run;
  kernels.gemm_bf16 = InlineOp<avx512_bf16::Gemm>::Run;
  return kernels;
}

}  // namespace cairn::kernels
