// Rows of scores: reductions, pooling, ranking; copies of rows. Included through selection.inc.h.

namespace cairn::kernels::CAIRN_KERNEL_NS {

// One vector of columns, or fewer columns at the end of a row.
static inline F Columns(const float* p, int64_t left) {
  return left >= kLanes ? LoadF(p) : LoadFirst(p, left, 0.0f);
}
static inline void StoreColumns(float* p, F f, int64_t left) {
  if (left >= kLanes) {
    StoreF(p, f);
    return;
  }
  float v[kLanes];
  StoreF(v, f);
  StoreFirst(p, v, left);
}

static void ReduceRows(const ReduceRowsArgs& a) {
  const F n = Set(static_cast<float>(a.rows));
  for (int64_t j = 0; j < a.cols; j += kLanes) {
    const int64_t left = a.cols - j;
    const auto row = [&](int64_t r) { return Columns(a.x + r * a.stride + j, left); };
    F out = row(0);
    if (a.reduction == Reduction::kMax) {
      // Adding a number's difference from itself keeps NaN, which a comparison would lose.
      F check = out - out;
      for (int64_t r = 1; r < a.rows; ++r) {
        const F x = row(r);
        out = Max(out, x);
        check = check + (x - x);
      }
      out = out + check;
    } else {
      for (int64_t r = 1; r < a.rows; ++r) out = out + row(r);
      out = out / n;
    }
    if (a.reduction == Reduction::kVariance) {
      F squares = Set(0.0f);
      for (int64_t r = 0; r < a.rows; ++r) {
        const F e = row(r) - out;
        squares = Fma(e, e, squares);
      }
      out = a.rows > 1 ? squares / Set(static_cast<float>(a.rows - 1)) : squares;
    }
    StoreColumns(a.y + j, out, left);
  }
}

static void PoolOne(const PoolArgs& a, int64_t first, int64_t last, float divisor) {
  for (int64_t i = first; i < last; ++i) {
    const int64_t begin = i > a.reach ? i - a.reach : 0;
    const int64_t end = Least(a.n, i + a.reach + 1);
    float out = a.x[begin];
    if (a.max) {
      for (int64_t j = begin + 1; j < end; ++j) {
        const float x = a.x[j];
        // A NaN wins, so that it is seen later.
        out = x > out || x != x ? x : out;
      }
    } else {
      for (int64_t j = begin + 1; j < end; ++j) out += a.x[j];
      out /= divisor;
    }
    a.y[i] = out;
  }
}

static void Pool(const PoolArgs& a) {
  const float divisor = static_cast<float>(2 * a.reach + 1);
  int64_t i = Least(a.reach, a.n);
  PoolOne(a, 0, i, divisor);
  // Where all neighbours are there, as many at once as lanes: the same sums in the same order.
  for (; !a.max && i + kLanes + a.reach <= a.n; i += kLanes) {
    F sum = LoadF(a.x + i - a.reach);
    for (int64_t j = 1 - a.reach; j <= a.reach; ++j) sum = sum + LoadF(a.x + i + j);
    StoreF(a.y + i, sum / Set(divisor));
  }
  PoolOne(a, i, a.n, divisor);
}

static void ChunkMeans(const ChunkMeansArgs& a) {
  for (int64_t at = 0; at < a.n; at += a.chunk) {
    const int64_t end = Least(a.n, at + a.chunk);
    float sum = 0.0f;
    for (int64_t i = at; i < end; ++i) sum += a.x[i];
    *(a.y + at / a.chunk) = sum / static_cast<float>(end - at);
  }
}

static void CountNonFiniteFloats(const CountFloatsArgs& a) {
  int64_t count = 0;
  for (int64_t i = 0; i < a.n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, a.x + i, sizeof(bits));
    count += (bits & 0x7f800000) == 0x7f800000 ? 1 : 0;
  }
  *a.count = count;
}

// Larger numbers have smaller keys; the two zeros have the same.
static inline uint32_t RankKey(float f) {
  uint32_t bits;
  f += 0.0f;
  std::memcpy(&bits, &f, sizeof(bits));
  return bits & 0x80000000 ? bits : bits ^ 0x7fffffff;
}

// Radix selection: the key of the last number taken is found digit by digit, 11 bits at a time.
static void MarkTop(const MarkTopArgs& a) {
  constexpr int kDigits = 3;
  constexpr int kShift[kDigits] = {21, 10, 0};
  constexpr uint32_t kMask[kDigits] = {0x7ff, 0x7ff, 0x3ff};
  if (a.count <= 0) return;
  uint32_t prefix = 0, known = 0;
  int64_t left = a.count;  // To be taken among those that begin with `prefix`.
  for (int d = 0; d < kDigits; ++d) {
    int32_t counts[2048] = {};
    for (int64_t i = 0; i < a.n; ++i) {
      const uint32_t key = RankKey(a.scores[i]);
      if (a.marks[i] == 0 && (key & known) == prefix) ++counts[key >> kShift[d] & kMask[d]];
    }
    uint32_t digit = 0;
    while (digit < kMask[d] && counts[digit] < left) left -= counts[digit++];
    prefix |= digit << kShift[d];
    known |= kMask[d] << kShift[d];
  }
  for (int64_t i = 0; i < a.n; ++i) {
    if (a.marks[i] != 0) continue;
    const uint32_t key = RankKey(a.scores[i]);
    if (key < prefix) {
      a.marks[i] = 1;
    } else if (key == prefix && left > 0) {
      a.marks[i] = 1;
      --left;
    }
  }
}

static void GatherRows(const GatherRowsArgs& a) {
  const int64_t dim = a.x.kv.head_dim;
  for (int64_t i = 0; i < a.n; ++i) {
    std::memcpy(a.out + i * dim, a.x.row(a.rows[i]), static_cast<size_t>(dim) * sizeof(uint16_t));
  }
}

static void TurnRows(const TurnRowsArgs& a) {
  const int64_t half = a.rope_dim / 2;
  for (int64_t i = 0; i < a.rows; ++i) {
    uint16_t* x = a.x + i * a.head_dim;
    const float* cosine = a.cosine + i * half;
    const float* sine = a.sine + i * half;
    int64_t p = 0;
    for (; p + kLanes <= half; p += kLanes) {
      const F low = ToF(LoadH(x + p)), high = ToF(LoadH(x + half + p));
      const F c = LoadF(cosine + p), s = LoadF(sine + p);
      StoreH(x + p, ToH(low * c - high * s));
      StoreH(x + half + p, ToH(high * c + low * s));
    }
    for (; p < half; ++p) {
      const float low = HalfToFloat(x[p]), high = HalfToFloat(x[half + p]);
      x[p] = FloatToHalf(low * cosine[p] - high * sine[p]);
      x[half + p] = FloatToHalf(high * cosine[p] + low * sine[p]);
    }
  }
}

}  // namespace cairn::kernels::CAIRN_KERNEL_NS
