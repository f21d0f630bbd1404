#define CAIRN_KERNEL_NS amx
// The order matters: each of these uses what stands before it.
// clang-format off
#include "kernels/cpu/forward_makers.h"
#include "kernels/cpu/vec.inc.h"
#include "cairn/kernels/forward_kernels.h"
#include "cairn/kernels/inline_op.h"

#include "kernels/cpu/bf16_panel.inc.h"
// clang-format on

// Products and attention in bfloat16 with AMX tiles: 16 rows by 32 columns a tile, sums in float32.

namespace cairn::kernels {
namespace amx {

struct TileConfig {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64);

// All eight tiles: 16 rows of 64 bytes. A constant in memory, since GCC 12 tells its optimiser that
// _tile_loadconfig reads eight bytes, so that what a function writes to the others may be dropped.
alignas(64) static constexpr TileConfig kTileConfig = {
    .palette = 1,
    .start_row = 0,
    .reserved = {},
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

// Configures the tiles for its lifetime. Released at the end, so that threads outside the kernels
// have no tile state to switch.
class Tiles {
 public:
  Tiles() { _tile_loadconfig(&kTileConfig); }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

struct Block {
  const uint16_t* a;   // [32 or 16 rows][a_stride]
  int64_t a_stride;    // Numbers.
  const uint16_t* b0;  // Tiles of outputs 0..15, `b_step` numbers apart.
  const uint16_t* b1;  // Weights of outputs 16..31.
  int64_t b_step;
  int64_t steps;  // Steps of 32 columns.
  float* c;
  int64_t c_stride;  // Numbers.
  bool accumulate;
};

// Tiles 0..3: sums, 4 and 5: rows, 6 and 7: weights.
template <bool kTwoRows, bool kTwoOutputs>
static inline void Multiply(const Block& t) {
  const int64_t c_bytes = t.c_stride * 4;
  const int64_t a_bytes = t.a_stride * 2;
  float* lower = t.c + 16 * t.c_stride;
  if (t.accumulate) {
    _tile_loadd(0, t.c, c_bytes);
    if constexpr (kTwoOutputs) _tile_loadd(1, t.c + 16, c_bytes);
    if constexpr (kTwoRows) _tile_loadd(2, lower, c_bytes);
    if constexpr (kTwoRows && kTwoOutputs) _tile_loadd(3, lower + 16, c_bytes);
  } else {
    _tile_zero(0);
    if constexpr (kTwoOutputs) _tile_zero(1);
    if constexpr (kTwoRows) _tile_zero(2);
    if constexpr (kTwoRows && kTwoOutputs) _tile_zero(3);
  }
  const uint16_t* a = t.a;
  const uint16_t* b0 = t.b0;
  const uint16_t* b1 = t.b1;
  for (int64_t s = 0; s < t.steps; ++s, a += 32, b0 += t.b_step, b1 += t.b_step) {
    _tile_loadd(6, b0, 64);
    _tile_loadd(4, a, a_bytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kTwoOutputs) {
      _tile_loadd(7, b1, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kTwoRows) {
      _tile_loadd(5, a + 16 * t.a_stride, a_bytes);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kTwoOutputs) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, t.c, c_bytes);
  if constexpr (kTwoOutputs) _tile_stored(1, t.c + 16, c_bytes);
  if constexpr (kTwoRows) _tile_stored(2, lower, c_bytes);
  if constexpr (kTwoRows && kTwoOutputs) _tile_stored(3, lower + 16, c_bytes);
}

static inline void Multiply(const Block& t, bool two_rows, bool two_outputs) {
  if (two_rows) {
    if (two_outputs) return Multiply<true, true>(t);
    return Multiply<true, false>(t);
  }
  if (two_outputs) return Multiply<false, true>(t);
  return Multiply<false, false>(t);
}

static void Gemm(const GemmArgs& g) {
  if (g.rows == 0 || g.panel_begin == g.panel_end) return;
  const PackedView& w = g.w;
  const int64_t steps = w.steps();
  const int64_t panel_numbers = steps * kStepColumns * kPanelRows;
  uint16_t* b = reinterpret_cast<uint16_t*>(g.scratch);
  const Tiles tiles;
  for (int64_t p = g.panel_begin; p < g.panel_end; p += 2) {
    const int64_t panels = Min(2, g.panel_end - p);
    for (int64_t i = 0; i < panels; ++i) UnpackPanelBf16(w, p + i, b + i * panel_numbers);
    const int64_t outputs = Min(panels * kPanelRows, w.rows() - p * kPanelRows);
    for (int64_t r = 0; r < g.rows; r += 32) {
      const int64_t rows = Min(32, g.rows - r);
      float* y = g.y + r * g.y_stride + p * kPanelRows;
      Block block{g.a_bf16 + r * g.a_stride,
                  g.a_stride,
                  b,
                  b + panel_numbers,
                  kStepColumns * kPanelRows,
                  steps,
                  y,
                  g.y_stride,
                  g.accumulate};
      const bool whole = rows % 16 == 0 && outputs == panels * kPanelRows;
      alignas(64) float aside[32 * 32];
      const size_t bytes = static_cast<size_t>(outputs) * sizeof(float);
      if (!whole) {
        // Tiles are stored whole: compute aside what would reach over the matrix's edge.
        std::memset(aside, 0, sizeof(aside));
        for (int64_t i = 0; g.accumulate && i < rows; ++i) {
          std::memcpy(aside + i * 32, y + i * g.y_stride, bytes);
        }
        block.c = aside;
        block.c_stride = 32;
      }
      Multiply(block, rows > 16, panels == 2);
      for (int64_t i = 0; !whole && i < rows; ++i) {
        std::memcpy(y + i * g.y_stride, aside + i * 32, bytes);
      }
    }
  }
}

// out[i] lane j = in[j] lane i, lanes of 32 bits.
static inline void Transpose16(const __m512i in[16], __m512i* out) {
  __m512i t[16], u[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(in[i], in[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(in[i], in[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    u[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    u[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    u[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    u[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // u[4q + c] lane group l: column 4l + c of rows 4q..4q+3.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i a = _mm512_shuffle_i32x4(u[c], u[4 + c], 0x88);
    const __m512i b = _mm512_shuffle_i32x4(u[8 + c], u[12 + c], 0x88);
    const __m512i d = _mm512_shuffle_i32x4(u[c], u[4 + c], 0xdd);
    const __m512i e = _mm512_shuffle_i32x4(u[8 + c], u[12 + c], 0xdd);
    out[c] = _mm512_shuffle_i32x4(a, b, 0x88);
    out[8 + c] = _mm512_shuffle_i32x4(a, b, 0xdd);
    out[4 + c] = _mm512_shuffle_i32x4(d, e, 0x88);
    out[12 + c] = _mm512_shuffle_i32x4(d, e, 0xdd);
  }
}

static inline __m512 Half16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// Keys of a tile as tiles [4 times 16 keys][dim / 32]: row = pair of channels, lane = key.
static void KeyTiles(const KeyTile& from, uint16_t* tiles) {
  const int64_t dim = from.kv.head_dim;
  for (int64_t n = 0; n < kAttentionTile; n += 16) {
    for (int64_t d = 0; d < dim; d += 32, tiles += 512) {
      __m512i rows[16];
      for (int64_t j = 0; j < 16; ++j) {
        if (n + j >= from.count) {
          rows[j] = _mm512_setzero_si512();
          continue;
        }
        const uint16_t* k = from.kv.K(from.head, from.first + n + j) + d;
        rows[j] = (__m512i)_mm512_cvtne2ps_pbh(Half16(k + 16), Half16(k));
      }
      Transpose16(rows, reinterpret_cast<__m512i*>(tiles));
    }
  }
}

// Values as tiles [dim / 16][2 times 32 keys]: row = pair of keys, lane = channel.
static void ValueTiles(const KeyTile& from, uint16_t* tiles) {
  const int64_t dim = from.kv.head_dim;
  const __m512i interleave = InterleaveIndex();
  for (int64_t j = 0; j < kAttentionTile; j += 2) {
    const uint16_t* first = j < from.count ? from.kv.V(from.head, from.first + j) : nullptr;
    const uint16_t* second =
        j + 1 < from.count ? from.kv.V(from.head, from.first + j + 1) : nullptr;
    for (int64_t d = 0; d < dim; d += 16) {
      const __m512 x = first != nullptr ? Half16(first + d) : _mm512_setzero_ps();
      const __m512 y = second != nullptr ? Half16(second + d) : _mm512_setzero_ps();
      uint16_t* row = tiles + (d / 16 * 2 + j / 32) * 512 + j % 32 / 2 * 32;
      _mm512_store_si512(row, PairBf16(x, y, interleave));
    }
  }
}

// 2^x for x <= 0 to about 4e-6: what follows rounds to eight bits.
static inline __m512 Exp2(__m512 x) {
  const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 r = _mm512_sub_ps(x, n);
  __m512 p = _mm512_set1_ps(9.6181291e-3f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.5504109e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.4022651e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.9314718e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, n);
}

struct Running {
  float* max;  // [queries]
  float* sum;  // [queries][16], one per lane
  float* out;  // [queries][dim]
};

// One query's scores of a tile to weights in bfloat16; scales what was summed up before.
static inline void SoftmaxRow(const float* scores, int64_t visible, int64_t i, int64_t dim,
                              const Running& run, uint16_t* weights) {
  __mmask16 mask[4];
  __m512 s[4];
  const __m512 minus = _mm512_set1_ps(-kInfinity);
  for (int v = 0; v < 4; ++v) {
    const int64_t left = visible - 16 * v;
    mask[v] = left >= 16 ? 0xffff : (left <= 0 ? 0 : static_cast<__mmask16>((1u << left) - 1));
    s[v] = _mm512_mask_mov_ps(minus, mask[v], _mm512_load_ps(scores + 16 * v));
  }
  const float old_max = run.max[i];
  const float top =
      _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(s[0], s[1]), _mm512_max_ps(s[2], s[3])));
  const float max = top > old_max ? top : old_max;
  const __m512 shift = _mm512_set1_ps(max);
  __m512 total = _mm512_loadu_ps(run.sum + 16 * i);
  if (max != old_max) {
    run.max[i] = max;
    const __m512 factor =
        old_max == -kInfinity ? _mm512_setzero_ps() : Exp2(_mm512_set1_ps(old_max - max));
    total = _mm512_mul_ps(total, factor);
    for (int64_t d = 0; d < dim; d += 16) {
      float* o = run.out + i * dim + d;
      _mm512_storeu_ps(o, _mm512_mul_ps(_mm512_loadu_ps(o), factor));
    }
  }
  __m512 p[4];
  for (int v = 0; v < 4; ++v) {
    p[v] = _mm512_maskz_mov_ps(mask[v], Exp2(_mm512_sub_ps(s[v], shift)));
    total = _mm512_add_ps(total, p[v]);
  }
  _mm512_storeu_ps(run.sum + 16 * i, total);
  _mm512_storeu_si512(weights, (__m512i)_mm512_cvtne2ps_pbh(p[1], p[0]));
  _mm512_storeu_si512(weights + 32, (__m512i)_mm512_cvtne2ps_pbh(p[3], p[2]));
}

// Query i is row i / group, head i % group, as in AttentionFloat.
static void Attention(const AttentionArgs& a) {
  const int64_t dim = a.kv.head_dim;
  const int64_t queries = a.rows * a.group;
  if (queries == 0) return;
  const int64_t padded = RoundUp(queries, 32);
  std::byte* next = a.scratch;
  const auto take = [&next](int64_t bytes) {
    std::byte* p = next;
    next += RoundUp(bytes, 64);
    return p;
  };
  uint16_t* q = reinterpret_cast<uint16_t*>(take(padded * dim * 2));
  uint16_t* keys = reinterpret_cast<uint16_t*>(take(kAttentionTile * dim * 2));
  uint16_t* values = reinterpret_cast<uint16_t*>(take(kAttentionTile * dim * 2));
  float* scores = reinterpret_cast<float*>(take(32 * kAttentionTile * 4));
  uint16_t* weights = reinterpret_cast<uint16_t*>(take(32 * kAttentionTile * 2));
  if (a.state != nullptr) next = a.state;
  Running run;
  run.out = reinterpret_cast<float*>(take(padded * dim * 4));
  run.max = reinterpret_cast<float*>(take(padded * 4));
  run.sum = reinterpret_cast<float*>(take(padded * 16 * 4));

  std::memset(q, 0, static_cast<size_t>(padded * dim) * 2);
  if (!a.resume) {
    std::memset(run.out, 0, static_cast<size_t>(padded * dim) * 4);
    std::memset(run.sum, 0, static_cast<size_t>(padded) * 16 * 4);
  }
  std::memset(weights, 0, 32 * kAttentionTile * 2);
  // Scores in units of ln 2, for Exp2.
  const __m512 scale = _mm512_set1_ps(a.scale * 1.44269504088896341f);
  for (int64_t i = 0; i < queries; ++i) {
    const float* src = a.q + i / a.group * a.q_stride + (a.kv_head * a.group + i % a.group) * dim;
    for (int64_t d = 0; d < dim; d += 32) {
      const __m512 lo = _mm512_mul_ps(_mm512_loadu_ps(src + d), scale);
      const __m512 hi = _mm512_mul_ps(_mm512_loadu_ps(src + d + 16), scale);
      _mm512_store_si512(q + i * dim + d, (__m512i)_mm512_cvtne2ps_pbh(hi, lo));
    }
    if (!a.resume) run.max[i] = -kInfinity;
  }

  const Tiles tiles;
  const int64_t key_steps = dim / 32;
  ForEachKeyTile(a, [&](const KeyTile& tile) {
    KeyTiles(tile, keys);
    ValueTiles(tile, values);
    for (int64_t i0 = tile.first_row() * a.group / 32 * 32; i0 < queries; i0 += 32) {
      for (int64_t n = 0; n < tile.count; n += 32) {
        Multiply<true, true>({q + i0 * dim, dim, keys + n / 16 * key_steps * 512,
                              keys + (n / 16 + 1) * key_steps * 512, 512, key_steps, scores + n,
                              kAttentionTile, false});
      }
      const int64_t last = Min(32, queries - i0);
      for (int64_t i = 0; i < last; ++i) {
        const int64_t visible = tile.Visible((i0 + i) / a.group);
        if (visible <= 0) {
          // A row before this tile that shares a block of 32 with one that sees it.
          std::memset(weights + i * kAttentionTile, 0, kAttentionTile * 2);
          continue;
        }
        SoftmaxRow(scores + i * kAttentionTile, visible, i0 + i, dim, run,
                   weights + i * kAttentionTile);
      }
      for (int64_t d = 0; d < dim; d += 32) {
        Multiply<true, true>({weights, kAttentionTile, values + d / 16 * 1024,
                              values + (d / 16 + 1) * 1024, 512, 2, run.out + i0 * dim + d, dim,
                              true});
      }
    }
  });

  for (int64_t i = 0; i < queries && !a.more; ++i) {
    float* dst = a.out + i / a.group * a.out_stride + (a.kv_head * a.group + i % a.group) * dim;
    const __m512 inverse =
        _mm512_set1_ps(1.0f / _mm512_reduce_add_ps(_mm512_loadu_ps(run.sum + 16 * i)));
    for (int64_t d = 0; d < dim; d += 16) {
      _mm512_storeu_ps(dst + d, _mm512_mul_ps(_mm512_loadu_ps(run.out + i * dim + d), inverse));
    }
  }
}

}  // namespace amx

ForwardKernels AddAmx(ForwardKernels kernels) {
  kernels.name = "avx512-amx";
  kernels.gemm_bf16 = InlineOp<amx::Gemm>::Run;
  kernels.attention_bf16 = InlineOp<amx::Attention>::Run;
  return kernels;
}

}  // namespace cairn::kernels
