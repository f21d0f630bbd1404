// Products with packed weights in float32, for any vector width. Included through kernels.inc.h.

namespace cairn::kernels::CAIRN_KERNEL_NS {

inline constexpr int kVecs = 16 / kWidth;  // Vectors per panel.

template <int kN>
struct Count {
  static constexpr int value = kN;
};

// Calls use(Count, first) for 0 to n, by fours and what is left over. Four rows share what a
// product unpacks; the sums of more would not fit in the registers.
template <typename Use>
static inline __attribute__((always_inline)) void ByFours(int64_t n, Use&& use) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) use(Count<4>{}, i);
  switch (n - i) {
    case 3:
      return use(Count<3>{}, i);
    case 2:
      return use(Count<2>{}, i);
    case 1:
      return use(Count<1>{}, i);
    default:
      return;
  }
}

struct Panel {
  Vec v[kVecs];
};

static inline Panel LoadScales(const std::byte* p, bool wide) {
  Panel s;
  for (int i = 0; i < kVecs; ++i) {
    s.v[i] = wide ? Load(reinterpret_cast<const float*>(p) + i * kWidth)
                  : LoadHalf(reinterpret_cast<const uint16_t*>(p) + i * kWidth);
  }
  return s;
}

static inline size_t ScaleRowBytes(const PackedFormat& f) { return f.wide ? 64 : 32; }

// Calls use(column in step, q as float vectors) for the 32 columns of a step in order of storage.
template <PackedKind kKind, typename Use>
static inline __attribute__((always_inline)) void ForColumns(const std::byte* step, Use&& use) {
  if constexpr (kKind == PackedKind::kNibble || kKind == PackedKind::kByte) {
    constexpr int kVectors = kKind == PackedKind::kNibble ? 4 : 8;
    for (int j = 0; j < kVectors; ++j) {
      IntVec raw[kVecs];
      for (int i = 0; i < kVecs; ++i) raw[i] = LoadInt(step + j * 64 + i * kWidth * 4);
      if constexpr (kKind == PackedKind::kNibble) {
#pragma GCC unroll 8
        for (int b = 0; b < 8; ++b) {
          Panel q;
          for (int i = 0; i < kVecs; ++i) q.v[i] = ToFloat((raw[i] >> (4 * b)) & 15);
          // Even b: low nibble of byte b/2; odd: its high nibble.
          use(8 * j + 4 * (b & 1) + b / 2, q);
        }
      } else {
#pragma GCC unroll 4
        for (int b = 0; b < 4; ++b) {
          Panel q;
          for (int i = 0; i < kVecs; ++i) q.v[i] = ToFloat((raw[i] << (24 - 8 * b)) >> 24);
          use(4 * j + b, q);
        }
      }
    }
  } else {
    for (int c = 0; c < kStepColumns; ++c) {
      Panel q;
      for (int i = 0; i < kVecs; ++i) {
        if constexpr (kKind == PackedKind::kFloat) {
          q.v[i] = Load(reinterpret_cast<const float*>(step) + c * 16 + i * kWidth);
        } else if constexpr (kKind == PackedKind::kHalf) {
          q.v[i] = LoadHalf(reinterpret_cast<const uint16_t*>(step) + c * 16 + i * kWidth);
        } else {
          for (int l = 0; l < kWidth; ++l) {
            const uint32_t bits = static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(
                                      step)[c * 16 + i * kWidth + l])
                                  << 16;
            float number;
            std::memcpy(&number, &bits, 4);
            q.v[i][l] = number;
          }
        }
      }
      use(c, q);
    }
  }
}

// Some rows times one panel: acc[row]. Columns are summed inside their group first, then scaled.
// The sums of a row do not depend on how many rows there are.
template <PackedKind kKind, int kRows>
static inline void PanelDots(const PackedView& w, int64_t panel, const float* x, int64_t x_stride,
                             Panel* acc) {
  const PackedFormat& f = w.format();
  const size_t step_bytes = f.number_bytes_per_step();
  const size_t scale_bytes = f.scale_bytes_per_step();
  const std::byte* step = w.numbers(panel);
  const std::byte* scale = w.scales(panel);
  for (int r = 0; r < kRows; ++r) acc[r] = {};
  for (int64_t s = 0; s < w.steps(); ++s, step += step_bytes, scale += scale_bytes, x += 32) {
    if constexpr (kKind == PackedKind::kNibble || kKind == PackedKind::kByte) {
      Panel dot[kRows][2] = {};
      ForColumns<kKind>(step, [&](int c, const Panel& q) {
        for (int r = 0; r < kRows; ++r) {
          for (int i = 0; i < kVecs; ++i) dot[r][c / 16].v[i] += q.v[i] * x[r * x_stride + c];
        }
      });
      const Panel d = LoadScales(scale, f.wide);
      for (int r = 0; r < kRows; ++r) {
        float sum = 0.0f;
        if (f.has_min || f.offset != 0) {
          for (int c = 0; c < kStepColumns; ++c) sum += x[r * x_stride + c];
        }
        if (f.group == 16) {
          const Panel d1 = LoadScales(scale + ScaleRowBytes(f), f.wide);
          for (int i = 0; i < kVecs; ++i) {
            acc[r].v[i] += d.v[i] * dot[r][0].v[i] + d1.v[i] * dot[r][1].v[i];
          }
        } else {
          const float shift = sum * static_cast<float>(f.offset);
          for (int i = 0; i < kVecs; ++i) {
            acc[r].v[i] += d.v[i] * (dot[r][0].v[i] + dot[r][1].v[i] - shift);
          }
        }
        if (f.has_min) {
          const Panel m = LoadScales(scale + ScaleRowBytes(f), f.wide);
          for (int i = 0; i < kVecs; ++i) acc[r].v[i] += m.v[i] * sum;
        }
      }
    } else {
      ForColumns<kKind>(step, [&](int c, const Panel& q) {
        for (int r = 0; r < kRows; ++r) {
          for (int i = 0; i < kVecs; ++i) acc[r].v[i] += q.v[i] * x[r * x_stride + c];
        }
      });
    }
  }
}

// Writes a panel's outputs, of which the last panel may have fewer than 16.
static inline void StoreOutputs(const Panel& acc, int64_t outputs, bool accumulate, float* y) {
  if (outputs >= kPanelRows) {
    for (int i = 0; i < kVecs; ++i) {
      Store(y + i * kWidth, accumulate ? Load(y + i * kWidth) + acc.v[i] : acc.v[i]);
    }
    return;
  }
  float buffer[kPanelRows];
  for (int i = 0; i < kVecs; ++i) Store(buffer + i * kWidth, acc.v[i]);
  for (int64_t n = 0; n < outputs; ++n) y[n] = accumulate ? y[n] + buffer[n] : buffer[n];
}

static inline void StoreRows(const MatVecArgs& a, int64_t panel, int64_t first, int rows,
                             const Panel* acc) {
  for (int r = 0; r < rows; ++r) {
    StoreOutputs(acc[r], a.w.rows() - panel * kPanelRows, a.accumulate,
                 a.y + (first + r) * a.y_stride + panel * kPanelRows);
  }
}

template <PackedKind kKind>
static void MatVecKind(const MatVecArgs& a) {
  for (int64_t p = a.panel_begin; p < a.panel_end; ++p) {
    ByFours(a.rows, [&](auto rows, int64_t first) {
      Panel acc[rows.value];
      PanelDots<kKind, rows.value>(a.w, p, a.x + first * a.x_stride, a.x_stride, acc);
      StoreRows(a, p, first, rows.value, acc);
    });
  }
}

static void MatVecFloat(const MatVecArgs& a) {
  switch (a.w.format().kind) {
    case PackedKind::kNibble:
      return MatVecKind<PackedKind::kNibble>(a);
    case PackedKind::kByte:
      return MatVecKind<PackedKind::kByte>(a);
    case PackedKind::kHalf:
      return MatVecKind<PackedKind::kHalf>(a);
    case PackedKind::kBfloat16:
      return MatVecKind<PackedKind::kBfloat16>(a);
    case PackedKind::kFloat:
      return MatVecKind<PackedKind::kFloat>(a);
  }
}

// Weights of a panel as float32: out[column * stride + lane], for all padded columns.
template <PackedKind kKind>
static void UnpackPanelKind(const PackedView& w, int64_t panel, float* out, int64_t stride) {
  const PackedFormat& f = w.format();
  const std::byte* step = w.numbers(panel);
  const std::byte* scale = w.scales(panel);
  for (int64_t s = 0; s < w.steps(); ++s) {
    if constexpr (kKind == PackedKind::kNibble || kKind == PackedKind::kByte) {
      Panel d[2];
      d[0] = LoadScales(scale, f.wide);
      d[1] = f.group == 16 ? LoadScales(scale + ScaleRowBytes(f), f.wide) : d[0];
      Panel m = {};
      if (f.has_min) m = LoadScales(scale + ScaleRowBytes(f), f.wide);
      if (f.offset != 0) {
        for (int i = 0; i < kVecs; ++i) m.v[i] = d[0].v[i] * static_cast<float>(-f.offset);
      }
      ForColumns<kKind>(step, [&](int c, const Panel& q) {
        for (int i = 0; i < kVecs; ++i) {
          Store(out + c * stride + i * kWidth, q.v[i] * d[c / 16].v[i] + m.v[i]);
        }
      });
    } else {
      ForColumns<kKind>(step, [&](int c, const Panel& q) {
        for (int i = 0; i < kVecs; ++i) Store(out + c * stride + i * kWidth, q.v[i]);
      });
    }
    step += f.number_bytes_per_step();
    scale += f.scale_bytes_per_step();
    out += kStepColumns * stride;
  }
}

static void UnpackPanel(const PackedView& w, int64_t panel, float* out, int64_t stride) {
  switch (w.format().kind) {
    case PackedKind::kNibble:
      return UnpackPanelKind<PackedKind::kNibble>(w, panel, out, stride);
    case PackedKind::kByte:
      return UnpackPanelKind<PackedKind::kByte>(w, panel, out, stride);
    case PackedKind::kHalf:
      return UnpackPanelKind<PackedKind::kHalf>(w, panel, out, stride);
    case PackedKind::kBfloat16:
      return UnpackPanelKind<PackedKind::kBfloat16>(w, panel, out, stride);
    case PackedKind::kFloat:
      return UnpackPanelKind<PackedKind::kFloat>(w, panel, out, stride);
  }
}

struct TileArgs {
  const float* a;
  int64_t lda;
  const float* b;  // [k][ldb]
  int64_t ldb;
  float* c;
  int64_t ldc;
  int64_t k;
  bool accumulate;
};

struct TileBlock {
  // As many rows as leave room for the vectors of b: NEON has 32 registers, SSE2 has 16.
  static constexpr int kWidth = CAIRN_KERNEL_NS::kWidth;
  static constexpr int kMaxVecs = kWidth == 4 ? 4 : 2;
#if defined(CAIRN_NEON)
  static constexpr int kMaxRows = 6;
#else
  static constexpr int kMaxRows = kWidth == 16 ? 12 : (kWidth == 8 ? 6 : 3);
#endif

  template <int kRows, int kCols>
  static inline void Run(const TileArgs& t) {
    Vec acc[kRows][kCols];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kCols; ++v) {
        acc[r][v] = t.accumulate ? Load(t.c + r * t.ldc + v * kWidth) : Set(0.0f);
      }
    }
    for (int64_t k = 0; k < t.k; ++k) {
      Vec b[kCols];
      for (int v = 0; v < kCols; ++v) b[v] = Load(t.b + k * t.ldb + v * kWidth);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        const Vec x = Set(t.a[r * t.lda + k]);
        for (int v = 0; v < kCols; ++v) acc[r][v] += x * b[v];
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kCols; ++v) Store(t.c + r * t.ldc + v * kWidth, acc[r][v]);
    }
  }
};

// c[m][n] (+)= a[m][k] b[k][n]; n a multiple of 16. Each number of c is one chain of fused
// multiply-adds over k in order, whatever m and n are.
static void TileProduct(int64_t m, int64_t n, const TileArgs& t) {
  RunRegisterBlocks<TileBlock>(m, n, t);
}

static void GemmFloat(const GemmArgs& g) {
  const PackedView& w = g.w;
  const int64_t k = w.steps() * kStepColumns;
  float* b = reinterpret_cast<float*>(g.scratch);
  for (int64_t p = g.panel_begin; p < g.panel_end; p += 2) {
    const int64_t panels = Min(2, g.panel_end - p);
    const int64_t n = panels * kPanelRows;
    for (int64_t i = 0; i < panels; ++i) UnpackPanel(w, p + i, b + i * kPanelRows, n);
    const int64_t outputs = Min(n, w.rows() - p * kPanelRows);
    float* y = g.y + p * kPanelRows;
    if (outputs == n) {
      TileProduct(g.rows, n, {g.a, g.a_stride, b, n, y, g.y_stride, k, g.accumulate});
      continue;
    }
    // The last panel is not full: compute aside, so that nothing behind the matrix is written.
    for (int64_t r = 0; r < g.rows; ++r) {
      float row[2 * kPanelRows] = {};
      if (g.accumulate) std::memcpy(row, y + r * g.y_stride, static_cast<size_t>(outputs) * 4);
      TileProduct(1, n, {g.a + r * g.a_stride, g.a_stride, b, n, row, n, k, true});
      std::memcpy(y + r * g.y_stride, row, static_cast<size_t>(outputs) * 4);
    }
  }
}

}  // namespace cairn::kernels::CAIRN_KERNEL_NS
