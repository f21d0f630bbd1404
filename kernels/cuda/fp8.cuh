#pragma once
// fp8 e4m3: a scale for each row (codec_kernels.h).

#include "kernels/cuda/row_groups.cuh"

namespace cairn::kernels::cuda {

// The nearest of the 127 numbers, ties to the even code.
CAIRN_DEVICE uint32_t Fp8Code(float x) {
  const uint32_t sign = BitsOf(x) >> 24 & 0x80;
  const float a = fminf(fabsf(x), 448.0f);
  // Below 2^-6 codes count steps of 2^-9; 8 of them are the first number with an exponent.
  if (a < 0.015625f) return sign | static_cast<uint32_t>(RoundWithin(a * 512.0f, 0.0f, 8.0f));
  const uint32_t bits = BitsOf(a);
  // Three bits of the mantissa stay; the exponent's bias goes from 127 to 7.
  return sign | (((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (120u << 3));
}

CAIRN_DEVICE float Fp8Value(uint32_t code) {
  const uint32_t exponent = code >> 3 & 15, mantissa = code & 7;
  const float a = exponent == 0 ? static_cast<float>(mantissa) * 0.001953125f
                                : FloatOf((exponent + 120) << 23 | mantissa << 20);
  return (code & 0x80) != 0 ? -a : a;
}

CAIRN_DEVICE void Fp8EncodeHead(const PlaneBatch& batch) {
  Head head;
  if (!OpenHead(batch, &head)) return;
  uint32_t faults = 0;
  ForEachGroup<16>(head, head.dim, [&](const GroupLane& lane) {
    float x[16] = {};
    if (lane.mine) Load16Floats(head, lane.row, lane.column, x, &faults);
    float top = 0.0f;
    CAIRN_UNROLL
    for (int i = 0; i < 16; ++i) top = fmaxf(top, fabsf(x[i]));
    const uint32_t scale = ToHalf(MostOfGroup(top, lane.lanes) / 448.0f);
    if (!lane.mine) return;
    const float inverse = Reciprocal(scale);
    uint32_t codes[16];
    CAIRN_UNROLL
    for (int i = 0; i < 16; ++i) codes[i] = Fp8Code(x[i] * inverse);
    uint8_t* const row = head.Row(lane.row);
    if (lane.first) Store2(row, scale);
    Store16(row + 2 + lane.column, PackBytes(codes));
  });
  Report(head, faults);
}

CAIRN_DEVICE void Fp8DecodeHead(const PlaneBatch& batch) {
  Head head;
  if (!OpenHead(batch, &head)) return;
  uint32_t faults = 0;
  ForEachChunk<16>(head, [&](int row, int column) {
    const uint8_t* const in = head.Row(row);
    const uint32_t scale = Load2(in);
    if (!IsScale(scale)) faults |= kScaleFault;
    const uint4 codes = Load16(in + 2 + column);
    const float step = FromHalf(scale);
    float x[16];
    CAIRN_UNROLL
    for (int i = 0; i < 16; ++i) x[i] = Fp8Value(ByteAt(codes, i)) * step;
    Store16Floats(head, row, column, x);
  });
  Report(head, faults);
}

}  // namespace cairn::kernels::cuda

CAIRN_KERNEL void __launch_bounds__(128)
    cairn_fp8_encode(CAIRN_PARAMETER(cairn::kernels::cuda::PlaneBatch) batch) {
  cairn::kernels::cuda::Fp8EncodeHead(batch);
}
CAIRN_KERNEL void __launch_bounds__(128)
    cairn_fp8_decode(CAIRN_PARAMETER(cairn::kernels::cuda::PlaneBatch) batch) {
  cairn::kernels::cuda::Fp8DecodeHead(batch);
}
