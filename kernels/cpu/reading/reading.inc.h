// All kernels for reading a context by rows, for one instruction set. Lanes and codes are those of
// the codecs: see lanes.inc.h.
//
// A tile of 16 rows is widened to float32 in the cache, and then used by all queries of the group.
// Rows of turbo stay in the rotated space, where widening is a look-up: queries are rotated once,
// and sums of values are rotated back once, instead of every row.

// The order matters: each of these uses what stands before it.
// clang-format off
#include "kernels/cpu/reading/reading_makers.h"
#include "cairn/kernels/codec/inline_codec.h"
#include "cairn/kernels/codec/turbo_levels.h"
#include "cairn/kernels/inline_op.h"
#include "cairn/kernels/selection/selection_kernels.h"
#include "kernels/cpu/codec/lanes.inc.h"
#include "kernels/cpu/codec/int4.inc.h"
#include "kernels/cpu/codec/turbo.inc.h"
#include "kernels/cpu/selection/softmax.inc.h"
// clang-format on

namespace cairn::kernels::CAIRN_KERNEL_NS {

static inline int64_t Smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t Padded(int64_t dim) { return (dim + kLanes - 1) / kLanes * kLanes; }
inline constexpr float kNoRow = -__builtin_inff();

// --- Sums of lanes, sixteen rows at a time ---

// Lane i gets what lane i ^ kDistance has.
// Lanes with the bit kDistance are b's, the others a's.
#if defined(__AVX512F__)
template <int kDistance>
static inline F Swap(F x) {
  if constexpr (kDistance == 1) return {_mm512_permute_ps(x.v, 0xb1)};
  if constexpr (kDistance == 2) return {_mm512_permute_ps(x.v, 0x4e)};
  if constexpr (kDistance == 4) return {_mm512_shuffle_f32x4(x.v, x.v, 0xb1)};
  return {_mm512_shuffle_f32x4(x.v, x.v, 0x4e)};
}
template <int kDistance>
static inline F Blend(F a, F b) {
  constexpr __mmask16 kUpper = kDistance == 1   ? 0xaaaa
                               : kDistance == 2 ? 0xcccc
                               : kDistance == 4 ? 0xf0f0
                                                : 0xff00;
  return {_mm512_mask_blend_ps(kUpper, a.v, b.v)};
}
#elif defined(__AVX2__)
template <int kDistance>
static inline __m256 Swap8(__m256 x) {
  if constexpr (kDistance == 1) return _mm256_permute_ps(x, 0xb1);
  if constexpr (kDistance == 2) return _mm256_permute_ps(x, 0x4e);
  return _mm256_permute2f128_ps(x, x, 1);
}
template <int kDistance>
static inline F Swap(F x) {
  if constexpr (kDistance == 8) return {x.b, x.a};
  return {Swap8<kDistance>(x.a), Swap8<kDistance>(x.b)};
}
template <int kDistance>
static inline F Blend(F a, F b) {
  if constexpr (kDistance == 8) return {a.a, b.b};
  constexpr int kUpper = kDistance == 1 ? 0xaa : kDistance == 2 ? 0xcc : 0xf0;
  return {_mm256_blend_ps(a.a, b.a, kUpper), _mm256_blend_ps(a.b, b.b, kUpper)};
}
#elif defined(CAIRN_NEON)
template <int kDistance>
static inline F Swap(F x) {
  if constexpr (kDistance == 8) return {x.c, x.d, x.a, x.b};
  if constexpr (kDistance == 4) return {x.b, x.a, x.d, x.c};
  return Map(x, [](float32x4_t v) { return SwapIn4<kDistance>(v); });
}
template <int kDistance>
static inline F Blend(F x, F y) {
  if constexpr (kDistance == 8) return {x.a, x.b, y.c, y.d};
  if constexpr (kDistance == 4) return {x.a, y.b, x.c, y.d};
  const uint32x4_t upper = UpperIn4<kDistance>();
  return Map(x, y, [=](float32x4_t v, float32x4_t w) { return vbslq_f32(upper, w, v); });
}
#else
template <int kDistance>
static inline F Swap(F x) {
  F y;
  for (int i = 0; i < kLanes; ++i) y.v[i] = x.v[i ^ kDistance];
  return y;
}
template <int kDistance>
static inline F Blend(F a, F b) {
  for (int i = 0; i < kLanes; ++i) a.v[i] = (i & kDistance) != 0 ? b.v[i] : a.v[i];
  return a;
}
#endif

// Lane i of the result is the sum of the lanes of x[i]. Destroys x.
template <int kDistance = kLanes / 2>
static inline F SumEach(F* x) {
  if constexpr (kDistance == 0) {
    return x[0];
  } else {
    CAIRN_UNROLL
    for (int i = 0; i < kDistance; ++i) {
      const F a = x[i], b = x[i + kDistance];
      x[i] = Blend<kDistance>(a, b) + Swap<kDistance>(Blend<kDistance>(b, a));
    }
    return SumEach<kDistance / 2>(x);
  }
}

// --- Rows to float32 ---

template <int kBits, int kVectors>
static inline void TurboNumbers(const std::byte* codes, F table, float* y) {
  I code[kVectors];
  LoadTurboCodes<kBits, kVectors>(codes, code);
  CAIRN_UNROLL
  for (int i = 0; i < kVectors; ++i) StoreF(y + kLanes * i, Lookup(code[i], table));
}

// Numbers of columns [c, c + 64) of a row of `dim`: the pieces that codes are stored in.
template <int kBits>
static inline void TurboPiece(const std::byte* codes, int64_t dim, int64_t c, F table, float* y) {
  if constexpr (kBits == 4) {
    TurboNumbers<4, 4>(codes + c / 2, table, y);
  } else {
    I code[4];
    LoadTurboCodes<2, 4>(codes + c / 4, code);
    if constexpr (kBits == 3) {
      CAIRN_UNROLL
      for (int i = 0; i < 4; ++i) {
        code[i] = code[i] | SpreadBit2(LoadU16(codes + dim / 4 + c / 8 + 2 * i));
      }
    }
    CAIRN_UNROLL
    for (int i = 0; i < 4; ++i) StoreF(y + kLanes * i, Lookup(code[i], table));
  }
}

// Rows [first, first + count) to tile, [count][width]; factor[r]: what a row's numbers are still to
// be multiplied with.
template <int kBits>
static inline void WidenTurbo(const CopyRows& x, int64_t first, int64_t count, float* tile,
                              float* factor) {
  const F table = TurboTable<kBits>();
  const float inverse = 1.0f / static_cast<float>(x.dim);
  const int64_t bytes = x.row_bytes();
  const std::byte* in = x.row(first);
  for (int64_t r = 0; r < count; ++r, in += bytes, tile += x.dim) {
    PrefetchAhead(in);
    factor[r] = HalfToFloat(LoadU16(in)) * inverse;
    for (int64_t c = 0; c < x.dim; c += 64) TurboPiece<kBits>(in + 2, x.dim, c, table, tile + c);
  }
}

static inline void WidenHalf(const CopyRows& x, const std::byte* in, float* y) {
  int64_t c = 0;
  uint16_t bits[kLanes];
  for (; c + kLanes <= x.dim; c += kLanes) {
    std::memcpy(bits, in + 2 * c, sizeof(bits));
    StoreF(y + c, ToF(LoadH(bits)));
  }
  for (; c < x.dim; ++c) y[c] = HalfToFloat(LoadU16(in + 2 * c));
  for (; c % kLanes != 0; ++c) y[c] = 0.0f;
}

static inline void WidenInt8(const CopyRows& x, const std::byte* in, float* y) {
  const std::byte* codes = in + 2 * ((x.dim + kCopyGroup - 1) / kCopyGroup);
  for (int64_t c = 0; c < x.dim; c += kLanes) {
    const F scale = Set(HalfToFloat(LoadU16(in + c / kCopyGroup * 2)));
    StoreF(y + c, ToF(LoadSignedBytes(codes + c)) * scale);
  }
}

static inline void WidenInt4(const CopyRows& x, const std::byte* in, float* y) {
  const std::byte* codes = in + 4 * ((x.dim + kCopyGroup - 1) / kCopyGroup);
  for (int64_t c = 0; c < x.dim; c += 2 * kLanes) {
    const std::byte* const scales = in + c / kCopyGroup * 4;
    const F scale = Set(HalfToFloat(LoadU16(scales)));
    const F least = Set(HalfToFloat(LoadU16(scales + 2)));
    const I bytes = LoadUnsignedBytes(codes + c / 2);
    StoreF(y + c, Fma(ToF(bytes & SetI(15)), scale, least));
    StoreF(y + c + kLanes, Fma(ToF(Right<4>(bytes)), scale, least));
  }
}

static inline void WidenRows(const CopyRows& x, int64_t first, int64_t count, float* tile,
                             float* factor) {
  if (x.form == CopyForm::kTurbo) {
    if (x.bits == 2) return WidenTurbo<2>(x, first, count, tile, factor);
    if (x.bits == 3) return WidenTurbo<3>(x, first, count, tile, factor);
    return WidenTurbo<4>(x, first, count, tile, factor);
  }
  const int64_t width = Padded(x.dim), bytes = x.row_bytes();
  const std::byte* in = x.row(first);
  for (int64_t r = 0; r < count; ++r, in += bytes, tile += width) {
    PrefetchAhead(in);
    factor[r] = 1.0f;
    if (x.form == CopyForm::kHalf) {
      WidenHalf(x, in, tile);
    } else if (x.form == CopyForm::kInt8) {
      WidenInt8(x, in, tile);
    } else {
      WidenInt4(x, in, tile);
    }
  }
}

// In place, `dim` numbers.
static inline void Transform(float* z, int64_t dim) {
  for (int64_t c = 0; c < dim; c += kLanes) {
    StoreF(z + c, Butterfly<8>(Butterfly<4>(Butterfly<2>(Butterfly<1>(LoadF(z + c))))));
  }
  for (int64_t distance = kLanes; distance < dim; distance *= 2) {
    for (int64_t c = 0; c < dim; c += kLanes) {
      if ((c & distance) != 0) continue;
      const F a = LoadF(z + c), b = LoadF(z + c + distance);
      StoreF(z + c, a + b);
      StoreF(z + c + distance, a - b);
    }
  }
}
static inline void Flip(float* z, const uint32_t* signs, int64_t dim) {
  for (int64_t c = 0; c < dim; c += kLanes) StoreF(z + c, FlipSigns(LoadF(z + c), signs + c));
}

// --- Logits ---

template <int kHeads>
static inline void ScoreTile(const float* q, int64_t width, const float* tile, int64_t count,
                             F factor, float* const* out) {
  F each[kHeads][kLanes];
  for (int64_t t = 0; t < count; ++t) {
    const float* const row = tile + t * width;
    F sum[kHeads];
    CAIRN_UNROLL
    for (int h = 0; h < kHeads; ++h) sum[h] = Set(0.0f);
    for (int64_t c = 0; c < width; c += kLanes) {
      const F x = LoadF(row + c);
      CAIRN_UNROLL
      for (int h = 0; h < kHeads; ++h) sum[h] = Fma(x, LoadF(q + h * width + c), sum[h]);
    }
    CAIRN_UNROLL
    for (int h = 0; h < kHeads; ++h) each[h][t] = sum[h];
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int64_t t = count; t < kLanes; ++t) each[h][t] = Set(0.0f);
    const F logits = SumEach(each[h]) * factor;
    if (count == kLanes) {
      StoreF(out[h], logits);
    } else {
      float buffer[kLanes];
      StoreF(buffer, logits);
      std::memcpy(out[h], buffer, static_cast<size_t>(count) * sizeof(float));
    }
  }
}

static void RowLogits(const RowLogitsArgs& a) {
  const int64_t dim = a.keys.dim, width = Padded(dim);
  const bool turbo = a.keys.form == CopyForm::kTurbo;
  float* const q = reinterpret_cast<float*>(a.scratch);
  float* const tile = q + a.group * width;
  for (int64_t g = 0; g < a.group; ++g) {
    float* const to = q + g * width;
    for (int64_t c = 0; c < width; ++c) to[c] = c < dim ? a.q[g * a.q_stride + c] * a.scale : 0.0f;
    if (!turbo) continue;
    Flip(to, a.keys.signs, dim);
    Transform(to, dim);
  }
  for (int64_t r = a.begin; r < a.end; r += kCopyTile) {
    const int64_t count = Smaller(kCopyTile, a.end - r);
    float factor[kCopyTile] = {};
    WidenRows(a.keys, r, count, tile, factor);
    for (int64_t g = 0; g < a.group;) {
      float* out[4];
      for (int64_t h = 0; h < 4; ++h) {
        out[h] = a.logits + Smaller(g + h, a.group - 1) * a.stride + r;
      }
      const F factors = LoadF(factor);
      switch (a.group - g) {
        case 1:
          ScoreTile<1>(q + g * width, width, tile, count, factors, out);
          g += 1;
          break;
        case 2:
          ScoreTile<2>(q + g * width, width, tile, count, factors, out);
          g += 2;
          break;
        case 3:
          ScoreTile<3>(q + g * width, width, tile, count, factors, out);
          g += 3;
          break;
        default:
          ScoreTile<4>(q + g * width, width, tile, count, factors, out);
          g += 4;
      }
    }
  }
}

// --- Choice ---

// The largest number of x, -infinity if there is none.
static inline float Largest(const float* x, int64_t n) {
  F top = Set(kNoRow);
  for (int64_t i = 0; i < n; i += kLanes) {
    top = Max(top, i + kLanes <= n ? LoadF(x + i) : LoadFirst(x + i, n - i, kNoRow));
  }
  return LargestLane(top);
}

// y = exp(x - max), 0 for -infinity; returns the sum.
static inline float Weights(const float* x, int64_t n, float max, float* y) {
  const F shift = Set(max);
  F total = Set(0.0f);
  for (int64_t i = 0; i < n; i += kLanes) {
    const bool whole = i + kLanes <= n;
    const F v = whole ? LoadF(x + i) : LoadFirst(x + i, n - i, kNoRow);
    // Every finite logit is greater than this.
    const F e = WherePositive(v - Set(-3.4028234e38f), Exp(v - shift));
    total = total + e;
    if (whole) {
      StoreF(y + i, e);
    } else {
      float buffer[kLanes];
      StoreF(buffer, e);
      std::memcpy(y + i, buffer, static_cast<size_t>(n - i) * sizeof(float));
    }
  }
  return SumLanes(total);
}

static inline uint32_t OrderOf(float x) {  // The order of numbers that are not negative.
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

// The `count`-th largest of x, by the bits of the numbers: 11, 11 and 10 of them at a time.
// *above: numbers that are greater. REQUIRES: 1 <= count <= n.
static uint32_t NthLargest(const float* x, int64_t n, int64_t count, int32_t* histogram,
                           int64_t* above) {
  constexpr int kShift[3] = {21, 10, 0};
  constexpr uint32_t kMask[3] = {2047, 2047, 1023};
  uint32_t prefix = 0, known = 0;
  *above = 0;
  for (int level = 0; level < 3; ++level) {
    std::memset(histogram, 0, 2048 * sizeof(int32_t));
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t bits = OrderOf(x[i]);
      if ((bits & known) == prefix) ++histogram[bits >> kShift[level] & kMask[level]];
    }
    auto bucket = static_cast<int64_t>(kMask[level]);
    while (*above + histogram[bucket] < count) *above += histogram[bucket--];
    prefix |= static_cast<uint32_t>(bucket) << kShift[level];
    known |= kMask[level] << kShift[level];
  }
  return prefix;
}

static void TopRows(const TopRowsArgs& a) {
  float* const weights = reinterpret_cast<float*>(a.scratch);
  auto* const histogram = reinterpret_cast<int32_t*>(weights + Padded(a.n));
  for (int64_t g = 0; g < a.group && a.n > 0; ++g) {
    const float* const x = a.logits + g * a.stride;
    float* const to = g == 0 ? a.scores : weights;
    const F inverse = Set(1.0f / Weights(x, a.n, Largest(x, a.n), to));
    int64_t i = 0;
    for (; i + kLanes <= a.n; i += kLanes) {
      const F share = LoadF(to + i) * inverse;
      StoreF(a.scores + i, g == 0 ? share : Max(LoadF(a.scores + i), share));
    }
    float factor[kLanes];
    StoreF(factor, inverse);
    for (; i < a.n; ++i) {
      const float share = to[i] * factor[0];
      a.scores[i] = g == 0 || share > a.scores[i] ? share : a.scores[i];
    }
  }
  const int64_t count = Smaller(a.count, a.n);
  if (count <= 0) return;
  int64_t above = 0;
  const uint32_t least = NthLargest(a.scores, a.n, count, histogram, &above);
  int64_t equal = count - above;
  int32_t* out = a.rows;
  for (int64_t i = 0; i < a.n; ++i) {
    const uint32_t order = OrderOf(a.scores[i]);
    if (order < least || (order == least && equal == 0)) continue;
    equal -= order == least ? 1 : 0;
    *out++ = static_cast<int32_t>(i);
  }
}

// --- Attention ---

// acc[h] += sum over rows of weight[h][t] * row t.
template <int kHeads>
static inline void AddTile(const float (*weight)[kCopyTile], const float* tile, int64_t width,
                           int64_t count, float* acc) {
  for (int64_t c = 0; c < width; c += 4 * kLanes) {
    const int64_t vectors = Smaller(4, (width - c) / kLanes);
    if (vectors == 4) {
      F sum[kHeads][4];
      CAIRN_UNROLL
      for (int h = 0; h < kHeads; ++h) {
        CAIRN_UNROLL
        for (int i = 0; i < 4; ++i) sum[h][i] = LoadF(acc + h * width + c + kLanes * i);
      }
      for (int64_t t = 0; t < count; ++t) {
        const float* const row = tile + t * width + c;
        CAIRN_UNROLL
        for (int i = 0; i < 4; ++i) {
          const F x = LoadF(row + kLanes * i);
          CAIRN_UNROLL
          for (int h = 0; h < kHeads; ++h) sum[h][i] = Fma(x, Set(weight[h][t]), sum[h][i]);
        }
      }
      CAIRN_UNROLL
      for (int h = 0; h < kHeads; ++h) {
        CAIRN_UNROLL
        for (int i = 0; i < 4; ++i) StoreF(acc + h * width + c + kLanes * i, sum[h][i]);
      }
      continue;
    }
    for (int64_t i = 0; i < vectors; ++i) {
      for (int h = 0; h < kHeads; ++h) {
        float* const to = acc + h * width + c + kLanes * i;
        F sum = LoadF(to);
        for (int64_t t = 0; t < count; ++t) {
          sum = Fma(LoadF(tile + t * width + c + kLanes * i), Set(weight[h][t]), sum);
        }
        StoreF(to, sum);
      }
    }
  }
}

static void AddHeads(const float (*weight)[kCopyTile], const float* tile, int64_t width,
                     int64_t count, int64_t heads, float* acc) {
  if (heads == 1) return AddTile<1>(weight, tile, width, count, acc);
  if (heads == 2) return AddTile<2>(weight, tile, width, count, acc);
  if (heads == 3) return AddTile<3>(weight, tile, width, count, acc);
  AddTile<4>(weight, tile, width, count, acc);
}

static void AttendRows(const AttendRowsArgs& a) {
  const int64_t dim = a.values.dim, width = Padded(dim);
  float* const acc = reinterpret_cast<float*>(a.scratch);
  float* const tile = acc + a.group * width;
  for (int64_t g = 0; g < a.group; ++g) {
    float* const x = a.logits + g * a.stride + a.begin;
    a.max[g] = Largest(x, a.end - a.begin);
    a.sum[g] = Weights(x, a.end - a.begin, a.max[g] == kNoRow ? 0.0f : a.max[g], x);
  }
  for (int64_t i = 0; i < a.group * width; ++i) acc[i] = 0.0f;
  for (int64_t r = a.begin; r < a.end; r += kCopyTile) {
    const int64_t count = Smaller(kCopyTile, a.end - r);
    float factor[kCopyTile];
    WidenRows(a.values, r, count, tile, factor);
    for (int64_t g = 0; g < a.group; g += 4) {
      float weight[4][kCopyTile];
      const int64_t heads = Smaller(4, a.group - g);
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t t = 0; t < count; ++t) {
          weight[h][t] = a.logits[(g + h) * a.stride + r + t] * factor[t];
        }
      }
      AddHeads(weight, tile, width, count, heads, acc + g * width);
    }
  }
  for (int64_t g = 0; g < a.group; ++g) {
    float* const from = acc + g * width;
    if (a.values.form == CopyForm::kTurbo) {
      Transform(from, dim);
      Flip(from, a.values.signs, dim);
    }
    std::memcpy(a.acc + g * dim, from, static_cast<size_t>(dim) * sizeof(float));
  }
}

static ReadingKernels Table(const char* name) {
  ReadingKernels k;
  k.name = name;
  k.row_logits = InlineOp<RowLogits>::Run;
  k.top_rows = InlineOp<TopRows>::Run;
  k.attend_rows = InlineOp<AttendRows>::Run;
  return k;
}

}  // namespace cairn::kernels::CAIRN_KERNEL_NS
