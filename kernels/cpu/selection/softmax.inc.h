// Exponential, logarithm and softmax, equal on every instruction set. Included through
// selection.inc.h.

namespace cairn::kernels::CAIRN_KERNEL_NS {

// exp(x) to about 2 ulp for x <= 0; below -87 it stays at exp(-87), which is 1.6e-38. Cody-Waite
// reduction, polynomial of Cephes' expf.
static inline F Exp(F x) {
  x = Min(Max(x, Set(-87.0f)), Set(88.0f));
  const I n = Round(x * Set(1.44269504088896341f));
  const F whole = ToF(n);
  F r = Fma(whole, Set(-0.693359375f), x);
  r = Fma(whole, Set(2.12194440e-4f), r);
  F p = Set(1.9875691500e-4f);
  p = Fma(p, r, Set(1.3981999507e-3f));
  p = Fma(p, r, Set(8.3334519073e-3f));
  p = Fma(p, r, Set(4.1665795894e-2f));
  p = Fma(p, r, Set(1.6666665459e-1f));
  p = Fma(p, r, Set(5.0000001201e-1f));
  p = Fma(p, r * r, r) + Set(1.0f);
  return p * FromBits(Left<23>(n + SetI(127)));
}

// ln(x) for normal x in (0, 1]: exponent, and ln of a mantissa in [sqrt(1/2), sqrt(2)) by the
// polynomial of Cephes' logf.
static inline F Log(F x) {
  // Moving the exponent's border to sqrt(1/2).
  const I shifted = Bits(x) - SetI(0x3f3504f3);
  // Right<> fills with zeros, so the exponent is made positive for it.
  const I exponent = Right<23>(shifted + SetI(1 << 30)) - SetI(128);
  const F m = FromBits(Bits(x) - Left<23>(exponent)) - Set(1.0f);
  const F e = ToF(exponent);
  const F z = m * m;
  F p = Set(7.0376836292e-2f);
  p = Fma(p, m, Set(-1.1514610310e-1f));
  p = Fma(p, m, Set(1.1676998740e-1f));
  p = Fma(p, m, Set(-1.2420140846e-1f));
  p = Fma(p, m, Set(1.4249322787e-1f));
  p = Fma(p, m, Set(-1.6668057665e-1f));
  p = Fma(p, m, Set(2.0000714765e-1f));
  p = Fma(p, m, Set(-2.4999993993e-1f));
  p = Fma(p, m, Set(3.3333331174e-1f));
  p = p * m * z;
  p = Fma(e, Set(-2.12194440e-4f), p);
  p = Fma(z, Set(-0.5f), p);
  return Fma(e, Set(0.693359375f), m + p);
}

// The first `n` lanes, `rest` in the others.
static inline F LoadFirst(const float* p, int64_t n, float rest) {
  float v[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) v[i] = i < n ? p[i] : rest;
  return LoadF(v);
}

static inline float LargestLane(F f) {
  float v[kLanes];
  StoreF(v, f);
  float top = v[0];
  for (int i = 1; i < kLanes; ++i) top = v[i] > top ? v[i] : top;
  return top;
}

// x[i] = exp(x[i] - max); returns 1 / sum, or NaN when a number is not finite. n >= 1.
static inline float Exponentials(float* x, int64_t n) {
  const int64_t whole = n / kLanes * kLanes;
  const F first = Set(x[0]);
  F top = first, check = Set(0.0f);
  for (int64_t i = 0; i < whole; i += kLanes) {
    const F v = LoadF(x + i);
    top = Max(top, v);
    check = check + (v - v);  // NaN for infinity too.
  }
  const F tail = LoadFirst(x + whole, n - whole, x[0]);
  top = Max(top, tail);
  check = check + (tail - tail);
  const F max = Set(LargestLane(top));
  F sum = Set(0.0f);
  for (int64_t i = 0; i < whole; i += kLanes) {
    const F e = Exp(LoadF(x + i) - max);
    StoreF(x + i, e);
    sum = sum + e;
  }
  if (n > whole) {
    float v[kLanes];
    StoreF(v, Exp(tail - max));
    for (int64_t i = 0; i < kLanes; ++i) {
      if (i < n - whole) {
        x[whole + i] = v[i];
      } else {
        v[i] = 0.0f;
      }
    }
    sum = sum + LoadF(v);
  }
  return 1.0f / SumLanes(sum) + SumLanes(check);
}

static inline void ScaleRow(float* x, int64_t n, float factor) {
  const F f = Set(factor);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) StoreF(x + i, LoadF(x + i) * f);
  for (; i < n; ++i) x[i] *= factor;
}

static void Softmax(const SoftmaxArgs& a) {
  if (a.n == 0) return;
  ScaleRow(a.x, a.n, Exponentials(a.x, a.n));
}

static void Entropy(const EntropyArgs& a) {
  F sum = Set(0.0f);
  for (int64_t i = 0; i < a.n; i += kLanes) {
    const F p = i + kLanes <= a.n ? LoadF(a.p + i) : LoadFirst(a.p + i, a.n - i, 0.0f);
    // Numbers below the smallest normal one add nothing that could be seen.
    sum = sum + WherePositive(p, p * Log(Min(Max(p, Set(1.17549435e-38f)), Set(1.0f))));
  }
  *a.entropy = -SumLanes(sum);
}

}  // namespace cairn::kernels::CAIRN_KERNEL_NS
