#pragma once
// int4: a scale and a minimum for each row and group of columns (by token), or for each column and
// group of rows (by channel). Codes of 32 columns are 16 bytes (codec_kernels.h).

#include "kernels/cuda/row_groups.cuh"

namespace cairn::kernels::cuda {

struct Int4Range {
  uint32_t scale = 0;
  uint32_t least = 0;
  // The stored pair in the form that an encoder needs.
  float inverse = 0.0f;
  float base = 0.0f;
};
CAIRN_DEVICE Int4Range RangeOf(float least, float most) {
  Int4Range range;
  range.scale = ToHalf((most - least) / 15.0f);
  range.least = ToHalf(least + 0.0f);  // -0 is stored as 0.
  range.inverse = Reciprocal(range.scale);
  range.base = FromHalf(range.least);
  return range;
}
CAIRN_DEVICE uint32_t Int4Code(float x, const Int4Range& range) {
  return static_cast<uint32_t>(RoundWithin((x - range.base) * range.inverse, 0.0f, 15.0f));
}
// Code i of 32: the low halves of the bytes first.
CAIRN_DEVICE uint32_t Int4At(const uint4& codes, int i) {
  return ByteAt(codes, i % 16) >> (i < 16 ? 0 : 4) & 15;
}

// kMasked: channels with a bit in `mask` count as 0 (mixed).
template <bool kMasked>
CAIRN_DEVICE void Int4TokenEncodeRows(const Head& head, [[maybe_unused]] const uint32_t* mask) {
  const int scales = head.row_bytes - head.dim / 2;
  uint32_t faults = 0;
  ForEachGroup<32>(head, head.parameter, [&](const GroupLane& lane) {
    float x[2][16] = {};
    float least = INFINITY, most = -INFINITY;
    if (lane.mine) {
      Load16Floats(head, lane.row, lane.column, x[0], &faults);
      Load16Floats(head, lane.row, lane.column + 16, x[1], &faults);
      if (kMasked) {
        const uint32_t zeros = mask[lane.column / 32];
        CAIRN_UNROLL
        for (int i = 0; i < 32; ++i) {
          if ((zeros >> i & 1) != 0) x[i / 16][i % 16] = 0.0f;
        }
      }
      CAIRN_UNROLL
      for (int i = 0; i < 32; ++i) {
        least = fminf(least, x[i / 16][i % 16]);
        most = fmaxf(most, x[i / 16][i % 16]);
      }
    }
    const Int4Range range = RangeOf(LeastOfGroup(least, lane.lanes), MostOfGroup(most, lane.lanes));
    if (!lane.mine) return;
    uint32_t bytes[16];
    CAIRN_UNROLL
    for (int i = 0; i < 16; ++i) {
      bytes[i] = Int4Code(x[0][i], range) | Int4Code(x[1][i], range) << 4;
    }
    uint8_t* const row = head.Row(lane.row);
    if (lane.first) {
      Store2(row + 4 * lane.group, range.scale);
      Store2(row + 4 * lane.group + 2, range.least);
    }
    Store16(row + scales + lane.column / 2, PackBytes(bytes));
  });
  Report(head, faults);
}

CAIRN_DEVICE void Int4TokenEncodeHead(const PlaneBatch& batch) {
  Head head;
  if (!OpenHead(batch, &head)) return;
  Int4TokenEncodeRows<false>(head, nullptr);
}

// 32 columns of a row.
CAIRN_DEVICE void Int4TokenDecodeChunk(const Head& head, int row, int column, uint32_t* faults) {
  const uint8_t* const in = head.Row(row);
  const uint32_t scale = Load2(in + column / head.parameter * 4);
  const uint32_t least = Load2(in + column / head.parameter * 4 + 2);
  if (!IsScale(scale) || !IsFinite(least)) *faults |= kScaleFault;
  const uint4 codes = Load16(in + (head.row_bytes - head.dim / 2) + column / 2);
  const float step = FromHalf(scale), base = FromHalf(least);
  CAIRN_UNROLL
  for (int part = 0; part < 2; ++part) {
    float x[16];
    CAIRN_UNROLL
    for (int i = 0; i < 16; ++i) {
      x[i] = static_cast<float>(Int4At(codes, 16 * part + i)) * step + base;
    }
    Store16Floats(head, row, column + 16 * part, x);
  }
}

CAIRN_DEVICE void Int4TokenDecodeHead(const PlaneBatch& batch) {
  Head head;
  if (!OpenHead(batch, &head)) return;
  uint32_t faults = 0;
  ForEachChunk<32>(head,
                   [&](int row, int column) { Int4TokenDecodeChunk(head, row, column, &faults); });
  Report(head, faults);
}

// ---- by channel ----

// The rows of a head that share their columns' scales. Groups begin at multiples of their size in
// the block, whether or not the first rows of the block are the sink's.
struct RowGroup {
  uint8_t* bytes = nullptr;
  int first = 0;  // Rows without the sink.
  int count = 0;
};
CAIRN_DEVICE int RowGroupsOf(const Head& head) {
  if (head.rows == 0) return 0;
  const int size = head.parameter;
  return (head.sink + head.rows + size - 1) / size - head.sink / size;
}
CAIRN_DEVICE RowGroup RowGroupAt(const Head& head, int index) {
  const int size = head.parameter, begin = (head.sink / size + index) * size;
  const int end = begin + size, last = head.sink + head.rows;
  RowGroup group;
  group.first = (begin > head.sink ? begin : head.sink) - head.sink;
  group.count = (end < last ? end : last) - head.sink - group.first;
  group.bytes = head.Row(group.first) + static_cast<int64_t>(index) * 4 * head.dim;
  return group;
}

// A column is a thread's: neighbouring columns are neighbouring lanes, so 32 columns are a warp.
CAIRN_DEVICE void Int4ChannelEncodeHead(const PlaneBatch& batch) {
  Head head;
  if (!OpenHead(batch, &head)) return;
  uint32_t faults = 0;
  const int dim = head.dim;
  for (int g = static_cast<int>(blockIdx.x); g < RowGroupsOf(head);
       g += static_cast<int>(gridDim.x)) {
    const RowGroup group = RowGroupAt(head, g);
    for (int column = static_cast<int>(threadIdx.x); column < dim;
         column += static_cast<int>(blockDim.x)) {
      const uint16_t* const numbers =
          head.numbers + (head.sink + group.first) * head.stride + column;
      const auto number = [&](int row) {
        uint32_t half = *Global(numbers + row * head.stride);
        if (head.bfloat16) half = HalfOfBfloat16(half, &faults);
        if (!IsFinite(half)) faults |= kNonFiniteFault;
        return FromHalf(half);
      };
      float least = INFINITY, most = -INFINITY;
      for (int row = 0; row < group.count; ++row) {
        const float x = number(row);
        least = fminf(least, x);
        most = fmaxf(most, x);
      }
      const Int4Range range = RangeOf(least, most);
      Store2(group.bytes + 2 * column, range.scale);
      Store2(group.bytes + 2 * (dim + column), range.least);
      uint8_t* codes = group.bytes + 4 * dim + column / 32 * 16 + column % 32;
      for (int row = 0; row < group.count; ++row, codes += head.row_bytes) {
        const uint32_t code = Int4Code(number(row), range);
        const uint32_t other = __shfl_xor_sync(kWholeWarp, code, 16);
        if (column % 32 < 16) *Global(codes) = static_cast<uint8_t>(code | other << 4);
      }
    }
  }
  Report(head, faults);
}

// Scales and minima as floats in shared memory, so that neighbouring lanes find them in different
// banks.
struct ChannelScales {
  float* step = nullptr;
  float* base = nullptr;
};
constexpr int kChannelScales = static_cast<int>(kMaxHeadDim + kMaxHeadDim / 32);
constexpr size_t kChannelSharedBytes = 2 * kChannelScales * sizeof(float);

CAIRN_DEVICE void Int4ChannelDecodeHead(const PlaneBatch& batch) {
  SharedArrays shared;
  ChannelScales scales;
  scales.step = shared.Take<float>(kChannelScales);
  scales.base = shared.Take<float>(kChannelScales);
  Head head;
  if (!OpenHead(batch, &head)) return;
  uint32_t faults = 0;
  const int dim = head.dim, threads = static_cast<int>(blockDim.x);
  for (int g = static_cast<int>(blockIdx.x); g < RowGroupsOf(head);
       g += static_cast<int>(gridDim.x)) {
    const RowGroup group = RowGroupAt(head, g);
    for (int c = static_cast<int>(threadIdx.x); c < dim; c += threads) {
      const uint32_t scale = Load2(group.bytes + 2 * c), least = Load2(group.bytes + 2 * (dim + c));
      if (!IsScale(scale) || !IsFinite(least)) faults |= kScaleFault;
      scales.step[c + c / 32] = FromHalf(scale);
      scales.base[c + c / 32] = FromHalf(least);
    }
    __syncthreads();
    const int chunks = dim / 32;
    for (int i = static_cast<int>(threadIdx.x); i < group.count * chunks; i += threads) {
      const int row = i / chunks, chunk = i % chunks;
      const uint4 codes =
          Load16(group.bytes + 4 * dim + static_cast<int64_t>(row) * head.row_bytes + chunk * 16);
      CAIRN_UNROLL
      for (int part = 0; part < 2; ++part) {
        float x[16];
        CAIRN_UNROLL
        for (int j = 0; j < 16; ++j) {
          const int c = chunk * 33 + 16 * part + j;
          x[j] = static_cast<float>(Int4At(codes, 16 * part + j)) * scales.step[c] + scales.base[c];
        }
        Store16Floats(head, group.first + row, chunk * 32 + 16 * part, x);
      }
    }
    __syncthreads();  // The next group's scales take their place.
  }
  Report(head, faults);
}

}  // namespace cairn::kernels::cuda

CAIRN_KERNEL void __launch_bounds__(128)
    cairn_int4_token_encode(CAIRN_PARAMETER(cairn::kernels::cuda::PlaneBatch) batch) {
  cairn::kernels::cuda::Int4TokenEncodeHead(batch);
}
CAIRN_KERNEL void __launch_bounds__(128)
    cairn_int4_token_decode(CAIRN_PARAMETER(cairn::kernels::cuda::PlaneBatch) batch) {
  cairn::kernels::cuda::Int4TokenDecodeHead(batch);
}
// Eight blocks a multiprocessor: without the number nvcc makes room for more, and spills.
CAIRN_KERNEL void __launch_bounds__(128, 8)
    cairn_int4_channel_encode(CAIRN_PARAMETER(cairn::kernels::cuda::PlaneBatch) batch) {
  cairn::kernels::cuda::Int4ChannelEncodeHead(batch);
}
CAIRN_KERNEL void __launch_bounds__(128)
    cairn_int4_channel_decode(CAIRN_PARAMETER(cairn::kernels::cuda::PlaneBatch) batch) {
  cairn::kernels::cuda::Int4ChannelDecodeHead(batch);
}
