// The definition of the codec kernels, in plain loops.

#include "cairn/kernels/codec/codec_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cairn/kernels/codec/inline_codec.h"
#include "cairn/kernels/codec/turbo_levels.h"
#include "kernels/reference/half.h"

namespace cairn::kernels {
namespace {

// --- Numbers ---

int32_t RoundToEven(float f) { return static_cast<int32_t>(std::nearbyint(f)); }

bool IsFinite(uint16_t h) { return (h & 0x7fff) < 0x7c00; }
bool IsScale(uint16_t h) { return h < 0x7c00; }

bool AllFinite(const HalfRows& x) {
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t c = 0; c < x.dim; ++c) {
      if (!IsFinite(x.row(r)[c])) return false;
    }
  }
  return true;
}

uint16_t Decoded(float f) { return ToHalf(std::clamp(f, -65504.0f, 65504.0f)); }

void Put(std::byte* p, uint16_t v) { std::memcpy(p, &v, 2); }
uint16_t Get(const std::byte* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}

float Reciprocal(uint16_t scale) { return scale == 0 ? 0.0f : 1.0f / FromHalf(scale); }

// Sixteen partial sums, number i in sum i % 16; then sums i and i + 8, + 4, + 2, + 1.
class Sum {
 public:
  void Add(int64_t i, float x) { part_[i % 16] += x; }
  float Total() const {
    float v[16];
    std::copy(part_, part_ + 16, v);
    for (int n = 8; n > 0; n /= 2) {
      for (int i = 0; i < n; ++i) v[i] += v[i + n];
    }
    return v[0];
  }

 private:
  float part_[16] = {};
};

int64_t CountNonFinite(const HalfRows& x) {
  int64_t count = 0;
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t c = 0; c < x.dim; ++c) count += IsFinite(x.row(r)[c]) ? 0 : 1;
  }
  return count;
}

// --- int8 ---

bool Int8Encode(const HalfRows& x, const Int8Params& p, std::byte* out) {
  if (!AllFinite(x)) return false;
  const int64_t groups = (x.dim + p.group - 1) / p.group;
  for (int64_t r = 0; r < x.rows; ++r, out += Int8RowBytes(x.dim, p.group)) {
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t end = std::min((g + 1) * p.group, x.dim);
      float top = 0.0f;
      for (int64_t c = g * p.group; c < end; ++c) {
        top = std::max(top, std::fabs(FromHalf(x.row(r)[c])));
      }
      const uint16_t scale = ToHalf(top / 127.0f);
      Put(out + 2 * g, scale);
      for (int64_t c = g * p.group; c < end; ++c) {
        const int32_t q = RoundToEven(FromHalf(x.row(r)[c]) * Reciprocal(scale));
        out[2 * groups + c] = static_cast<std::byte>(std::clamp(q, -127, 127));
      }
    }
  }
  return true;
}

bool Int8Decode(const std::byte* in, const Int8Params& p, const MutableHalfRows& y) {
  const int64_t groups = (y.dim + p.group - 1) / p.group;
  bool valid = true;
  for (int64_t r = 0; r < y.rows; ++r, in += Int8RowBytes(y.dim, p.group)) {
    for (int64_t c = 0; c < y.dim; ++c) {
      const uint16_t scale = Get(in + 2 * (c / p.group));
      valid = valid && IsScale(scale);
      const auto code = static_cast<int8_t>(in[2 * groups + c]);
      y.row(r)[c] = Decoded(static_cast<float>(code) * FromHalf(scale));
    }
  }
  return valid;
}

// --- int4 ---

void PutNibble(std::byte* codes, int64_t c, int32_t code) {
  std::byte& byte = codes[c / 32 * 16 + c % 16];
  const int shift = c % 32 < 16 ? 0 : 4;
  byte = (byte & static_cast<std::byte>(0xf0 >> shift)) | static_cast<std::byte>(code << shift);
}
int32_t GetNibble(const std::byte* codes, int64_t c) {
  return static_cast<int32_t>(codes[c / 32 * 16 + c % 16]) >> (c % 32 < 16 ? 0 : 4) & 15;
}

struct Range {
  float least = INFINITY;
  float most = -INFINITY;
  void Add(float x) {
    least = std::min(least, x);
    most = std::max(most, x);
  }
  // -0 is stored as 0.
  uint16_t Least() const { return ToHalf(least + 0.0f); }
  uint16_t Scale() const { return ToHalf((most - least) / 15.0f); }
};

int32_t Int4Code(float x, uint16_t least, uint16_t scale) {
  return std::clamp(RoundToEven((x - FromHalf(least)) * Reciprocal(scale)), 0, 15);
}

bool Int4TokenEncode(const HalfRows& x, const Int4TokenParams& p, std::byte* out) {
  if (!AllFinite(x)) return false;
  const int64_t groups = (x.dim + p.group - 1) / p.group;
  for (int64_t r = 0; r < x.rows; ++r, out += Int4TokenRowBytes(x.dim, p.group)) {
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t end = std::min((g + 1) * p.group, x.dim);
      Range range;
      for (int64_t c = g * p.group; c < end; ++c) range.Add(FromHalf(x.row(r)[c]));
      Put(out + 4 * g, range.Scale());
      Put(out + 4 * g + 2, range.Least());
      for (int64_t c = g * p.group; c < end; ++c) {
        PutNibble(out + 4 * groups, c,
                  Int4Code(FromHalf(x.row(r)[c]), range.Least(), range.Scale()));
      }
    }
  }
  return true;
}

bool Int4TokenDecode(const std::byte* in, const Int4TokenParams& p, const MutableHalfRows& y) {
  const int64_t groups = (y.dim + p.group - 1) / p.group;
  bool valid = true;
  for (int64_t r = 0; r < y.rows; ++r, in += Int4TokenRowBytes(y.dim, p.group)) {
    for (int64_t c = 0; c < y.dim; ++c) {
      const uint16_t scale = Get(in + c / p.group * 4), least = Get(in + c / p.group * 4 + 2);
      valid = valid && IsScale(scale) && IsFinite(least);
      const float step = static_cast<float>(GetNibble(in + 4 * groups, c)) * FromHalf(scale);
      y.row(r)[c] = Decoded(step + FromHalf(least));
    }
  }
  return valid;
}

bool Int4ChannelEncode(const HalfRows& x, const Int4ChannelParams&, std::byte* out) {
  if (!AllFinite(x)) return false;
  if (x.rows == 0) return true;
  for (int64_t c = 0; c < x.dim; ++c) {
    Range range;
    for (int64_t r = 0; r < x.rows; ++r) range.Add(FromHalf(x.row(r)[c]));
    Put(out + 2 * c, range.Scale());
    Put(out + 2 * (x.dim + c), range.Least());
    for (int64_t r = 0; r < x.rows; ++r) {
      PutNibble(out + 4 * x.dim + r * x.dim / 2, c,
                Int4Code(FromHalf(x.row(r)[c]), range.Least(), range.Scale()));
    }
  }
  return true;
}

bool Int4ChannelDecode(const std::byte* in, const Int4ChannelParams&, const MutableHalfRows& y) {
  if (y.rows == 0) return true;
  bool valid = true;
  for (int64_t c = 0; c < y.dim; ++c) {
    const uint16_t scale = Get(in + 2 * c), least = Get(in + 2 * (y.dim + c));
    valid = valid && IsScale(scale) && IsFinite(least);
    for (int64_t r = 0; r < y.rows; ++r) {
      const int32_t code = GetNibble(in + 4 * y.dim + r * y.dim / 2, c);
      y.row(r)[c] = Decoded(static_cast<float>(code) * FromHalf(scale) + FromHalf(least));
    }
  }
  return valid;
}

// --- turbo ---

void Hadamard(float* z, int64_t n) {
  for (int64_t distance = 1; distance < n; distance *= 2) {
    for (int64_t i = 0; i < n; ++i) {
      if (i & distance) continue;
      const float a = z[i], b = z[i + distance];
      z[i] = a + b;
      z[i + distance] = a - b;
    }
  }
}

float Signed(float x, uint32_t sign) { return sign != 0 ? -x : x; }

int32_t TurboCode(float t, int bits) {
  const int32_t half = 1 << (bits - 1);
  const float* level = TurboLevels(bits);
  int32_t above = 0;
  while (above + 1 < half && std::fabs(t) > 0.5f * (level[above] + level[above + 1])) ++above;
  return t < 0.0f ? half - 1 - above : half + above;
}

float TurboLevel(int32_t code, int bits) {
  const int32_t half = 1 << (bits - 1);
  return code < half ? -TurboLevels(bits)[half - 1 - code] : TurboLevels(bits)[code - half];
}

void PutTurbo(std::byte* codes, int64_t dim, int bits, int64_t c, int32_t code) {
  if (bits == 4) return PutNibble(codes, c, code);
  std::byte& pairs = codes[c / 64 * 16 + c % 16];
  const auto shift = static_cast<int>(c % 64 / 16 * 2);
  pairs =
      (pairs & static_cast<std::byte>(~(3 << shift))) | static_cast<std::byte>((code & 3) << shift);
  if (bits == 2) return;
  std::byte& high = codes[dim / 4 + c / 8];
  high =
      (high & static_cast<std::byte>(~(1 << c % 8))) | static_cast<std::byte>((code >> 2) << c % 8);
}

int32_t GetTurbo(const std::byte* codes, int64_t dim, int bits, int64_t c) {
  if (bits == 4) return GetNibble(codes, c);
  const int32_t low = static_cast<int32_t>(codes[c / 64 * 16 + c % 16]) >> (c % 64 / 16 * 2) & 3;
  if (bits == 2) return low;
  return low | (static_cast<int32_t>(codes[dim / 4 + c / 8]) >> (c % 8) & 1) << 2;
}

bool TurboEncode(const HalfRows& x, const TurboParams& p, std::byte* out) {
  if (!AllFinite(x)) return false;
  for (int64_t r = 0; r < x.rows; ++r, out += TurboRowBytes(x.dim, p.bits)) {
    float z[kMaxHeadDim];
    Sum squares;
    for (int64_t c = 0; c < x.dim; ++c) {
      const float f = FromHalf(x.row(r)[c]);
      squares.Add(c, f * f);
      z[c] = Signed(f, p.signs[c]);
    }
    Hadamard(z, x.dim);
    const float norm = std::sqrt(squares.Total());
    const float inverse = norm > 0.0f ? 1.0f / norm : 0.0f;
    Sum both, own;
    for (int64_t c = 0; c < x.dim; ++c) {
      const int32_t code = TurboCode(z[c] * inverse, p.bits);
      const float level = TurboLevel(code, p.bits);
      both.Add(c, z[c] * level);
      own.Add(c, level * level);
      PutTurbo(out + 2, x.dim, p.bits, c, code);
    }
    Put(out, ToHalf(std::min(both.Total() / own.Total(), 65504.0f)));
  }
  return true;
}

bool TurboDecode(const std::byte* in, const TurboParams& p, const MutableHalfRows& y) {
  bool valid = true;
  for (int64_t r = 0; r < y.rows; ++r, in += TurboRowBytes(y.dim, p.bits)) {
    valid = valid && IsScale(Get(in));
    const float gain = FromHalf(Get(in)) / static_cast<float>(y.dim);
    float z[kMaxHeadDim];
    for (int64_t c = 0; c < y.dim; ++c) {
      z[c] = TurboLevel(GetTurbo(in + 2, y.dim, p.bits, c), p.bits);
    }
    Hadamard(z, y.dim);
    for (int64_t c = 0; c < y.dim; ++c) y.row(r)[c] = Decoded(Signed(z[c] * gain, p.signs[c]));
  }
  return valid;
}

// --- fp8 ---

float Fp8Value(int32_t code) {
  const int exponent = code >> 3 & 15;
  const int mantissa = code & 7;
  const float a = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return code & 0x80 ? -a : a;
}

// The code of the nearest of the 127 numbers; of two as near, the even code.
int32_t Fp8Code(float x) {
  const float a = std::min(std::fabs(x), 448.0f);
  int32_t code = 0, top = 126;
  while (code < top) {
    const int32_t middle = (code + top) / 2;
    const float border = 0.5f * (Fp8Value(middle) + Fp8Value(middle + 1));
    if (a < border || (a == border && middle % 2 == 0)) {
      top = middle;
    } else {
      code = middle + 1;
    }
  }
  return code | (std::signbit(x) ? 0x80 : 0);
}

bool Fp8Encode(const HalfRows& x, const Fp8Params&, std::byte* out) {
  if (!AllFinite(x)) return false;
  for (int64_t r = 0; r < x.rows; ++r, out += Fp8RowBytes(x.dim)) {
    float top = 0.0f;
    for (int64_t c = 0; c < x.dim; ++c) top = std::max(top, std::fabs(FromHalf(x.row(r)[c])));
    const uint16_t scale = ToHalf(top / 448.0f);
    Put(out, scale);
    for (int64_t c = 0; c < x.dim; ++c) {
      out[2 + c] = static_cast<std::byte>(Fp8Code(FromHalf(x.row(r)[c]) * Reciprocal(scale)));
    }
  }
  return true;
}

bool Fp8Decode(const std::byte* in, const Fp8Params&, const MutableHalfRows& y) {
  bool valid = true;
  for (int64_t r = 0; r < y.rows; ++r, in += Fp8RowBytes(y.dim)) {
    valid = valid && IsScale(Get(in));
    for (int64_t c = 0; c < y.dim; ++c) {
      y.row(r)[c] = Decoded(Fp8Value(static_cast<int32_t>(in[2 + c])) * FromHalf(Get(in)));
    }
  }
  return valid;
}

// --- whole multiples of a step ---

bool LatticeEncode(const HalfRows& x, int64_t step64, uint16_t* step, uint16_t* out) {
  if (!AllFinite(x)) return false;
  Sum squares;
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t c = 0; c < x.dim; ++c) {
      const float f = FromHalf(x.row(r)[c]);
      squares.Add(c, f * f);
    }
  }
  const float mean = squares.Total() / static_cast<float>(x.rows * x.dim);
  *step = ToHalf(std::sqrt(mean) * (static_cast<float>(step64) / 64.0f));
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t c = 0; c < x.dim; ++c) {
      const int32_t n = RoundToEven(FromHalf(x.row(r)[c]) * Reciprocal(*step));
      out[r * x.dim + c] = static_cast<uint16_t>(std::clamp(n, -32767, 32767) + kLatticeZero);
    }
  }
  return true;
}

bool LatticeDecode(const uint16_t* in, uint16_t step, const MutableHalfRows& y) {
  for (int64_t r = 0; r < y.rows; ++r) {
    for (int64_t c = 0; c < y.dim; ++c) {
      const auto n = static_cast<float>(in[r * y.dim + c] - kLatticeZero);
      y.row(r)[c] = Decoded(n * FromHalf(step));
    }
  }
  return IsScale(step);
}

void EndStreaming() {}

}  // namespace

const CodecKernels& ReferenceCodecKernels() {
  static const CodecKernels table = CAIRN_INLINE_CODECS("reference");
  return table;
}

}  // namespace cairn::kernels
