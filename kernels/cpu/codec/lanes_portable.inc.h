// Sixteen lanes as plain numbers: for processors without AVX2, and to compare NEON with.
// Included by lanes.inc.h, in its namespace; no include guard by design.

struct H {
  uint16_t v[16];
};
struct F {
  float v[16];
};
struct I {
  int32_t v[16];
};

// clang-format off
#define CAIRN_LANES(body) for (int i = 0; i < kLanes; ++i) { body; }
// clang-format on

static inline float OneToF(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t rest = h & 0x7fff;
  float value;
  if (rest >= 0x7c00) {
    const uint32_t bits = sign | 0x7f800000 | (rest & 0x3ff) << 13;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  // As if the exponent were a float's, then scaled: exact, subnormal halves too.
  const uint32_t bits = rest << 13;
  std::memcpy(&value, &bits, 4);
  value *= 0x1p112f;
  uint32_t out;
  std::memcpy(&out, &value, 4);
  out |= sign;
  std::memcpy(&value, &out, 4);
  return value;
}
static inline uint16_t OneToH(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (bits >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (bits < 0x38800000) {
    // Subnormal halves: adding 0.5 rounds to a multiple of 2^-24.
    float tiny;
    std::memcpy(&tiny, &bits, 4);
    tiny += 0.5f;
    uint32_t rounded;
    std::memcpy(&rounded, &tiny, 4);
    return static_cast<uint16_t>(sign | (rounded - 0x3f000000));
  }
  bits += 0xfff + (bits >> 13 & 1) - 0x38000000;
  return static_cast<uint16_t>(sign | bits >> 13);
}

static inline H LoadH(const uint16_t* p) {
  H h;
  std::memcpy(&h, p, sizeof(h));
  return h;
}
static inline void StoreH(uint16_t* p, H h) { std::memcpy(p, &h, sizeof(h)); }
static inline void StreamH(uint16_t* p, H h) { std::memcpy(p, &h, sizeof(h)); }
static inline F ToF(H h) {
  F f;
  CAIRN_LANES(f.v[i] = OneToF(h.v[i]))
  return f;
}
static inline H ToH(F f) {
  H h;
  CAIRN_LANES(h.v[i] = OneToH(f.v[i]))
  return h;
}
static inline F LoadF(const float* p) {
  F f;
  std::memcpy(&f, p, sizeof(f));
  return f;
}
static inline void StoreF(float* p, F f) { std::memcpy(p, &f, sizeof(f)); }
static inline F Set(float x) {
  F f;
  CAIRN_LANES(f.v[i] = x)
  return f;
}
static inline F operator+(F a, F b) {
  CAIRN_LANES(a.v[i] += b.v[i])
  return a;
}
static inline F operator-(F a, F b) {
  CAIRN_LANES(a.v[i] -= b.v[i])
  return a;
}
static inline F operator*(F a, F b) {
  CAIRN_LANES(a.v[i] *= b.v[i])
  return a;
}
static inline F operator/(F a, F b) {
  CAIRN_LANES(a.v[i] /= b.v[i])
  return a;
}
static inline F Fma(F a, F b, F c) {
  CAIRN_LANES(c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]))
  return c;
}
static inline F Sqrt(F a) {
  CAIRN_LANES(a.v[i] = __builtin_sqrtf(a.v[i]))
  return a;
}
static inline F Min(F a, F b) {
  CAIRN_LANES(a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i])
  return a;
}
static inline F Max(F a, F b) {
  CAIRN_LANES(a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i])
  return a;
}
static inline F Abs(F a) {
  CAIRN_LANES(a.v[i] = __builtin_fabsf(a.v[i]))
  return a;
}
static inline F WherePositive(F a, F b) {
  CAIRN_LANES(b.v[i] = a.v[i] > 0.0f ? b.v[i] : 0.0f)
  return b;
}
static inline I Bits(F a) {
  I out;
  std::memcpy(&out, &a, sizeof(out));
  return out;
}
static inline F FromBits(I a) {
  F out;
  std::memcpy(&out, &a, sizeof(out));
  return out;
}
static inline F FlipSigns(F a, const uint32_t* bits) {
  uint32_t raw[16];
  std::memcpy(raw, &a, sizeof(raw));
  CAIRN_LANES(raw[i] ^= bits[i])
  std::memcpy(&a, raw, sizeof(raw));
  return a;
}
// To nearest even, and 0x80000000 for what does not fit, as the wider instruction sets do.
static inline int32_t RoundOne(float x) {
#if defined(__x86_64__)
  return _mm_cvtss_si32(_mm_set_ss(x));  // SSE2 is part of x86-64, and has no rintf.
#else
  return __builtin_fabsf(x) < 0x1p31f ? static_cast<int32_t>(__builtin_rintf(x)) : INT32_MIN;
#endif
}
static inline I Round(F a) {
  I out;
  CAIRN_LANES(out.v[i] = RoundOne(a.v[i]))
  return out;
}
static inline F ToF(I a) {
  F f;
  CAIRN_LANES(f.v[i] = static_cast<float>(a.v[i]))
  return f;
}
static inline I SetI(int32_t x) {
  I out;
  CAIRN_LANES(out.v[i] = x)
  return out;
}
static inline I operator+(I a, I b) {
  CAIRN_LANES(a.v[i] += b.v[i])
  return a;
}
static inline I operator-(I a, I b) {
  CAIRN_LANES(a.v[i] -= b.v[i])
  return a;
}
static inline I operator&(I a, I b) {
  CAIRN_LANES(a.v[i] &= b.v[i])
  return a;
}
static inline I operator|(I a, I b) {
  CAIRN_LANES(a.v[i] |= b.v[i])
  return a;
}
template <int n>
static inline I Left(I a) {
  CAIRN_LANES(a.v[i] = static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) << n))
  return a;
}
template <int n>
static inline I Right(I a) {
  CAIRN_LANES(a.v[i] = static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) >> n))
  return a;
}
static inline I Min(I a, I b) {
  CAIRN_LANES(a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i])
  return a;
}
static inline I Max(I a, I b) {
  CAIRN_LANES(a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i])
  return a;
}
static inline I CountAbove(I acc, F a, float limit) {
  CAIRN_LANES(acc.v[i] += a.v[i] > limit ? 1 : 0)
  return acc;
}
static inline I WhereBelow(F a, float limit, I yes, I no) {
  CAIRN_LANES(no.v[i] = a.v[i] < limit ? yes.v[i] : no.v[i])
  return no;
}
static inline I WhereNegative(F a, I yes, I no) { return WhereBelow(a, 0.0f, yes, no); }
static inline F Lookup(I index, F table) {
  F f;
  CAIRN_LANES(f.v[i] = table.v[index.v[i] & 15])
  return f;
}
static inline H LowHalves(I a) {
  H h;
  CAIRN_LANES(h.v[i] = static_cast<uint16_t>(a.v[i]))
  return h;
}
static inline I WidenBits(H h) {
  I out;
  CAIRN_LANES(out.v[i] = h.v[i])
  return out;
}
static inline void StoreBytes(std::byte* p, I a) {
  CAIRN_LANES(p[i] = static_cast<std::byte>(a.v[i]))
}
static inline I LoadUnsignedBytes(const std::byte* p) {
  I out;
  CAIRN_LANES(out.v[i] = static_cast<uint8_t>(p[i]))
  return out;
}
static inline I LoadSignedBytes(const std::byte* p) {
  I out;
  CAIRN_LANES(out.v[i] = static_cast<int8_t>(p[i]))
  return out;
}
static inline uint16_t GatherBit2(I a) {
  uint32_t bits = 0;
  CAIRN_LANES(bits |= static_cast<uint32_t>(a.v[i] >> 2 & 1) << i)
  return static_cast<uint16_t>(bits);
}
static inline I SpreadBit2(uint16_t bits) {
  I out;
  CAIRN_LANES(out.v[i] = (bits >> i & 1) << 2)
  return out;
}
template <int kDistance>
static inline F Butterfly(F a) {
  F out;
  CAIRN_LANES(out.v[i] = i & kDistance ? a.v[i ^ kDistance] - a.v[i] : a.v[i] + a.v[i ^ kDistance])
  return out;
}
#undef CAIRN_LANES
