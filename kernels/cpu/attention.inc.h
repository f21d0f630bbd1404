// Attention in float32, for any vector width. Included through kernels.inc.h.
//
// Prefill is the online softmax of FlashAttention (Dao et al. 2022) on tiles of 64 keys: a tile is
// converted once and used by all query heads of the group and all rows. Decode is its split form.

namespace cairn::kernels::CAIRN_KERNEL_NS {

// Turns a row of scores into weights in place. The first `visible` of the tile's keys count, the
// others get weight 0. Returns the factor for what was summed up before.
static inline float SoftmaxTile(float* s, int64_t visible, float* max, float* sum) {
  if (visible < kAttentionTile) {
    for (int64_t j = visible; j < kAttentionTile; ++j) s[j] = -kInfinity;
  }
  Vec top = Load(s);
  for (int64_t j = kWidth; j < kAttentionTile; j += kWidth) top = Max(top, Load(s + j));
  const float tile_max = MaxOf(top);
  const float old_max = *max;
  const float new_max = tile_max > old_max ? tile_max : old_max;
  Vec total = Set(0.0f);
  const Vec shift = Set(new_max);
  for (int64_t j = 0; j < kAttentionTile; j += kWidth) {
    const Vec x = Load(s + j);
    const Vec p = x == -kInfinity ? Set(0.0f) : Exp(x - shift);
    Store(s + j, p);
    total += p;
  }
  float factor = 1.0f;
  if (new_max != old_max) {
    float e[kWidth];
    Store(e, Exp(Set(old_max == -kInfinity ? -87.0f : old_max - new_max)));
    factor = old_max == -kInfinity ? 0.0f : e[0];
  }
  *sum = *sum * factor + Sum(total);
  *max = new_max;
  return factor;
}

static void AttentionFloat(const AttentionArgs& a) {
  const int64_t dim = a.kv.head_dim;
  const int64_t width = RoundUp(dim, 16);
  const int64_t queries = a.rows * a.group;
  if (queries == 0) return;
  float* q = reinterpret_cast<float*>(a.scratch);
  float* scores = q + queries * dim;
  float* keys = scores + queries * kAttentionTile;  // [dim][64]
  float* values = keys + dim * kAttentionTile;      // [64][width]
  float* behind = values + kAttentionTile * width;
  float* out = a.state == nullptr ? behind : reinterpret_cast<float*>(a.state);
  float* max = out + queries * width;
  float* sum = max + queries;

  // Query i is row i / group, head i % group: rows that see a tile are then a run of queries.
  for (int64_t i = 0; i < queries; ++i) {
    const float* src = a.q + i / a.group * a.q_stride + (a.kv_head * a.group + i % a.group) * dim;
    for (int64_t d = 0; d < dim; ++d) q[i * dim + d] = src[d] * a.scale;
    if (a.resume) continue;
    for (int64_t d = 0; d < width; ++d) out[i * width + d] = 0.0f;
    max[i] = -kInfinity;
    sum[i] = 0.0f;
  }

  ForEachKeyTile(a, [&](const KeyTile& tile) {
    for (int64_t j = 0; j < kAttentionTile; ++j) {
      float row[kAttentionTile * 4];
      if (j < tile.count) {
        const uint16_t* v = tile.kv.V(tile.head, tile.first + j);
        FromHalf({tile.kv.K(tile.head, tile.first + j), row, dim});
        FromHalf({v, values + j * width, dim});
        for (int64_t d = dim; d < width; ++d) values[j * width + d] = 0.0f;
        for (int64_t d = 0; d < dim; ++d) keys[d * kAttentionTile + j] = row[d];
      } else {
        for (int64_t d = 0; d < dim; ++d) keys[d * kAttentionTile + j] = 0.0f;
        for (int64_t d = 0; d < width; ++d) values[j * width + d] = 0.0f;
      }
    }
    const int64_t i0 = tile.first_row() * a.group;
    TileProduct(queries - i0, kAttentionTile,
                {q + i0 * dim, dim, keys, kAttentionTile, scores + i0 * kAttentionTile,
                 kAttentionTile, dim, false});
    for (int64_t i = i0; i < queries; ++i) {
      const float factor =
          SoftmaxTile(scores + i * kAttentionTile, tile.Visible(i / a.group), max + i, sum + i);
      if (factor == 1.0f) continue;
      for (int64_t d = 0; d < width; d += kWidth) {
        Store(out + i * width + d, Load(out + i * width + d) * factor);
      }
    }
    TileProduct(queries - i0, width,
                {scores + i0 * kAttentionTile, kAttentionTile, values, width, out + i0 * width,
                 width, kAttentionTile, true});
  });

  for (int64_t i = 0; i < queries && !a.more; ++i) {
    float* dst = a.out + i / a.group * a.out_stride + (a.kv_head * a.group + i % a.group) * dim;
    const float inverse = 1.0f / sum[i];
    for (int64_t d = 0; d < dim; ++d) dst[d] = out[i * width + d] * inverse;
  }
}

// Lane l is lane at[l] of a, or at[l] - kWidth of b.
static inline Vec Shuffle(Vec a, Vec b, IntVec at) {
#ifdef __clang__  // Shuffles by constants alone. Only fuzzers are built with it.
  Vec out;
  for (int l = 0; l < kWidth; ++l) out[l] = at[l] < kWidth ? a[at[l]] : b[at[l] - kWidth];
  return out;
#else
  return __builtin_shuffle(a, b, at);
#endif
}

// f of each lane, as the elements of a vector that the compiler knows.
#if defined(__AVX512F__)
#define CAIRN_LANES(f)                                                                             \
  {                                                                                                \
    f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7), f(8), f(9), f(10), f(11), f(12), f(13), f(14), \
        f(15)                                                                                      \
  }
#elif defined(__AVX2__)
#define CAIRN_LANES(f) \
  { f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7) }
#else
#define CAIRN_LANES(f) \
  { f(0), f(1), f(2), f(3) }
#endif

// Lanes with the bit kBit get from b[lane] + b[lane ^ kBit], the others the same of a.
template <int kBit>
static inline Vec AddNeighbours(Vec a, Vec b) {
#define CAIRN_KEEP(l) ((l)&kBit) != 0 ? kWidth + (l) : (l)
#define CAIRN_SWAP(l) ((l)&kBit) != 0 ? kWidth + ((l) ^ kBit) : (l) ^ kBit
  constexpr IntVec keep = CAIRN_LANES(CAIRN_KEEP), swap = CAIRN_LANES(CAIRN_SWAP);
#undef CAIRN_KEEP
#undef CAIRN_SWAP
  return Shuffle(a, b, keep) + Shuffle(a, b, swap);
}

// Lane l of the result is the sum of the lanes of v[l]. Destroys v.
template <int kBit = kWidth / 2>
static inline __attribute__((always_inline)) Vec SumEach(Vec* v) {
  if constexpr (kBit == 0) {
    return v[0];
  } else {
#pragma GCC unroll 8
    for (int i = 0; i < kBit; ++i) v[i] = AddNeighbours<kBit>(v[i], v[i + kBit]);
    return SumEach<kBit / 2>(v);
  }
}

#undef CAIRN_LANES

// Numbers of a page, or of a tile of it that was widened.
static inline Vec LoadNumbers(const uint16_t* p) { return LoadHalf(p); }
static inline Vec LoadNumbers(const float* p) { return Load(p); }
static inline float NumberAt(const uint16_t* p) { return ScalarFromHalf(*p); }
static inline float NumberAt(const float* p) { return *p; }

// score[h]: scores of kHeads queries for `count` (<= kWidth) neighbouring tokens of a page.
template <int kHeads, typename T>
static inline void ScoreTokens(const float* const* q, int64_t dim, const T* k, int64_t count,
                               Vec* score) {
  Vec acc[kHeads][kWidth];
  const int64_t whole = dim / kWidth * kWidth;
  // Two tokens at a time share what is loaded of the queries.
  for (int64_t t = 0; t < count; t += 2) {
    const T* const k0 = k + t * dim;
    const T* const k1 = t + 1 < count ? k0 + dim : k0;
    Vec s0[kHeads], s1[kHeads];
    for (int h = 0; h < kHeads; ++h) s0[h] = s1[h] = Set(0.0f);
    for (int64_t d = 0; d < whole; d += kWidth) {
      const Vec x0 = LoadNumbers(k0 + d), x1 = LoadNumbers(k1 + d);
      for (int h = 0; h < kHeads; ++h) {
        const Vec y = Load(q[h] + d);
        s0[h] += x0 * y;
        s1[h] += x1 * y;
      }
    }
    for (int64_t d = whole; d < dim; ++d) {
      const float x0 = NumberAt(k0 + d), x1 = NumberAt(k1 + d);
      for (int h = 0; h < kHeads; ++h) {
        s0[h][0] += x0 * q[h][d];
        s1[h][0] += x1 * q[h][d];
      }
    }
    for (int h = 0; h < kHeads; ++h) {
      acc[h][t] = s0[h];
      acc[h][t + 1] = s1[h];  // kWidth is even.
    }
  }
  for (int64_t t = count; t < kWidth; ++t) {
    for (int h = 0; h < kHeads; ++h) acc[h][t] = Set(0.0f);
  }
  for (int h = 0; h < kHeads; ++h) score[h] = SumEach(acc[h]);
}

// acc[h] += sum over tokens of weight[h][t] * v[t], for kVectors vectors of channels.
template <int kHeads, int kVectors, typename T>
static inline void AddValues(const float* weight, int64_t weight_stride, const T* v, int64_t dim,
                             int64_t count, float* const* acc, int64_t from) {
  Vec sum[kHeads][kVectors];
  for (int h = 0; h < kHeads; ++h) {
    for (int i = 0; i < kVectors; ++i) sum[h][i] = Load(acc[h] + from + i * kWidth);
  }
  for (int64_t t = 0; t < count; ++t) {
    Vec x[kVectors];
    for (int i = 0; i < kVectors; ++i) x[i] = LoadNumbers(v + t * dim + from + i * kWidth);
    for (int h = 0; h < kHeads; ++h) {
      const Vec w = Set(weight[h * weight_stride + t]);
      for (int i = 0; i < kVectors; ++i) sum[h][i] += w * x[i];
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int i = 0; i < kVectors; ++i) Store(acc[h] + from + i * kWidth, sum[h][i]);
  }
}

// How far ahead of what decode reads is prefetched: pages are scattered, and each head's part of a
// page is too short for the hardware to get going.
inline constexpr int64_t kAheadTokens = 32;

static inline void PrefetchTokens(const uint16_t* rows, int64_t count, int64_t dim) {
  const char* p = reinterpret_cast<const char*>(rows);
  for (int64_t i = 0; i < count * dim * 2; i += 64) __builtin_prefetch(p + i);
}

// A part of decode attention. Its queries are all rows' heads of the group, one row after the
// other. The result of a query does not depend on the others: it goes through the same vectors in
// the same order whether tiles are read as they are or widened first. One thread uses it.
class PartOfAttention {
 public:
  explicit PartOfAttention(const AttentionPartArgs& a)
      : a_(a),
        dim_(a.kv.head_dim),
        stride_(RoundUp(a.end - a.begin, 32)),
        queries_(a.rows * a.group),
        scores_(reinterpret_cast<float*>(a.scratch)),
        tops_(scores_ + queries_ * stride_),
        tile_(tops_ + queries_ * kWidth) {}

  // One row reads its tokens once: widening them first would not pay.
  void Run() {
    for (int64_t i = 0; i < queries_; ++i) Store(tops_ + i * kWidth, Set(-kInfinity));
    if (a_.rows == 1) {
      Score<16>([](const uint16_t* k, int64_t) { return k; });
    } else {
      Score<kAttentionPartTile>(Widen{tile_, dim_});
    }
    for (int64_t i = 0; i < queries_; ++i) Softmax(i);
    if (a_.rows == 1) {
      Add<16>([](const uint16_t* v, int64_t) { return v; });
    } else {
      Add<kAttentionPartTile>(Widen{tile_, dim_});
    }
  }

 private:
  struct Widen {
    float* tile;
    int64_t dim;
    const float* operator()(const uint16_t* rows, int64_t count) const {
      FromHalf({rows, tile, count * dim});
      return tile;
    }
  };

  // The place of a query: its row, and its head in the group.
  struct Place {
    int64_t row;
    int64_t head;
  };
  Place PlaceOf(int64_t i) const {
    return a_.rows == 1 ? Place{0, i} : Place{i / a_.group, i % a_.group};
  }
  Place Next(Place p) const {
    return p.head + 1 < a_.group ? Place{p.row, p.head + 1} : Place{p.row + 1, 0};
  }
  int64_t Result(Place p) const { return p.row * a_.row_stride + p.head; }
  const float* Query(Place p) const {
    return a_.q + p.row * a_.q_stride + (a_.kv_head * a_.group + p.head) * dim_;
  }
  float* Acc(Place p) const { return a_.acc + Result(p) * dim_; }

  // Calls use(rows, first, count) for tiles of the plane of K or V, which end at page ends.
  template <int64_t kTile, typename Plane, typename Use>
  void ForEachTile(Plane&& plane, Use&& use) {
    const int64_t page = a_.kv.block_tokens;
    for (int64_t t = a_.begin; t < a_.end;) {
      const int64_t count = Min(Min(a_.end - t, page - t % page), kTile);
      const int64_t ahead = t + kAheadTokens;
      if (ahead < a_.end) PrefetchTokens(plane(ahead), count, dim_);
      use(plane(t), t - a_.begin, count);
      t += count;
    }
  }

  template <int64_t kTile, typename Read>
  void Score(Read&& read) {
    ForEachTile<kTile>(
        [&](int64_t t) { return a_.kv.K(a_.kv_head, t); },
        [&](const uint16_t* rows, int64_t first, int64_t count) {
          const auto* const k = read(rows, count);
          ByFours(queries_, [&](auto n, int64_t i) { ScoreTile<n.value>(i, k, first, count); });
        });
  }

  // Groups of kWidth tokens count from the tile's first token: the same for every size of a tile.
  template <int kHeads, typename T>
  inline void ScoreTile(int64_t i, const T* k, int64_t first, int64_t count) {
    const float* q[kHeads];
    Vec top[kHeads];
    Place place = PlaceOf(i);
    for (int h = 0; h < kHeads; ++h, place = Next(place)) {
      q[h] = Query(place);
      top[h] = Load(tops_ + (i + h) * kWidth);
    }
    for (int64_t t = 0; t < count; t += kWidth) {
      const int64_t here = Min(kWidth, count - t);
      Vec s[kHeads];
      ScoreTokens<kHeads>(q, dim_, k + t * dim_, here, s);
      for (int h = 0; h < kHeads; ++h) {
        float buffer[kWidth];
        Store(buffer, s[h] * a_.scale);
        for (int64_t j = here; j < kWidth; ++j) buffer[j] = -kInfinity;
        top[h] = Max(top[h], Load(buffer));
        std::memcpy(scores_ + (i + h) * stride_ + first + t, buffer,
                    static_cast<size_t>(here) * sizeof(float));
      }
    }
    for (int h = 0; h < kHeads; ++h) Store(tops_ + (i + h) * kWidth, top[h]);
  }

  // Turns a query's scores into weights in place.
  void Softmax(int64_t i) {
    const float max = MaxOf(Load(tops_ + i * kWidth));
    float* s = scores_ + i * stride_;
    for (int64_t t = a_.end - a_.begin; t < stride_; ++t) s[t] = -kInfinity;
    Vec total = Set(0.0f);
    for (int64_t t = 0; t < stride_; t += kWidth) {
      const Vec x = Load(s + t);
      const Vec p = x == -kInfinity ? Set(0.0f) : Exp(x - max);
      Store(s + t, p);
      total += p;
    }
    const Place place = PlaceOf(i);
    a_.max[Result(place)] = max;
    a_.sum[Result(place)] = Sum(total);
    for (int64_t d = 0; d < dim_; ++d) Acc(place)[d] = 0.0f;
  }

  template <int64_t kTile, typename Read>
  void Add(Read&& read) {
    ForEachTile<kTile>([&](int64_t t) { return a_.kv.V(a_.kv_head, t); },
                       [&](const uint16_t* rows, int64_t first, int64_t count) {
                         const auto* const v = read(rows, count);
                         ByFours(queries_,
                                 [&](auto n, int64_t i) { AddTile<n.value>(i, v, first, count); });
                       });
  }

  template <int kHeads, typename T>
  inline void AddTile(int64_t i, const T* v, int64_t first, int64_t count) {
    const float* weight = scores_ + i * stride_ + first;
    float* acc[kHeads];
    Place place = PlaceOf(i);
    for (int h = 0; h < kHeads; ++h, place = Next(place)) acc[h] = Acc(place);
    int64_t d = 0;
    // Four heads of four vectors have no registers left for what is read.
    constexpr int kVectors = kHeads == 4 && kWidth < 16 ? 2 : 4;
    for (; d + kVectors * kWidth <= dim_; d += kVectors * kWidth) {
      AddValues<kHeads, kVectors>(weight, stride_, v, dim_, count, acc, d);
    }
    for (; d + kWidth <= dim_; d += kWidth) {
      AddValues<kHeads, 1>(weight, stride_, v, dim_, count, acc, d);
    }
    for (; d < dim_; ++d) {
      for (int h = 0; h < kHeads; ++h) {
        for (int64_t j = 0; j < count; ++j) {
          acc[h][d] += weight[h * stride_ + j] * NumberAt(v + j * dim_ + d);
        }
      }
    }
  }

  const AttentionPartArgs& a_;
  const int64_t dim_;
  const int64_t stride_;
  const int64_t queries_;
  float* const scores_;  // [queries][stride]
  float* const tops_;    // [queries][kWidth]: the largest scores so far, by lane.
  float* const tile_;    // [kAttentionPartTile][dim]
};

static void AttentionPart(const AttentionPartArgs& a) { PartOfAttention(a).Run(); }

static void AttentionMerge(const AttentionMergeArgs& a) {
  for (int64_t g = 0; g < a.group; ++g) {
    float max = -kInfinity;
    for (int64_t p = 0; p < a.parts; ++p) {
      const float m = a.max[p * a.group + g];
      max = m > max ? m : max;
    }
    float* out = a.out + g * a.head_dim;
    for (int64_t d = 0; d < a.head_dim; ++d) out[d] = 0.0f;
    float sum = 0.0f;
    for (int64_t p = 0; p < a.parts; ++p) {
      if (a.max[p * a.group + g] == -kInfinity) continue;
      float factor[kWidth];
      Store(factor, Exp(Set(a.max[p * a.group + g] - max)));
      const float* acc = a.acc + (p * a.group + g) * a.head_dim;
      sum += a.sum[p * a.group + g] * factor[0];
      for (int64_t d = 0; d < a.head_dim; ++d) out[d] += acc[d] * factor[0];
    }
    const float inverse = 1.0f / sum;
    for (int64_t d = 0; d < a.head_dim; ++d) out[d] *= inverse;
  }
}

}  // namespace cairn::kernels::CAIRN_KERNEL_NS
