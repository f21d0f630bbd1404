// Row operations, for any vector width. Included through kernels.inc.h.

namespace cairn::kernels::CAIRN_KERNEL_NS {

static void RmsNorm(const RmsNormArgs& a) {
  const int64_t whole = a.cols / kWidth * kWidth;
  for (int64_t r = 0; r < a.rows; ++r) {
    const float* x = a.x + r * a.x_stride;
    float* y = a.y + r * a.y_stride;
    Vec acc = Set(0.0f);
    for (int64_t c = 0; c < whole; c += kWidth) {
      const Vec v = Load(x + c);
      acc += v * v;
    }
    float sum = Sum(acc);
    for (int64_t c = whole; c < a.cols; ++c) sum += x[c] * x[c];
    const float inverse = 1.0f / __builtin_sqrtf(sum / static_cast<float>(a.cols) + a.eps);
    for (int64_t c = 0; c < whole; c += kWidth) {
      Store(y + c, Load(x + c) * inverse * Load(a.weight + c));
    }
    for (int64_t c = whole; c < a.cols; ++c) y[c] = x[c] * inverse * a.weight[c];
  }
}

static void Rope(const RopeArgs& a) {
  const int64_t half = a.rope_dim / 2;
  const int64_t whole = half / kWidth * kWidth;
  for (int64_t r = 0; r < a.rows; ++r) {
    const float* cosine = a.cosine + r * half;
    const float* sine = a.sine + r * half;
    for (int64_t h = 0; h < a.heads; ++h) {
      float* x = a.x + r * a.row_stride + h * a.head_dim;
      float* y = x + half;
      for (int64_t c = 0; c < whole; c += kWidth) {
        const Vec x0 = Load(x + c), y0 = Load(y + c);
        const Vec co = Load(cosine + c), si = Load(sine + c);
        Store(x + c, x0 * co - y0 * si);
        Store(y + c, y0 * co + x0 * si);
      }
      for (int64_t c = whole; c < half; ++c) {
        const float x0 = x[c], y0 = y[c];
        x[c] = x0 * cosine[c] - y0 * sine[c];
        y[c] = y0 * cosine[c] + x0 * sine[c];
      }
    }
  }
}

static inline Vec SiluMul(Vec gate, Vec up) {
  // Where exp would overflow silu is the gate itself, or 0: keeps infinities out of 0 * inf.
  const Vec e = Exp(-gate);
  const Vec silu = gate / (e + 1.0f);
  return (gate > -87.0f ? silu : (gate <= -87.0f ? Set(0.0f) : gate)) * up;
}

static void SwiGlu(const SwiGluArgs& a) {
  int64_t i = 0;
  for (; i + kWidth <= a.n; i += kWidth) Store(a.y + i, SiluMul(Load(a.gate + i), Load(a.up + i)));
  if (i < a.n) {
    float gate[kWidth] = {}, up[kWidth] = {};
    const size_t bytes = static_cast<size_t>(a.n - i) * sizeof(float);
    std::memcpy(gate, a.gate + i, bytes);
    std::memcpy(up, a.up + i, bytes);
    Store(gate, SiluMul(Load(gate), Load(up)));
    std::memcpy(a.y + i, gate, bytes);
  }
}

static void ToHalf(const ToHalfArgs& a) {
  int64_t i = 0;
  for (; i + kWidth <= a.n; i += kWidth) StoreHalf(a.y + i, Load(a.x + i));
  for (; i < a.n; ++i) a.y[i] = ScalarToHalf(a.x[i]);
}

static void FromHalf(const FromHalfArgs& a) {
  int64_t i = 0;
  for (; i + kWidth <= a.n; i += kWidth) Store(a.y + i, LoadHalf(a.x + i));
  for (; i < a.n; ++i) a.y[i] = ScalarFromHalf(a.x[i]);
}

static void ToBfloat16(const ToBfloat16Args& a) {
  for (int64_t i = 0; i < a.n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, a.x + i, 4);
    const bool nan = (bits & 0x7fffffff) > 0x7f800000;
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    a.y[i] = static_cast<uint16_t>(nan ? (bits >> 16) | 0x40 : rounded);
  }
}

static int64_t FirstLargest(const float* x, int64_t n) {
  // First the largest value, then the first place that has it: both vectorise.
  Vec best = Set(-kInfinity);
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const Vec v = Load(x + i);
    best = v > best ? v : best;
  }
  float value = MaxOf(best);
  for (; i < n; ++i) value = x[i] > value ? x[i] : value;
  for (i = 0; i < n; ++i) {
    if (x[i] == value) return i;
  }
  return -1;
}

static void ArgMax(const ArgMaxArgs& a) { *a.index = FirstLargest(a.x, a.n); }

}  // namespace cairn::kernels::CAIRN_KERNEL_NS
