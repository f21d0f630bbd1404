// int8 with one scale per token and group of columns. Included through codec.inc.h.

namespace cairn::kernels::CAIRN_KERNEL_NS {

static bool Int8Encode(const HalfRows& x, const Int8Params& p, std::byte* out) {
  const int64_t groups = (x.dim + p.group - 1) / p.group;
  for (int64_t r = 0; r < x.rows; ++r) {
    const uint16_t* row = x.row(r);
    std::byte* codes = out + 2 * groups;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t begin = g * p.group;
      const int64_t end = begin + p.group < x.dim ? begin + p.group : x.dim;
      H top = AbsBits(LoadH(row + begin));
      PrefetchAhead(row + begin);
      for (int64_t c = begin + kLanes; c < end; c += kLanes) {
        PrefetchAhead(row + c);
        top = MaxBits(top, AbsBits(LoadH(row + c)));
      }
      const int largest = LargestOf(top);
      if (largest >= kInfiniteHalf) return false;
      const uint16_t scale = FloatToHalf(HalfToFloat(static_cast<uint16_t>(largest)) / 127.0f);
      StoreU16(out + 2 * g, scale);
      const F inverse = Set(scale == 0 ? 0.0f : 1.0f / HalfToFloat(scale));
      for (int64_t c = begin; c < end; c += kLanes) {
        const I q = Round(ToF(LoadH(row + c)) * inverse);
        StoreBytes(codes + c, Max(Min(q, SetI(127)), SetI(-127)));
      }
    }
    out = codes + x.dim;
  }
  return true;
}

static bool Int8Decode(const std::byte* in, const Int8Params& p, const MutableHalfRows& y) {
  const int64_t groups = (y.dim + p.group - 1) / p.group;
  const bool stream = CanStream(y.data, y.stride, y.streaming);
  bool valid = true;
  for (int64_t r = 0; r < y.rows; ++r) {
    uint16_t* row = y.row(r);
    const std::byte* codes = in + 2 * groups;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t begin = g * p.group;
      const int64_t end = begin + p.group < y.dim ? begin + p.group : y.dim;
      const uint16_t bits = LoadU16(in + 2 * g);
      valid &= IsScale(bits);
      const F scale = Set(HalfToFloat(bits));
      int64_t c = begin;
      for (; c + 2 * kLanes <= end; c += 2 * kLanes) {
        PrefetchAhead(codes + c);
        StoreDecoded(row + c, ToF(LoadSignedBytes(codes + c)) * scale,
                     ToF(LoadSignedBytes(codes + c + kLanes)) * scale, stream);
      }
      for (; c < end; c += kLanes) {
        StoreDecoded(row + c, ToF(LoadSignedBytes(codes + c)) * scale, stream);
      }
    }
    in = codes + y.dim;
  }
  return valid;
}

}  // namespace cairn::kernels::CAIRN_KERNEL_NS
