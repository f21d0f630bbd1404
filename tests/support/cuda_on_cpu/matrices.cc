// Products of small matrices by a warp.

#include <cmath>
#include <cstring>

#include "kernels/cuda/on_cpu.h"
#include "tests/support/cuda_on_cpu/hand_over.h"

namespace cairn::kernels::cuda::on_cpu {
namespace {

float FloatOf16(uint32_t bits, bool bfloat16) {
  if (!bfloat16) return HalfToFloat(static_cast<uint16_t>(bits));
  const uint32_t wide = bits << 16;
  float x;
  std::memcpy(&x, &wide, sizeof(x));
  return x;
}

// A lane's parts of both factors: row g of a in columns 2t, 2t + 1, row g + 8, then both 8 columns
// further; b in the same order of its 16 rows.
struct Parts {
  float a[8];
  float b[4];
};

const float* PartsOf(unsigned lane) { return static_cast<const Parts*>(HandedOver(lane))->a; }

}  // namespace

float TowardsZero(double sum) {
  const auto x = static_cast<float>(sum);
  if (std::isinf(x)) return x;
  return std::fabs(double{x}) > std::fabs(sum) ? std::nextafter(x, 0.0f) : x;
}

void MultiplyAdd(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], bool bfloat16) {
  Parts own;
  for (int i = 0; i < 8; ++i) own.a[i] = FloatOf16(a[i / 2] >> i % 2 * 16 & 0xffff, bfloat16);
  for (int i = 0; i < 4; ++i) own.b[i] = FloatOf16(b[i / 2] >> i % 2 * 16 & 0xffff, bfloat16);
  HandOver(&own, sizeof(own));
  const unsigned lane = Here().thread.x % 32, g = lane / 4, t = lane % 4;
  double sum[4] = {c[0], c[1], c[2], c[3]};
  for (unsigned k = 0; k < 16; ++k) {
    // Numbers k of the rows and columns are with lane k % 8 / 2 of the four that share them.
    const unsigned of = k % 8 / 2, within = k % 2, later = k / 8;
    const float* const rows = PartsOf(4 * g + of) + 4 * later + within;
    for (unsigned n = 0; n < 2; ++n) {
      const float column = PartsOf(4 * (2 * t + n) + of)[8 + 2 * later + within];
      sum[n] += double{rows[0]} * double{column};
      sum[2 + n] += double{rows[2]} * double{column};
    }
  }
  for (int i = 0; i < 4; ++i) c[i] = TowardsZero(sum[i]);
}

}  // namespace cairn::kernels::cuda::on_cpu
