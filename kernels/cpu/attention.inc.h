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
  float* out = q + queries * dim;
  float* scores = out + queries * width;
  float* keys = scores + queries * kAttentionTile;  // [dim][64]
  float* values = keys + dim * kAttentionTile;      // [64][width]
  float* max = values + kAttentionTile * width;
  float* sum = max + queries;

  // Query i is row i / group, head i % group: rows that see a tile are then a run of queries.
  for (int64_t i = 0; i < queries; ++i) {
    const float* src = a.q + i / a.group * a.q_stride + (a.kv_head * a.group + i % a.group) * dim;
    for (int64_t d = 0; d < dim; ++d) q[i * dim + d] = src[d] * a.scale;
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

  for (int64_t i = 0; i < queries; ++i) {
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

// Lane l of the result is the sum of the lanes of v[l]. Destroys v.
static inline Vec SumEach(Vec* v) {
#pragma GCC unroll 4
  for (int bit = kWidth / 2; bit > 0; bit /= 2) {
    IntVec keep, swap;
    for (int l = 0; l < kWidth; ++l) {
      keep[l] = (l & bit) != 0 ? kWidth + l : l;
      swap[l] = (l & bit) != 0 ? kWidth + (l ^ bit) : l ^ bit;
    }
#pragma GCC unroll 8
    for (int i = 0; i < bit; ++i) {
      v[i] = Shuffle(v[i], v[i + bit], keep) + Shuffle(v[i], v[i + bit], swap);
    }
  }
  return v[0];
}

// Scores of kHeads heads for `count` (<= kWidth) neighbouring tokens of a page.
template <int kHeads>
static inline void ScoreTokens(const float* q, int64_t dim, const uint16_t* k, int64_t count,
                               Vec* score) {
  Vec acc[kHeads][kWidth];
  const int64_t whole = dim / kWidth * kWidth;
  for (int64_t t = 0; t < count; ++t) {
    Vec s[kHeads];
    for (int h = 0; h < kHeads; ++h) s[h] = Set(0.0f);
    for (int64_t d = 0; d < whole; d += kWidth) {
      const Vec x = LoadHalf(k + t * dim + d);
      for (int h = 0; h < kHeads; ++h) s[h] += x * Load(q + h * dim + d);
    }
    for (int64_t d = whole; d < dim; ++d) {
      const float x = ScalarFromHalf(k[t * dim + d]);
      for (int h = 0; h < kHeads; ++h) s[h][0] += x * q[h * dim + d];
    }
    for (int h = 0; h < kHeads; ++h) acc[h][t] = s[h];
  }
  for (int64_t t = count; t < kWidth; ++t) {
    for (int h = 0; h < kHeads; ++h) acc[h][t] = Set(0.0f);
  }
  for (int h = 0; h < kHeads; ++h) score[h] = SumEach(acc[h]);
}

// acc[h] += sum over tokens of weight[h][t] * v[t], for kVectors vectors of channels.
template <int kHeads, int kVectors>
static inline void AddValues(const float* weight, int64_t weight_stride, const uint16_t* v,
                             int64_t dim, int64_t count, float* acc) {
  Vec sum[kHeads][kVectors];
  for (int h = 0; h < kHeads; ++h) {
    for (int i = 0; i < kVectors; ++i) sum[h][i] = Load(acc + h * dim + i * kWidth);
  }
  for (int64_t t = 0; t < count; ++t) {
    Vec x[kVectors];
    for (int i = 0; i < kVectors; ++i) x[i] = LoadHalf(v + t * dim + i * kWidth);
    for (int h = 0; h < kHeads; ++h) {
      const Vec w = Set(weight[h * weight_stride + t]);
      for (int i = 0; i < kVectors; ++i) sum[h][i] += w * x[i];
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int i = 0; i < kVectors; ++i) Store(acc + h * dim + i * kWidth, sum[h][i]);
  }
}

// Tokens handled together in decode, and how far ahead of them is prefetched: pages are scattered,
// and each head's part of a page is too short for the hardware to get going.
inline constexpr int64_t kPartTokens = 16;
inline constexpr int64_t kAheadTokens = 32;

static inline void PrefetchTokens(const uint16_t* rows, int64_t count, int64_t dim) {
  const char* p = reinterpret_cast<const char*>(rows);
  for (int64_t i = 0; i < count * dim * 2; i += 64) __builtin_prefetch(p + i);
}

template <int kHeads>
static void PartHeads(const AttentionPartArgs& a, int64_t g) {
  const int64_t dim = a.kv.head_dim;
  const int64_t stride = RoundUp(a.end - a.begin, 32);
  float* score = reinterpret_cast<float*>(a.scratch);
  const float* q = a.q + (a.kv_head * a.group + g) * dim;
  const int64_t page = a.kv.block_tokens;

  Vec top[kHeads];
  for (int h = 0; h < kHeads; ++h) top[h] = Set(-kInfinity);
  // Groups of kWidth tokens count from `begin`, and end at page ends: the same for every caller.
  for (int64_t t = a.begin; t < a.end;) {
    const int64_t in_page = Min(a.end - t, page - t % page);
    const int64_t count = Min(in_page, kWidth);
    const int64_t ahead = t + kAheadTokens;
    if (ahead < a.end) PrefetchTokens(a.kv.K(a.kv_head, ahead), count, dim);
    Vec s[kHeads];
    ScoreTokens<kHeads>(q, dim, a.kv.K(a.kv_head, t), count, s);
    for (int h = 0; h < kHeads; ++h) {
      float buffer[kWidth];
      Store(buffer, s[h] * a.scale);
      for (int64_t j = count; j < kWidth; ++j) buffer[j] = -kInfinity;
      const Vec v = Load(buffer);
      top[h] = Max(top[h], v);
      std::memcpy(score + h * stride + (t - a.begin), buffer,
                  static_cast<size_t>(count) * sizeof(float));
    }
    t += count;
  }

  const int64_t tokens = a.end - a.begin;
  for (int h = 0; h < kHeads; ++h) {
    const float max = MaxOf(top[h]);
    float* s = score + h * stride;
    for (int64_t t = tokens; t < stride; ++t) s[t] = -kInfinity;
    Vec total = Set(0.0f);
    for (int64_t t = 0; t < stride; t += kWidth) {
      const Vec x = Load(s + t);
      const Vec p = x == -kInfinity ? Set(0.0f) : Exp(x - max);
      Store(s + t, p);
      total += p;
    }
    a.max[g + h] = max;
    a.sum[g + h] = Sum(total);
    for (int64_t d = 0; d < dim; ++d) a.acc[(g + h) * dim + d] = 0.0f;
  }

  for (int64_t t = a.begin; t < a.end;) {
    const int64_t count = Min(Min(a.end - t, page - t % page), kPartTokens);
    const int64_t ahead = t + kAheadTokens;
    if (ahead < a.end) PrefetchTokens(a.kv.V(a.kv_head, ahead), count, dim);
    const uint16_t* v = a.kv.V(a.kv_head, t);
    const float* weight = score + (t - a.begin);
    float* acc = a.acc + g * dim;
    int64_t d = 0;
    for (; d + 4 * kWidth <= dim; d += 4 * kWidth) {
      AddValues<kHeads, 4>(weight, stride, v + d, dim, count, acc + d);
    }
    for (; d + kWidth <= dim; d += kWidth) {
      AddValues<kHeads, 1>(weight, stride, v + d, dim, count, acc + d);
    }
    for (; d < dim; ++d) {
      for (int h = 0; h < kHeads; ++h) {
        for (int64_t j = 0; j < count; ++j) {
          acc[h * dim + d] += weight[h * stride + j] * ScalarFromHalf(v[j * dim + d]);
        }
      }
    }
    t += count;
  }
}

static void AttentionPart(const AttentionPartArgs& a) {
  int64_t g = 0;
  for (; g + 4 <= a.group; g += 4) PartHeads<4>(a, g);
  switch (a.group - g) {
    case 3:
      return PartHeads<3>(a, g);
    case 2:
      return PartHeads<2>(a, g);
    case 1:
      return PartHeads<1>(a, g);
    default:
      return;
  }
}

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
