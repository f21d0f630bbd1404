// Whole multiples of a step. Included through codec.inc.h.

namespace cairn::kernels::CAIRN_KERNEL_NS {

static bool LatticeEncode(const HalfRows& x, int64_t step64, uint16_t* step, uint16_t* out) {
  H top = AbsBits(LoadH(x.row(0)));
  F squares = Set(0.0f);
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t c = 0; c < x.dim; c += kLanes) {
      const H h = LoadH(x.row(r) + c);
      top = MaxBits(top, AbsBits(h));
      const F f = ToF(h);
      squares = squares + f * f;
    }
  }
  if (LargestOf(top) >= kInfiniteHalf) return false;
  const float mean = SumLanes(squares) / static_cast<float>(x.rows * x.dim);
  *step = FloatToHalf(__builtin_sqrtf(mean) * (static_cast<float>(step64) / 64.0f));
  const F inverse = Set(*step == 0 ? 0.0f : 1.0f / HalfToFloat(*step));
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t c = 0; c < x.dim; c += kLanes) {
      const I n = Max(Min(Round(ToF(LoadH(x.row(r) + c)) * inverse), SetI(32767)), SetI(-32767));
      StoreH(out + r * x.dim + c, LowHalves(n + SetI(kLatticeZero)));
    }
  }
  return true;
}

static bool LatticeDecode(const uint16_t* in, uint16_t step, const MutableHalfRows& y) {
  const bool stream = CanStream(y.data, y.stride, y.streaming);
  const F size = Set(HalfToFloat(step));
  const I zero = SetI(kLatticeZero);
  for (int64_t r = 0; r < y.rows; ++r) {
    const uint16_t* from = in + r * y.dim;
    uint16_t* row = y.row(r);
    int64_t c = 0;
    for (; c + 2 * kLanes <= y.dim; c += 2 * kLanes) {
      StoreDecoded(row + c, ToF(WidenBits(LoadH(from + c)) - zero) * size,
                   ToF(WidenBits(LoadH(from + c + kLanes)) - zero) * size, stream);
    }
    for (; c < y.dim; c += kLanes) {
      StoreDecoded(row + c, ToF(WidenBits(LoadH(from + c)) - zero) * size, stream);
    }
  }
  return IsScale(step);
}

}  // namespace cairn::kernels::CAIRN_KERNEL_NS
