// Sixteen lanes in four registers of 128 bits.
// Included by lanes.inc.h, in its namespace; no include guard by design.

struct H {
  uint16x8_t a, b;
};
struct F {
  float32x4_t a, b, c, d;
};
struct I {
  int32x4_t a, b, c, d;
};

// `op` of each register.
template <typename Op>
static inline F Map(F x, Op op) {
  return {op(x.a), op(x.b), op(x.c), op(x.d)};
}
template <typename Op>
static inline F Map(F x, F y, Op op) {
  return {op(x.a, y.a), op(x.b, y.b), op(x.c, y.c), op(x.d, y.d)};
}
template <typename Op>
static inline I Map(I x, Op op) {
  return {op(x.a), op(x.b), op(x.c), op(x.d)};
}
template <typename Op>
static inline I Map(I x, I y, Op op) {
  return {op(x.a, y.a), op(x.b, y.b), op(x.c, y.c), op(x.d, y.d)};
}

// Lane i of a register gets what lane i ^ kDistance has.
template <int kDistance>
static inline float32x4_t SwapIn4(float32x4_t x) {
  if constexpr (kDistance == 1) return vrev64q_f32(x);
  return vextq_f32(x, x, 2);
}
// All bits of the lanes of a register that have the bit kDistance.
template <int kDistance>
static inline uint32x4_t UpperIn4() {
  constexpr uint32_t kAll = 0xffffffff;
  if constexpr (kDistance == 1) return uint32x4_t{0, kAll, 0, kAll};
  return uint32x4_t{0, 0, kAll, kAll};
}

// --- Halves ---

static inline H LoadH(const uint16_t* p) { return {vld1q_u16(p), vld1q_u16(p + 8)}; }
static inline void StoreH(uint16_t* p, H h) {
  vst1q_u16(p, h.a);
  vst1q_u16(p + 8, h.b);
}
// The instruction set has no intrinsic for a store past the caches.
static inline void StreamH(uint16_t* p, H h) { StoreH(p, h); }
static inline void EndStreaming() {}

static inline F ToF(H h) {
  const float16x8_t a = vreinterpretq_f16_u16(h.a), b = vreinterpretq_f16_u16(h.b);
  return {vcvt_f32_f16(vget_low_f16(a)), vcvt_high_f32_f16(a), vcvt_f32_f16(vget_low_f16(b)),
          vcvt_high_f32_f16(b)};
}
static inline H ToH(F f) {
  return {vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(f.a), f.b)),
          vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(f.c), f.d))};
}
static inline float HalfToFloat(uint16_t h) {
  __fp16 half;
  std::memcpy(&half, &h, 2);
  return half;
}
static inline uint16_t FloatToHalf(float f) {
  const auto half = static_cast<__fp16>(f);
  uint16_t bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}

static inline H AbsBits(H h) {
  const uint16x8_t mask = vdupq_n_u16(0x7fff);
  return {vandq_u16(h.a, mask), vandq_u16(h.b, mask)};
}
static inline uint16x8_t Larger16(uint16x8_t x, uint16x8_t y) {
  return vreinterpretq_u16_s16(vmaxq_s16(vreinterpretq_s16_u16(x), vreinterpretq_s16_u16(y)));
}
static inline uint16x8_t Smaller16(uint16x8_t x, uint16x8_t y) {
  return vreinterpretq_u16_s16(vminq_s16(vreinterpretq_s16_u16(x), vreinterpretq_s16_u16(y)));
}
static inline H MaxBits(H x, H y) { return {Larger16(x.a, y.a), Larger16(x.b, y.b)}; }
static inline H MinBits(H x, H y) { return {Smaller16(x.a, y.a), Smaller16(x.b, y.b)}; }
static inline uint16x8_t Ordered(uint16x8_t x) {
  const uint16x8_t negative = vreinterpretq_u16_s16(vshrq_n_s16(vreinterpretq_s16_u16(x), 15));
  return veorq_u16(x, vandq_u16(negative, vdupq_n_u16(0x7fff)));
}
// Signed 16-bit integers in the order of the numbers; its own inverse.
static inline H OrderBits(H h) { return {Ordered(h.a), Ordered(h.b)}; }
static inline int LargestOf(H h) { return vmaxvq_s16(vreinterpretq_s16_u16(Larger16(h.a, h.b))); }
static inline int SmallestOf(H h) { return vminvq_s16(vreinterpretq_s16_u16(Smaller16(h.a, h.b))); }

// --- Floats ---

static inline F LoadF(const float* p) {
  return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}
static inline void StoreF(float* p, F f) {
  vst1q_f32(p, f.a);
  vst1q_f32(p + 4, f.b);
  vst1q_f32(p + 8, f.c);
  vst1q_f32(p + 12, f.d);
}
static inline F Set(float x) {
  const float32x4_t v = vdupq_n_f32(x);
  return {v, v, v, v};
}
static inline F operator+(F x, F y) {
  return Map(x, y, [](auto v, auto w) { return v + w; });
}
static inline F operator-(F x, F y) {
  return Map(x, y, [](auto v, auto w) { return v - w; });
}
static inline F operator*(F x, F y) {
  return Map(x, y, [](auto v, auto w) { return v * w; });
}
static inline F operator/(F x, F y) {
  return Map(x, y, [](auto v, auto w) { return v / w; });
}
static inline F Fma(F x, F y, F z) {
  return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c),
          vfmaq_f32(z.d, x.d, y.d)};
}
static inline F Sqrt(F x) {
  return Map(x, [](float32x4_t v) { return vsqrtq_f32(v); });
}
// The second where either is NaN, as on x86: the instructions vmin and vmax would give NaN.
static inline F Min(F x, F y) {
  return Map(x, y, [](float32x4_t v, float32x4_t w) { return vbslq_f32(vcltq_f32(v, w), v, w); });
}
static inline F Max(F x, F y) {
  return Map(x, y, [](float32x4_t v, float32x4_t w) { return vbslq_f32(vcgtq_f32(v, w), v, w); });
}
static inline F Abs(F x) {
  return Map(x, [](float32x4_t v) { return vabsq_f32(v); });
}
static inline F WherePositive(F x, F y) {
  return Map(x, y, [](float32x4_t v, float32x4_t w) {
    return vreinterpretq_f32_u32(vandq_u32(vcgtzq_f32(v), vreinterpretq_u32_f32(w)));
  });
}
static inline float32x4_t Flip(float32x4_t x, const uint32_t* bits) {
  return vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(x), vld1q_u32(bits)));
}
static inline F FlipSigns(F x, const uint32_t* bits) {
  return {Flip(x.a, bits), Flip(x.b, bits + 4), Flip(x.c, bits + 8), Flip(x.d, bits + 12)};
}

// --- Integers ---

// To nearest even. The instruction saturates, and x86 gives 0x80000000 for what does not fit.
static inline int32x4_t Round4(float32x4_t x) {
  const uint32x4_t fits = vcltq_f32(vabsq_f32(x), vdupq_n_f32(0x1p31f));
  return vbslq_s32(fits, vcvtnq_s32_f32(x), vdupq_n_s32(INT32_MIN));
}
static inline I Round(F x) { return {Round4(x.a), Round4(x.b), Round4(x.c), Round4(x.d)}; }
static inline F ToF(I x) {
  return {vcvtq_f32_s32(x.a), vcvtq_f32_s32(x.b), vcvtq_f32_s32(x.c), vcvtq_f32_s32(x.d)};
}
static inline I Bits(F x) {
  return {vreinterpretq_s32_f32(x.a), vreinterpretq_s32_f32(x.b), vreinterpretq_s32_f32(x.c),
          vreinterpretq_s32_f32(x.d)};
}
static inline F FromBits(I x) {
  return {vreinterpretq_f32_s32(x.a), vreinterpretq_f32_s32(x.b), vreinterpretq_f32_s32(x.c),
          vreinterpretq_f32_s32(x.d)};
}
static inline I SetI(int32_t x) {
  const int32x4_t v = vdupq_n_s32(x);
  return {v, v, v, v};
}
// The intrinsics wrap, where the operators of vectors would overflow.
static inline I operator+(I x, I y) {
  return Map(x, y, [](int32x4_t v, int32x4_t w) { return vaddq_s32(v, w); });
}
static inline I operator-(I x, I y) {
  return Map(x, y, [](int32x4_t v, int32x4_t w) { return vsubq_s32(v, w); });
}
static inline I operator&(I x, I y) {
  return Map(x, y, [](auto v, auto w) { return v & w; });
}
static inline I operator|(I x, I y) {
  return Map(x, y, [](auto v, auto w) { return v | w; });
}
template <int n>
static inline I Left(I x) {
  return Map(x, [](int32x4_t v) { return vshlq_n_s32(v, n); });
}
// Fills with zeros.
template <int n>
static inline I Right(I x) {
  return Map(x, [](int32x4_t v) {
    return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(v), n));
  });
}
static inline I Min(I x, I y) {
  return Map(x, y, [](int32x4_t v, int32x4_t w) { return vminq_s32(v, w); });
}
static inline I Max(I x, I y) {
  return Map(x, y, [](int32x4_t v, int32x4_t w) { return vmaxq_s32(v, w); });
}

static inline I CountAbove(I acc, F x, float limit) {
  const float32x4_t l = vdupq_n_f32(limit);
  const auto above = [=](float32x4_t v) { return vreinterpretq_s32_u32(vcgtq_f32(v, l)); };
  return {vsubq_s32(acc.a, above(x.a)), vsubq_s32(acc.b, above(x.b)), vsubq_s32(acc.c, above(x.c)),
          vsubq_s32(acc.d, above(x.d))};
}
static inline I WhereBelow(F x, float limit, I yes, I no) {
  const float32x4_t l = vdupq_n_f32(limit);
  return {vbslq_s32(vcltq_f32(x.a, l), yes.a, no.a), vbslq_s32(vcltq_f32(x.b, l), yes.b, no.b),
          vbslq_s32(vcltq_f32(x.c, l), yes.c, no.c), vbslq_s32(vcltq_f32(x.d, l), yes.d, no.d)};
}
static inline I WhereNegative(F x, I yes, I no) { return WhereBelow(x, 0.0f, yes, no); }

// The sixteen numbers are 64 bytes: one look-up of their bytes.
static inline F Lookup(I index, F table) {
  const uint8x16x4_t bytes = {{vreinterpretq_u8_f32(table.a), vreinterpretq_u8_f32(table.b),
                               vreinterpretq_u8_f32(table.c), vreinterpretq_u8_f32(table.d)}};
  const auto look_up = [&](int32x4_t i) {
    // Number n has the bytes 4 n, 4 n + 1, 4 n + 2 and 4 n + 3.
    const uint32x4_t first =
        vmulq_n_u32(vandq_u32(vreinterpretq_u32_s32(i), vdupq_n_u32(15)), 0x04040404);
    const uint32x4_t at = vaddq_u32(first, vdupq_n_u32(0x03020100));
    return vreinterpretq_f32_u8(vqtbl4q_u8(bytes, vreinterpretq_u8_u32(at)));
  };
  return {look_up(index.a), look_up(index.b), look_up(index.c), look_up(index.d)};
}

// --- Narrow integers ---

static inline uint16x8_t Low16(int32x4_t x, int32x4_t y) {
  return vcombine_u16(vmovn_u32(vreinterpretq_u32_s32(x)), vmovn_u32(vreinterpretq_u32_s32(y)));
}
static inline H LowHalves(I x) { return {Low16(x.a, x.b), Low16(x.c, x.d)}; }
static inline int32x4_t Widen(uint16x4_t x) { return vreinterpretq_s32_u32(vmovl_u16(x)); }
static inline I WidenBits(H h) {
  return {Widen(vget_low_u16(h.a)), Widen(vget_high_u16(h.a)), Widen(vget_low_u16(h.b)),
          Widen(vget_high_u16(h.b))};
}
static inline void StoreBytes(std::byte* p, I x) {
  const uint8x16_t bytes = vcombine_u8(vmovn_u16(Low16(x.a, x.b)), vmovn_u16(Low16(x.c, x.d)));
  vst1q_u8(reinterpret_cast<uint8_t*>(p), bytes);
}
static inline I LoadUnsignedBytes(const std::byte* p) {
  const uint8x16_t bytes = vld1q_u8(reinterpret_cast<const uint8_t*>(p));
  return WidenBits({vmovl_u8(vget_low_u8(bytes)), vmovl_u8(vget_high_u8(bytes))});
}
static inline I LoadSignedBytes(const std::byte* p) {
  const int8x16_t bytes = vld1q_s8(reinterpret_cast<const int8_t*>(p));
  const int16x8_t a = vmovl_s8(vget_low_s8(bytes)), b = vmovl_s8(vget_high_s8(bytes));
  return {vmovl_s16(vget_low_s16(a)), vmovl_s16(vget_high_s16(a)), vmovl_s16(vget_low_s16(b)),
          vmovl_s16(vget_high_s16(b))};
}
// Bit i of the result is bit 2 of lane i.
static inline uint16_t GatherBit2(I x) {
  const uint16x8_t four = vdupq_n_u16(4);
  const uint16x8_t lane = {1, 2, 4, 8, 16, 32, 64, 128};
  const auto gather = [&](int32x4_t low, int32x4_t high) {
    return vaddvq_u16(vandq_u16(vtstq_u16(Low16(low, high), four), lane));
  };
  return static_cast<uint16_t>(gather(x.a, x.b) | gather(x.c, x.d) << 8);
}
static inline int32x4_t Spread4(uint32_t bits) {
  const uint32x4_t lane = {1, 2, 4, 8};
  const uint32x4_t has = vtstq_u32(vdupq_n_u32(bits), lane);
  return vreinterpretq_s32_u32(vandq_u32(has, vdupq_n_u32(4)));
}
static inline I SpreadBit2(uint16_t bits) {
  return {Spread4(bits), Spread4(bits >> 4), Spread4(bits >> 8), Spread4(bits >> 12)};
}

// x[i] + x[i ^ kDistance] where i lacks the bit kDistance, and x[i ^ kDistance] - x[i] where it has
// it.
template <int kDistance>
static inline F Butterfly(F x) {
  if constexpr (kDistance == 8) return {x.a + x.c, x.b + x.d, x.a - x.c, x.b - x.d};
  if constexpr (kDistance == 4) return {x.a + x.b, x.a - x.b, x.c + x.d, x.c - x.d};
  return Map(x, [](float32x4_t v) {
    const float32x4_t other = SwapIn4<kDistance>(v);
    return vbslq_f32(UpperIn4<kDistance>(), other - v, other + v);
  });
}
