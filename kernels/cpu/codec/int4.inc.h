// int4, asymmetric, by token or by channel. Included through codec.inc.h.

namespace cairn::kernels::CAIRN_KERNEL_NS {

// 32 codes to 16 bytes, and back.
static inline void StoreNibbles(std::byte* p, I low, I high) { StoreBytes(p, low | Left<4>(high)); }

static inline I Int4Code(F x, F least, F inverse) {
  return Max(Min(Round((x - least) * inverse), SetI(15)), SetI(0));
}

static bool Int4TokenEncode(const HalfRows& x, const Int4TokenParams& p, std::byte* out) {
  const int64_t groups = (x.dim + p.group - 1) / p.group;
  for (int64_t r = 0; r < x.rows; ++r) {
    const uint16_t* row = x.row(r);
    std::byte* codes = out + 4 * groups;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t begin = g * p.group;
      const int64_t end = begin + p.group < x.dim ? begin + p.group : x.dim;
      H top = OrderBits(LoadH(row + begin));
      H low = top;
      for (int64_t c = begin + kLanes; c < end; c += kLanes) {
        PrefetchAhead(row + c);
        const H h = OrderBits(LoadH(row + c));
        top = MaxBits(top, h);
        low = MinBits(low, h);
      }
      const int largest = LargestOf(top), smallest = SmallestOf(low);
      if (largest >= kInfiniteHalf || smallest <= kNegativeInfinite) return false;
      const float least = OrderToFloat(smallest);
      const uint16_t scale = FloatToHalf((OrderToFloat(largest) - least) / 15.0f);
      StoreU16(out + 4 * g, scale);
      StoreU16(out + 4 * g + 2, FloatToHalf(least));
      const F inverse = Set(scale == 0 ? 0.0f : 1.0f / HalfToFloat(scale));
      const F least16 = Set(least);
      for (int64_t c = begin; c < end; c += 2 * kLanes) {
        StoreNibbles(codes + c / 2, Int4Code(ToF(LoadH(row + c)), least16, inverse),
                     Int4Code(ToF(LoadH(row + c + kLanes)), least16, inverse));
      }
    }
    out = codes + x.dim / 2;
  }
  return true;
}

static bool Int4TokenDecode(const std::byte* in, const Int4TokenParams& p,
                            const MutableHalfRows& y) {
  const int64_t groups = (y.dim + p.group - 1) / p.group;
  const bool stream = CanStream(y.data, y.stride, y.streaming);
  bool valid = true;
  for (int64_t r = 0; r < y.rows; ++r) {
    uint16_t* row = y.row(r);
    const std::byte* codes = in + 4 * groups;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t begin = g * p.group;
      const int64_t end = begin + p.group < y.dim ? begin + p.group : y.dim;
      const uint16_t scale_bits = LoadU16(in + 4 * g), least_bits = LoadU16(in + 4 * g + 2);
      valid &= IsScale(scale_bits) && IsFinite(least_bits);
      const F scale = Set(HalfToFloat(scale_bits));
      const F least = Set(HalfToFloat(least_bits));
      for (int64_t c = begin; c < end; c += 2 * kLanes) {
        const I bytes = LoadUnsignedBytes(codes + c / 2);
        PrefetchAhead(codes + c / 2);
        StoreDecoded(row + c, ToF(bytes & SetI(15)) * scale + least,
                     ToF(Right<4>(bytes)) * scale + least, stream);
      }
    }
    in = codes + y.dim / 2;
  }
  return valid;
}

static bool Int4ChannelEncode(const HalfRows& x, const Int4ChannelParams&, std::byte* out) {
  if (x.rows == 0) return true;
  float least[kMaxHeadDim], inverse[kMaxHeadDim];
  for (int64_t c = 0; c < x.dim; c += kLanes) {
    H top = OrderBits(LoadH(x.row(0) + c));
    H low = top;
    for (int64_t r = 1; r < x.rows; ++r) {
      PrefetchAhead(x.row(r) + c);
      const H h = OrderBits(LoadH(x.row(r) + c));
      top = MaxBits(top, h);
      low = MinBits(low, h);
    }
    if (LargestOf(top) >= kInfiniteHalf || SmallestOf(low) <= kNegativeInfinite) return false;
    const F zero = Set(0.0f);
    const F first = ToF(OrderBits(low)) + zero;  // -0 becomes 0.
    const H scale = ToH((ToF(OrderBits(top)) + zero - first) / Set(15.0f));
    uint16_t bits[kLanes];
    StoreH(bits, scale);
    std::memcpy(out + 2 * c, bits, sizeof(bits));
    StoreH(bits, ToH(first));
    std::memcpy(out + 2 * (x.dim + c), bits, sizeof(bits));
    StoreF(least + c, first);
    StoreF(inverse + c, WherePositive(ToF(scale), Set(1.0f) / ToF(scale)));
  }
  out += 4 * x.dim;
  for (int64_t c = 0; c < x.dim; c += 2 * kLanes) {
    const F least0 = LoadF(least + c), least1 = LoadF(least + c + kLanes);
    const F inverse0 = LoadF(inverse + c), inverse1 = LoadF(inverse + c + kLanes);
    for (int64_t r = 0; r < x.rows; ++r) {
      const uint16_t* row = x.row(r) + c;
      StoreNibbles(out + (r * x.dim + c) / 2, Int4Code(ToF(LoadH(row)), least0, inverse0),
                   Int4Code(ToF(LoadH(row + kLanes)), least1, inverse1));
    }
  }
  return true;
}

static bool Int4ChannelDecode(const std::byte* in, const Int4ChannelParams&,
                              const MutableHalfRows& y) {
  if (y.rows == 0) return true;
  const bool stream = CanStream(y.data, y.stride, y.streaming);
  float scale[kMaxHeadDim], least[kMaxHeadDim];
  bool valid = true;
  for (int64_t c = 0; c < y.dim; c += kLanes) {
    uint16_t bits[2][kLanes];
    std::memcpy(bits[0], in + 2 * c, sizeof(bits[0]));
    std::memcpy(bits[1], in + 2 * (y.dim + c), sizeof(bits[1]));
    const H scales = LoadH(bits[0]), minima = LoadH(bits[1]);
    // A scale's sign bit makes it a negative whole number, below every legal one.
    valid &= SmallestOf(scales) >= 0 && LargestOf(scales) < kInfiniteHalf &&
             LargestOf(AbsBits(minima)) < kInfiniteHalf;
    StoreF(scale + c, ToF(scales));
    StoreF(least + c, ToF(minima));
  }
  const std::byte* codes = in + 4 * y.dim;
  // Row by row, so that whole lines are written one behind the other.
  for (int64_t r = 0; r < y.rows; ++r) {
    uint16_t* row = y.row(r);
    PrefetchAhead(codes);
    for (int64_t c = 0; c < y.dim; c += 2 * kLanes, codes += kLanes) {
      const I bytes = LoadUnsignedBytes(codes);
      StoreDecoded(row + c, ToF(bytes & SetI(15)) * LoadF(scale + c) + LoadF(least + c),
                   ToF(Right<4>(bytes)) * LoadF(scale + c + kLanes) + LoadF(least + c + kLanes),
                   stream);
    }
  }
  return valid;
}

}  // namespace cairn::kernels::CAIRN_KERNEL_NS
