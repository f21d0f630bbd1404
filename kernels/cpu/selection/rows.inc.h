// Scores of single keys and values: lanes are tokens. Included through selection.inc.h.

namespace cairn::kernels::CAIRN_KERNEL_NS {

// Calls use(first token, count, tile) for the tiles of x.
template <typename Use>
static inline void ForTiles(const TokenRows& x, std::byte* scratch, Use&& use) {
  float* tile = reinterpret_cast<float*>(scratch);
  for (int64_t t = x.begin; t < x.end; t += kSelectionTile) {
    LoadTile(x, t, tile);
    use(t, Least(kSelectionTile, x.end - t), tile);
  }
}

static void RowNorms(const RowNormsArgs& a) {
  ForTiles(a.x, a.scratch, [&](int64_t t, int64_t count, const float* tile) {
    float row[kSelectionTile];
    for (int64_t i = 0; i < kSelectionTile; i += kLanes) {
      F sum = Set(0.0f);
      for (int64_t c = 0; c < a.x.kv.head_dim; ++c) {
        const F x = LoadF(tile + c * kSelectionTile + i);
        sum = Fma(x, x, sum);
      }
      StoreF(row + i, Sqrt(sum));
    }
    StoreFirst(a.norms + (t - a.x.begin), row, count);
  });
}

static void SumUnitRows(const SumUnitRowsArgs& a) {
  const int64_t dim = a.x.kv.head_dim;
  for (int64_t t = a.x.begin; t < a.x.end; ++t) {
    const uint16_t* row = a.x.row(t);
    const float norm = a.norms[t - a.x.begin];
    const float inverse = 1.0f / (norm > 1e-12f ? norm : 1e-12f);
    int64_t c = 0;
    for (; c + kLanes <= dim; c += kLanes) {
      StoreF(a.sum + c, Fma(ToF(LoadH(row + c)), Set(inverse), LoadF(a.sum + c)));
    }
    for (; c < dim; ++c) a.sum[c] = __builtin_fmaf(HalfToFloat(row[c]), inverse, a.sum[c]);
  }
}

static void Cosines(const CosinesArgs& a) {
  const int64_t dim = a.x.kv.head_dim;
  float square = 0.0f;
  for (int64_t c = 0; c < dim; ++c) square = __builtin_fmaf(a.v[c], a.v[c], square);
  const float length = __builtin_sqrtf(square);
  const float v = length > 1e-8f ? length : 1e-8f;
  ForTiles(a.x, a.scratch, [&](int64_t t, int64_t count, const float* tile) {
    float row[kSelectionTile];
    Multiply(1, kSelectionTile, {a.v, dim, tile, kSelectionTile, row, kSelectionTile, dim});
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = t - a.x.begin + i;
      const float norm = a.norms[at] > 1e-8f ? a.norms[at] : 1e-8f;
      a.cosines[at] = row[i] / (norm * v);
    }
  });
}

static void LagScores(const LagScoresArgs& a) {
  if (a.x.count() <= 0) return;
  const int64_t dim = a.x.kv.head_dim;
  float* least = reinterpret_cast<float*>(a.scratch) + dim * kSelectionTile;
  float* span = least + dim;
  for (int64_t c = 0; c < dim; ++c) {
    float low = HalfToFloat(a.next.row(a.next.begin)[c]), high = low;
    for (int64_t t = a.next.begin + 1; t < a.next.end; ++t) {
      const float x = HalfToFloat(a.next.row(t)[c]);
      low = x < low ? x : low;
      high = x > high ? x : high;
    }
    least[c] = low;
    span[c] = high - low;
  }
  ForTiles(a.x, a.scratch, [&](int64_t t, int64_t count, const float* tile) {
    float row[kSelectionTile];
    const float n = static_cast<float>(dim);
    for (int64_t i = 0; i < kSelectionTile; i += kLanes) {
      const auto relative = [&](int64_t c) {
        const F x = LoadF(tile + c * kSelectionTile + i);
        return span[c] == 0.0f ? Set(0.0f) : (x - Set(least[c])) / Set(span[c]);
      };
      F sum = Set(0.0f);
      for (int64_t c = 0; c < dim; ++c) sum = sum + relative(c);
      const F mean = sum / Set(n);
      F squares = Set(0.0f);
      for (int64_t c = 0; c < dim; ++c) {
        const F e = relative(c) - mean;
        squares = Fma(e, e, squares);
      }
      StoreF(row + i, Sqrt(squares / Set(n - 1.0f)));
    }
    StoreFirst(a.scores + (t - a.x.begin), row, count);
  });
  Softmax({a.scores, a.x.count()});
}

static void QueryMoments(const QueryMomentsArgs& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const float* q = a.q + r * a.q_stride;
    for (int64_t i = 0; i < a.dim; i += kLanes) {
      StoreF(a.sum + i, LoadF(a.sum + i) + LoadF(q + i));
    }
  }
  // products += (columns of q) x (rows of q), eight rows at a time so that they stay in registers.
  constexpr int64_t kRows = 8;
  for (int64_t at = 0; at < a.rows; at += kRows) {
    const int64_t rows = Least(kRows, a.rows - at);
    for (int64_t i = 0; i < a.dim; ++i) {
      float* products = a.products + i * a.dim;
      for (int64_t j = 0; j < a.dim; j += kLanes) {
        F sum = LoadF(products + j);
        for (int64_t r = 0; r < rows; ++r) {
          const float* q = a.q + (at + r) * a.q_stride;
          sum = Fma(Set(q[i]), LoadF(q + j), sum);
        }
        StoreF(products + j, sum);
      }
    }
  }
}

static void ExpectedLogits(const ExpectedLogitsArgs& a) {
  const int64_t dim = a.keys.kv.head_dim;
  float* turned = reinterpret_cast<float*>(a.scratch) + dim * kSelectionTile;
  const float half = a.scale * a.scale * 0.5f;
  ForTiles(a.keys, a.scratch, [&](int64_t t, int64_t count, const float* tile) {
    Multiply(dim, kSelectionTile,
             {a.covariance, dim, tile, kSelectionTile, turned, kSelectionTile, dim});
    float row[kSelectionTile];
    Multiply(1, kSelectionTile,
             {a.mean, dim, tile, kSelectionTile, row, kSelectionTile, dim, a.scale});
    for (int64_t i = 0; i < kSelectionTile; i += kLanes) {
      F sum = Set(0.0f);
      for (int64_t c = 0; c < dim; ++c) {
        const int64_t at = c * kSelectionTile + i;
        sum = Fma(LoadF(tile + at), LoadF(turned + at), sum);
      }
      StoreF(row + i, Fma(sum, Set(half), LoadF(row + i)));
    }
    StoreFirst(a.logits + (t - a.keys.begin), row, count);
  });
}

static void ProjectedNorms(const ProjectedNormsArgs& a) {
  const int64_t dim = a.values.kv.head_dim;
  float* block = reinterpret_cast<float*>(a.scratch) + dim * kSelectionTile;
  ForTiles(a.values, a.scratch, [&](int64_t t, int64_t count, const float* tile) {
    constexpr int kVecs = kSelectionTile / kLanes;
    F sum[kVecs];
    for (int v = 0; v < kVecs; ++v) sum[v] = Set(0.0f);
    for (int64_t at = 0; at < a.hidden; at += kProjectedRows) {
      const int64_t rows = Least(kProjectedRows, a.hidden - at);
      Multiply(rows, kSelectionTile,
               {a.w + at * dim, dim, tile, kSelectionTile, block, kSelectionTile, dim});
      for (int64_t r = 0; r < rows; ++r) {
        for (int v = 0; v < kVecs; ++v) {
          sum[v] = sum[v] + Abs(LoadF(block + r * kSelectionTile + v * kLanes));
        }
      }
    }
    float row[kSelectionTile];
    for (int v = 0; v < kVecs; ++v) StoreF(row + v * kLanes, sum[v]);
    for (int64_t i = 0; i < count; ++i) a.norms[t - a.values.begin + i] += row[i];
  });
}

}  // namespace cairn::kernels::CAIRN_KERNEL_NS
