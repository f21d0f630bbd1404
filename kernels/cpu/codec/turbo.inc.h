// Randomised Hadamard rotation and Lloyd-Max levels. Included through codec.inc.h.

namespace cairn::kernels::CAIRN_KERNEL_NS {

// Unnormalised Walsh-Hadamard transform of 16 x kVectors numbers: distances 1, 2, 4, ... in order.
template <int kVectors>
static inline void Hadamard(F (&z)[kVectors]) {
  CAIRN_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    z[i] = Butterfly<8>(Butterfly<4>(Butterfly<2>(Butterfly<1>(z[i]))));
  }
  CAIRN_UNROLL
  for (int distance = 1; distance < kVectors; distance *= 2) {
    CAIRN_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      if (i & distance) continue;
      const F a = z[i], b = z[i + distance];
      z[i] = a + b;
      z[i + distance] = a - b;
    }
  }
}

template <int kBits>
static inline I TurboCode(F t) {
  constexpr int kHalf = 1 << (kBits - 1);
  const float* level = TurboLevels(kBits);
  const F a = Abs(t);
  I above = SetI(0);
  CAIRN_UNROLL
  for (int j = 0; j + 1 < kHalf; ++j) {
    above = CountAbove(above, a, 0.5f * (level[j] + level[j + 1]));
  }
  return WhereNegative(t, SetI(kHalf - 1) - above, SetI(kHalf) + above);
}

// All levels, ascending, for Lookup.
template <int kBits>
static inline F TurboTable() {
  constexpr int kHalf = 1 << (kBits - 1);
  float table[kLanes] = {};
  for (int i = 0; i < kHalf; ++i) {
    table[kHalf + i] = TurboLevels(kBits)[i];
    table[kHalf - 1 - i] = -TurboLevels(kBits)[i];
  }
  return LoadF(table);
}

template <int kBits, int kVectors>
static inline void StoreTurboCodes(const I (&code)[kVectors], std::byte* out) {
  if constexpr (kBits == 4) {
    CAIRN_UNROLL
    for (int i = 0; i < kVectors; i += 2) StoreNibbles(out + 8 * i, code[i], code[i + 1]);
  } else {
    const I pair = SetI(3);
    CAIRN_UNROLL
    for (int i = 0; i < kVectors; i += 4) {
      StoreBytes(out + 4 * i, (code[i] & pair) | Left<2>(code[i + 1] & pair) |
                                  Left<4>(code[i + 2] & pair) | Left<6>(code[i + 3] & pair));
    }
    if constexpr (kBits == 3) {
      CAIRN_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        StoreU16(out + 4 * kVectors + 2 * i, GatherBit2(code[i]));
      }
    }
  }
}

template <int kBits, int kVectors>
static inline void LoadTurboCodes(const std::byte* in, I (&code)[kVectors]) {
  if constexpr (kBits == 4) {
    CAIRN_UNROLL
    for (int i = 0; i < kVectors; i += 2) {
      const I bytes = LoadUnsignedBytes(in + 8 * i);
      code[i] = bytes & SetI(15);
      code[i + 1] = Right<4>(bytes);
    }
  } else {
    const I pair = SetI(3);
    CAIRN_UNROLL
    for (int i = 0; i < kVectors; i += 4) {
      const I bytes = LoadUnsignedBytes(in + 4 * i);
      code[i] = bytes & pair;
      code[i + 1] = Right<2>(bytes) & pair;
      code[i + 2] = Right<4>(bytes) & pair;
      code[i + 3] = Right<6>(bytes);
    }
    if constexpr (kBits == 3) {
      CAIRN_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        code[i] = code[i] | SpreadBit2(LoadU16(in + 4 * kVectors + 2 * i));
      }
    }
  }
}

template <int kBits, int kVectors>
static bool TurboEncodeRows(const HalfRows& x, const uint32_t* signs, std::byte* out) {
  const F table = TurboTable<kBits>();
  for (int64_t r = 0; r < x.rows; ++r) {
    const uint16_t* row = x.row(r);
    F z[kVectors];
    H top = AbsBits(LoadH(row));
    F squares = Set(0.0f);
    CAIRN_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      if (i % 2 == 0) PrefetchAhead(row + kLanes * i);
      const H h = LoadH(row + kLanes * i);
      top = MaxBits(top, AbsBits(h));
      const F f = ToF(h);
      squares = squares + f * f;
      z[i] = FlipSigns(f, signs + kLanes * i);
    }
    if (LargestOf(top) >= kInfiniteHalf) return false;
    const float norm = __builtin_sqrtf(SumLanes(squares));
    const F inverse = Set(norm > 0.0f ? 1.0f / norm : 0.0f);
    Hadamard(z);
    I code[kVectors];
    F both = Set(0.0f), own = Set(0.0f);
    CAIRN_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      code[i] = TurboCode<kBits>(z[i] * inverse);
      const F level = Lookup(code[i], table);
      both = both + z[i] * level;
      own = own + level * level;
    }
    const float gain = SumLanes(both) / SumLanes(own);
    StoreU16(out, FloatToHalf(gain < kLargestHalf ? gain : kLargestHalf));
    StoreTurboCodes<kBits, kVectors>(code, out + 2);
    out += TurboRowBytes(kVectors * kLanes, kBits);
  }
  return true;
}

template <int kBits, int kVectors>
static bool TurboDecodeRows(const std::byte* in, const uint32_t* signs, const MutableHalfRows& y) {
  const F table = TurboTable<kBits>();
  const bool stream = CanStream(y.data, y.stride, y.streaming);
  bool valid = true;
  for (int64_t r = 0; r < y.rows; ++r) {
    uint16_t* row = y.row(r);
    const uint16_t bits = LoadU16(in);
    valid &= IsScale(bits);
    const F gain = Set(HalfToFloat(bits) * (1.0f / (kVectors * kLanes)));
    I code[kVectors];
    LoadTurboCodes<kBits, kVectors>(in + 2, code);
    F z[kVectors];
    CAIRN_UNROLL
    for (int i = 0; i < kVectors; ++i) z[i] = Lookup(code[i], table);
    Hadamard(z);
    CAIRN_UNROLL
    for (int i = 0; i < kVectors; i += 2) {
      StoreDecoded(row + kLanes * i, FlipSigns(z[i] * gain, signs + kLanes * i),
                   FlipSigns(z[i + 1] * gain, signs + kLanes * (i + 1)), stream);
    }
    PrefetchAhead(in);
    in += TurboRowBytes(kVectors * kLanes, kBits);
  }
  return valid;
}

template <int kBits>
static bool TurboEncodeBits(const HalfRows& x, const uint32_t* signs, std::byte* out) {
  switch (x.dim) {
    case 64:
      return TurboEncodeRows<kBits, 4>(x, signs, out);
    case 128:
      return TurboEncodeRows<kBits, 8>(x, signs, out);
    case 256:
      return TurboEncodeRows<kBits, 16>(x, signs, out);
    default:
      return TurboEncodeRows<kBits, 32>(x, signs, out);
  }
}

template <int kBits>
static bool TurboDecodeBits(const std::byte* in, const uint32_t* signs, const MutableHalfRows& y) {
  switch (y.dim) {
    case 64:
      return TurboDecodeRows<kBits, 4>(in, signs, y);
    case 128:
      return TurboDecodeRows<kBits, 8>(in, signs, y);
    case 256:
      return TurboDecodeRows<kBits, 16>(in, signs, y);
    default:
      return TurboDecodeRows<kBits, 32>(in, signs, y);
  }
}

static bool TurboEncode(const HalfRows& x, const TurboParams& p, std::byte* out) {
  return p.bits == 4   ? TurboEncodeBits<4>(x, p.signs, out)
         : p.bits == 3 ? TurboEncodeBits<3>(x, p.signs, out)
                       : TurboEncodeBits<2>(x, p.signs, out);
}

static bool TurboDecode(const std::byte* in, const TurboParams& p, const MutableHalfRows& y) {
  return p.bits == 4   ? TurboDecodeBits<4>(in, p.signs, y)
         : p.bits == 3 ? TurboDecodeBits<3>(in, p.signs, y)
                       : TurboDecodeBits<2>(in, p.signs, y);
}

}  // namespace cairn::kernels::CAIRN_KERNEL_NS
