// fp8 e4m3 with one scale per token. Included through codec.inc.h.

namespace cairn::kernels::CAIRN_KERNEL_NS {

// |x| <= 448 or little more (saturates).
static inline I Fp8Code(F x) {
  const F a = Min(Abs(x), Set(448.0f));
  // Numbers of e4m3 below 2^-6 are multiples of 2^-9; code 8 is 2^-6 itself.
  const I tiny = Round(a * Set(512.0f));
  // Others: round the float's mantissa to 3 bits, to even, and move the exponent's bias to 7.
  const I bits = Bits(a);
  const I rounded = bits + SetI(0x7ffff) + (Right<20>(bits) & SetI(1));
  const I normal = Right<20>(rounded) - SetI(120 << 3);
  return WhereBelow(a, 0x1p-6f, tiny, normal) | (Right<24>(Bits(x)) & SetI(0x80));
}

// As a half whose exponent is 8 too small.
static inline F Fp8Value(I code) {
  const I half = Left<8>(code & SetI(0x80)) | Left<7>(code & SetI(0x7f));
  return ToF(LowHalves(half)) * Set(256.0f);
}

static bool Fp8Encode(const HalfRows& x, const Fp8Params&, std::byte* out) {
  for (int64_t r = 0; r < x.rows; ++r) {
    const uint16_t* row = x.row(r);
    H top = AbsBits(LoadH(row));
    for (int64_t c = kLanes; c < x.dim; c += kLanes) {
      PrefetchAhead(row + c);
      top = MaxBits(top, AbsBits(LoadH(row + c)));
    }
    const int largest = LargestOf(top);
    if (largest >= kInfiniteHalf) return false;
    const uint16_t scale = FloatToHalf(HalfToFloat(static_cast<uint16_t>(largest)) / 448.0f);
    StoreU16(out, scale);
    const F inverse = Set(scale == 0 ? 0.0f : 1.0f / HalfToFloat(scale));
    for (int64_t c = 0; c < x.dim; c += kLanes) {
      StoreBytes(out + 2 + c, Fp8Code(ToF(LoadH(row + c)) * inverse));
    }
    out += Fp8RowBytes(x.dim);
  }
  return true;
}

static bool Fp8Decode(const std::byte* in, const Fp8Params&, const MutableHalfRows& y) {
  const bool stream = CanStream(y.data, y.stride, y.streaming);
  bool valid = true;
  for (int64_t r = 0; r < y.rows; ++r) {
    uint16_t* row = y.row(r);
    const uint16_t bits = LoadU16(in);
    valid &= IsScale(bits);
    const F scale = Set(HalfToFloat(bits));
    int64_t c = 0;
    for (; c + 2 * kLanes <= y.dim; c += 2 * kLanes) {
      PrefetchAhead(in + c);
      StoreDecoded(row + c, Fp8Value(LoadUnsignedBytes(in + 2 + c)) * scale,
                   Fp8Value(LoadUnsignedBytes(in + 2 + c + kLanes)) * scale, stream);
    }
    for (; c < y.dim; c += kLanes) {
      StoreDecoded(row + c, Fp8Value(LoadUnsignedBytes(in + 2 + c)) * scale, stream);
    }
    in += Fp8RowBytes(y.dim);
  }
  return valid;
}

}  // namespace cairn::kernels::CAIRN_KERNEL_NS
