#pragma once
// The arguments of a launch over one plane of many slices, by value: 32 KB of kernel parameters
// hold some 500 slices, so no list has to be copied to the device first. Blocks are (units, head,
// slice). The host computes all sizes (launches.h): a division of 64-bit numbers costs a block more
// than its head.

#include "cairn/kernels/codec/slice_kernels.h"
#include "kernels/cuda/device.h"

namespace cairn::kernels::cuda {

constexpr int kMostSlices = 500;

struct SlicePlane {
  uint8_t* encoded = nullptr;   // The encoded bytes of the plane.
  uint16_t* numbers = nullptr;  // Numbers of the first head's first token.
  uint32_t* faults = nullptr;
  int64_t head_bytes = 0;  // Encoded, with the rows of the sink.
  int32_t tokens = 0;
  int32_t sink = 0;  // Rows.
  int32_t layer = 0;
  bool wrong_length = false;  // The slice must not be touched.
};

struct PlaneBatch {
  int64_t head_stride = 0;
  int64_t token_stride = 0;
  int32_t dim = 0;
  int32_t parameter = 0;  // The parameter of the coding, at most 65535.
  int32_t row_bytes = 0;  // Bytes of a coded row. By channel: without the scales.
  int32_t outliers = 0;   // mixed alone. The rows are those of int4.
  bool values = false;
  bool bfloat16 = false;
  const uint32_t* signs = nullptr;
  SlicePlane slices[kMostSlices];
};
// The limit is that of CUDA 12.1 and later, from compute capability 7.0 on.
constexpr size_t kMostParameterBytes = 32764;
static_assert(sizeof(PlaneBatch) <= kMostParameterBytes);

// The rows of one head of one slice, without those of the sink.
struct Head {
  uint8_t* sink_bytes = nullptr;  // Encoded rows of the sink, in half precision.
  uint8_t* bytes = nullptr;       // Behind them the encoded head.
  uint16_t* numbers = nullptr;    // Numbers of the block's first token.
  int64_t stride = 0;
  int32_t dim = 0;
  int32_t sink = 0;  // Rows.
  int32_t rows = 0;  // Others.
  int32_t parameter = 0;
  int32_t row_bytes = 0;
  bool bfloat16 = false;
  uint32_t* faults = nullptr;

  CAIRN_DEVICE uint8_t* Row(int row) const { return bytes + static_cast<int64_t>(row) * row_bytes; }
};

CAIRN_DEVICE void Report(const Head& head, uint32_t faults) {
  if (faults != 0) atomicOr(Global(head.faults), faults);
}

// The head of this block. False: the slice must not be touched. All threads of a block agree, as
// nothing sets kHashFault meanwhile.
CAIRN_DEVICE bool OpenHead(const PlaneBatch& batch, Head* head) {
  const SlicePlane& slice = batch.slices[blockIdx.z];
  head->faults = slice.faults;
  if (slice.wrong_length) {
    if (threadIdx.x == 0) Report(*head, kLengthFault);
    return false;
  }
  if ((LoadAtomic(Global(slice.faults)) & kHashFault) != 0) return false;
  head->sink_bytes = slice.encoded + blockIdx.y * slice.head_bytes;
  head->bytes = head->sink_bytes + static_cast<int64_t>(slice.sink) * batch.dim * 2;
  head->numbers = slice.numbers + blockIdx.y * batch.head_stride;
  head->stride = batch.token_stride;
  head->dim = batch.dim;
  head->sink = slice.sink;
  head->rows = slice.tokens - slice.sink;
  head->parameter = batch.parameter;
  head->row_bytes = batch.row_bytes;
  head->bfloat16 = batch.bfloat16;
  return true;
}

// ---- numbers of half precision ----

CAIRN_DEVICE bool IsFinite(uint32_t half) { return (half & 0x7c00) != 0x7c00; }
CAIRN_DEVICE bool IsScale(uint32_t half) { return half < 0x7c00; }
CAIRN_DEVICE float Reciprocal(uint32_t scale) { return scale == 0 ? 0.0f : 1.0f / FromHalf(scale); }
// The numbers that decoders store: never NaN or infinity.
CAIRN_DEVICE uint32_t Decoded(float x) { return ToHalf(fminf(fmaxf(x, -65504.0f), 65504.0f)); }

// A float as bfloat16, to nearest even.
CAIRN_DEVICE uint32_t ToBfloat16(float x) {
  const uint32_t bits = BitsOf(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return bits >> 16 | 0x40;  // Still NaN.
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
// bfloat16 as half. A number that is none is a fault.
CAIRN_DEVICE uint32_t HalfOfBfloat16(uint32_t bits, uint32_t* faults) {
  const float x = FloatOf(bits << 16);
  const uint32_t half = ToHalf(x);
  if (!(FromHalf(half) == x)) *faults |= kInexactFault;
  return half;
}

// Eight halves, two in a word.
CAIRN_DEVICE uint32_t HalfAt(const uint4& v, int i) {
  const uint32_t word = i < 2 ? v.x : i < 4 ? v.y : i < 6 ? v.z : v.w;
  return word >> i % 2 * 16 & 0xffff;
}
CAIRN_DEVICE uint4 PackHalves(const uint32_t (&h)[8]) {
  return {h[0] | h[1] << 16, h[2] | h[3] << 16, h[4] | h[5] << 16, h[6] | h[7] << 16};
}

// The halves of eight numbers that an engine or a page holds.
CAIRN_DEVICE uint4 HalvesOf(const uint4& v, bool bfloat16, uint32_t* faults) {
  if (!bfloat16) return v;
  uint32_t h[8];
  CAIRN_UNROLL
  for (int i = 0; i < 8; ++i) h[i] = HalfOfBfloat16(HalfAt(v, i), faults);
  return PackHalves(h);
}
// The other way.
CAIRN_DEVICE uint4 NumbersOf(const uint4& halves, bool bfloat16) {
  if (!bfloat16) return halves;
  uint32_t h[8];
  CAIRN_UNROLL
  for (int i = 0; i < 8; ++i) h[i] = ToBfloat16(FromHalf(HalfAt(halves, i)));
  return PackHalves(h);
}
CAIRN_DEVICE bool AllFinite(const uint4& halves) {
  bool finite = true;
  CAIRN_UNROLL
  for (int i = 0; i < 8; ++i) finite = finite && IsFinite(HalfAt(halves, i));
  return finite;
}

// Numbers `column` to column + 7 of the head's row `token` (the sink's rows count).
CAIRN_DEVICE uint8_t* AddressOf(const Head& head, int token, int column) {
  return reinterpret_cast<uint8_t*>(head.numbers + token * head.stride + column);
}
CAIRN_DEVICE uint32_t NumberAt(const Head& head, int token, int column) {
  return *Global(head.numbers + token * head.stride + column);
}
CAIRN_DEVICE uint4 Load8Halves(const Head& head, int token, int column, uint32_t* faults) {
  return HalvesOf(Load16(AddressOf(head, token, column)), head.bfloat16, faults);
}
CAIRN_DEVICE void Store8Halves(const Head& head, int token, int column, const uint4& halves) {
  Store16(AddressOf(head, token, column), NumbersOf(halves, head.bfloat16));
}

// Sixteen numbers of a coded row as floats. NaN and infinity are a fault.
CAIRN_DEVICE void Load16Floats(const Head& head, int row, int column, float (&x)[16],
                               uint32_t* faults) {
  CAIRN_UNROLL
  for (int part = 0; part < 2; ++part) {
    const uint4 halves = Load8Halves(head, head.sink + row, column + 8 * part, faults);
    if (!AllFinite(halves)) *faults |= kNonFiniteFault;
    CAIRN_UNROLL
    for (int i = 0; i < 8; ++i) x[8 * part + i] = FromHalf(HalfAt(halves, i));
  }
}
CAIRN_DEVICE void Store16Floats(const Head& head, int row, int column, const float (&x)[16]) {
  CAIRN_UNROLL
  for (int part = 0; part < 2; ++part) {
    uint32_t h[8];
    CAIRN_UNROLL
    for (int i = 0; i < 8; ++i) h[i] = Decoded(x[8 * part + i]);
    Store8Halves(head, head.sink + row, column + 8 * part, PackHalves(h));
  }
}

// Byte i of 16.
CAIRN_DEVICE uint32_t ByteAt(const uint4& v, int i) {
  const uint32_t word = i < 4 ? v.x : i < 8 ? v.y : i < 12 ? v.z : v.w;
  return word >> i % 4 * 8 & 0xff;
}
CAIRN_DEVICE uint4 PackBytes(const uint32_t (&b)[16]) {
  uint32_t w[4];
  CAIRN_UNROLL
  for (int i = 0; i < 4; ++i) {
    w[i] = b[4 * i] | b[4 * i + 1] << 8 | b[4 * i + 2] << 16 | b[4 * i + 3] << 24;
  }
  return {w[0], w[1], w[2], w[3]};
}

// The nearest whole number, ties to even, within bounds.
CAIRN_DEVICE int RoundWithin(float x, float least, float most) {
  return static_cast<int>(fminf(fmaxf(rintf(x), least), most));
}

}  // namespace cairn::kernels::cuda
