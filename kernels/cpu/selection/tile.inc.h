// Transposed tiles of keys or values, and products with them. Included through selection.inc.h.

namespace cairn::kernels::CAIRN_KERNEL_NS {

static inline int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

// Row i of the result holds lane i of each of the sixteen rows.
#if defined(__AVX512F__)
static inline void Transpose(F* f) {
  __m512 t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(f[i].v, f[i + 1].v);
    t[i + 1] = _mm512_unpackhi_ps(f[i].v, f[i + 1].v);
  }
  // r[4 i + c], 128-bit lane l: column 4 l + c of rows 4 i to 4 i + 3.
  __m512 r[16];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const auto pd = [&](int n) { return _mm512_castps_pd(t[i + n]); };
    r[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(pd(0), pd(2)));
    r[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(pd(0), pd(2)));
    r[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(pd(1), pd(3)));
    r[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(pd(1), pd(3)));
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512 even0 = _mm512_shuffle_f32x4(r[c], r[4 + c], 0x88);
    const __m512 odd0 = _mm512_shuffle_f32x4(r[c], r[4 + c], 0xdd);
    const __m512 even1 = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0x88);
    const __m512 odd1 = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0xdd);
    f[c].v = _mm512_shuffle_f32x4(even0, even1, 0x88);
    f[8 + c].v = _mm512_shuffle_f32x4(even0, even1, 0xdd);
    f[4 + c].v = _mm512_shuffle_f32x4(odd0, odd1, 0x88);
    f[12 + c].v = _mm512_shuffle_f32x4(odd0, odd1, 0xdd);
  }
}
#elif defined(__AVX2__)
static inline void Transpose8(const __m256* x, __m256* y) {
  __m256 t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
  }
  __m256 r[8];
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    y[c] = _mm256_permute2f128_ps(r[c], r[4 + c], 0x20);
    y[4 + c] = _mm256_permute2f128_ps(r[c], r[4 + c], 0x31);
  }
}
static inline void Transpose(F* f) {
  __m256 x[8], y[8];
  F out[16];
  for (int rows = 0; rows < 2; ++rows) {
    for (int cols = 0; cols < 2; ++cols) {
      for (int i = 0; i < 8; ++i) x[i] = cols == 0 ? f[8 * rows + i].a : f[8 * rows + i].b;
      Transpose8(x, y);
      for (int i = 0; i < 8; ++i) (rows == 0 ? out[8 * cols + i].a : out[8 * cols + i].b) = y[i];
    }
  }
  for (int i = 0; i < 16; ++i) f[i] = out[i];
}
#elif defined(CAIRN_NEON)
static inline void Transpose4(float32x4_t& a, float32x4_t& b, float32x4_t& c, float32x4_t& d) {
  const float32x4x2_t ab = vtrnq_f32(a, b), cd = vtrnq_f32(c, d);
  a = vcombine_f32(vget_low_f32(ab.val[0]), vget_low_f32(cd.val[0]));
  b = vcombine_f32(vget_low_f32(ab.val[1]), vget_low_f32(cd.val[1]));
  c = vcombine_f32(vget_high_f32(ab.val[0]), vget_high_f32(cd.val[0]));
  d = vcombine_f32(vget_high_f32(ab.val[1]), vget_high_f32(cd.val[1]));
}
static inline void Swap4(float32x4_t& a, float32x4_t& b) {
  const float32x4_t old = a;
  a = b;
  b = old;
}
// Each square of four by four, and then the squares.
static inline void Transpose(F* f) {
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    Transpose4(f[i].a, f[i + 1].a, f[i + 2].a, f[i + 3].a);
    Transpose4(f[i].b, f[i + 1].b, f[i + 2].b, f[i + 3].b);
    Transpose4(f[i].c, f[i + 1].c, f[i + 2].c, f[i + 3].c);
    Transpose4(f[i].d, f[i + 1].d, f[i + 2].d, f[i + 3].d);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    Swap4(f[i].b, f[4 + i].a);
    Swap4(f[i].c, f[8 + i].a);
    Swap4(f[i].d, f[12 + i].a);
    Swap4(f[4 + i].c, f[8 + i].b);
    Swap4(f[4 + i].d, f[12 + i].b);
    Swap4(f[8 + i].d, f[12 + i].c);
  }
}
#else
static inline void Transpose(F* f) {
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < i; ++j) {
      const float x = f[i].v[j];
      f[i].v[j] = f[j].v[i];
      f[j].v[i] = x;
    }
  }
}
#endif

// tile[c * kSelectionTile + i] = channel c of token `first` + i, 0 from x.end on.
static void LoadTile(const TokenRows& x, int64_t first, float* tile) {
  const int64_t dim = x.kv.head_dim;
  const int64_t count = Least(kSelectionTile, x.end - first);
  for (int64_t i = 0; i < kSelectionTile; i += kLanes) {
    const uint16_t* rows[kLanes];
    for (int64_t r = 0; r < kLanes; ++r) {
      rows[r] = i + r < count ? x.row(first + i + r) : nullptr;
    }
    int64_t c = 0;
    for (; c + kLanes <= dim; c += kLanes) {
      F f[kLanes];
#pragma GCC unroll 16
      for (int r = 0; r < kLanes; ++r) {
        f[r] = rows[r] != nullptr ? ToF(LoadH(rows[r] + c)) : Set(0.0f);
      }
      Transpose(f);
#pragma GCC unroll 16
      for (int r = 0; r < kLanes; ++r) StoreF(tile + (c + r) * kSelectionTile + i, f[r]);
    }
    for (; c < dim; ++c) {
      for (int r = 0; r < kLanes; ++r) {
        tile[c * kSelectionTile + i + r] = rows[r] != nullptr ? HalfToFloat(rows[r][c]) : 0.0f;
      }
    }
  }
}

// c[m][n] (+)= a[m][k] b[k][n], then times `scale`; n a multiple of kLanes.
struct Product {
  const float* a;
  int64_t lda;
  const float* b;
  int64_t ldb;
  float* c;
  int64_t ldc;
  int64_t k;
  float scale = 1.0f;
  bool accumulate = false;
};

struct ProductBlock {
  static constexpr int64_t kWidth = kLanes;
#if defined(__AVX512F__)
  static constexpr int kMaxRows = 6, kMaxVecs = 4;
#elif defined(__AVX2__)
  static constexpr int kMaxRows = 5, kMaxVecs = 1;
#elif defined(CAIRN_NEON)
  static constexpr int kMaxRows = 6, kMaxVecs = 1;
#else
  static constexpr int kMaxRows = 1, kMaxVecs = 1;
#endif

  template <int kRows, int kVecs>
  static inline void Run(const Product& p) {
    F acc[kRows][kVecs];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        acc[r][v] = p.accumulate ? LoadF(p.c + r * p.ldc + v * kLanes) : Set(0.0f);
      }
    }
    for (int64_t k = 0; k < p.k; ++k) {
      F b[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) b[v] = LoadF(p.b + k * p.ldb + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const F x = Set(p.a[r * p.lda + k]);
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) acc[r][v] = Fma(x, b[v], acc[r][v]);
      }
    }
    const F scale = Set(p.scale);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) StoreF(p.c + r * p.ldc + v * kLanes, acc[r][v] * scale);
    }
  }
};

// Each number is one chain of fused multiply-adds over k in order, whatever m and n are.
static void Multiply(int64_t m, int64_t n, const Product& p) {
  RunRegisterBlocks<ProductBlock>(m, n, p);
}

// Copies the first `count` numbers of a tile's row; whole vectors would write behind the output.
static inline void StoreFirst(float* to, const float* from, int64_t count) {
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
}

}  // namespace cairn::kernels::CAIRN_KERNEL_NS
