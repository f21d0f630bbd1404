#pragma once
// int8: a scale for each row and group of columns (codec_kernels.h).

#include "kernels/cuda/row_groups.cuh"

namespace cairn::kernels::cuda {

CAIRN_DEVICE void Int8EncodeHead(const PlaneBatch& batch) {
  Head head;
  if (!OpenHead(batch, &head)) return;
  const int scales = head.row_bytes - head.dim;
  uint32_t faults = 0;
  ForEachGroup<16>(head, head.parameter, [&](const GroupLane& lane) {
    float x[16] = {};
    if (lane.mine) Load16Floats(head, lane.row, lane.column, x, &faults);
    float top = 0.0f;
    CAIRN_UNROLL
    for (int i = 0; i < 16; ++i) top = fmaxf(top, fabsf(x[i]));
    const uint32_t scale = ToHalf(MostOfGroup(top, lane.lanes) / 127.0f);
    if (!lane.mine) return;
    const float inverse = Reciprocal(scale);
    uint32_t codes[16];
    CAIRN_UNROLL
    for (int i = 0; i < 16; ++i) {
      codes[i] = static_cast<uint32_t>(RoundWithin(x[i] * inverse, -127.0f, 127.0f)) & 0xff;
    }
    uint8_t* const row = head.Row(lane.row);
    if (lane.first) Store2(row + 2 * lane.group, scale);
    Store16(row + scales + lane.column, PackBytes(codes));
  });
  Report(head, faults);
}

CAIRN_DEVICE void Int8DecodeHead(const PlaneBatch& batch) {
  Head head;
  if (!OpenHead(batch, &head)) return;
  const int scales = head.row_bytes - head.dim;
  uint32_t faults = 0;
  ForEachChunk<16>(head, [&](int row, int column) {
    const uint8_t* const in = head.Row(row);
    const uint32_t scale = Load2(in + 2 * (column / head.parameter));
    if (!IsScale(scale)) faults |= kScaleFault;
    const uint4 codes = Load16(in + scales + column);
    const float step = FromHalf(scale);
    float x[16];
    CAIRN_UNROLL
    for (int i = 0; i < 16; ++i) {
      x[i] = static_cast<float>(static_cast<int8_t>(ByteAt(codes, i))) * step;
    }
    Store16Floats(head, row, column, x);
  });
  Report(head, faults);
}

}  // namespace cairn::kernels::cuda

CAIRN_KERNEL void __launch_bounds__(128)
    cairn_int8_encode(CAIRN_PARAMETER(cairn::kernels::cuda::PlaneBatch) batch) {
  cairn::kernels::cuda::Int8EncodeHead(batch);
}
CAIRN_KERNEL void __launch_bounds__(128)
    cairn_int8_decode(CAIRN_PARAMETER(cairn::kernels::cuda::PlaneBatch) batch) {
  cairn::kernels::cuda::Int8DecodeHead(batch);
}
