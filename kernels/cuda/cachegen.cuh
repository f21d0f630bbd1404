#pragma once
// cachegen: whole multiples of a step, entropy-coded (docs/inside/formats/codecs.md). The numbers
// of a slice wait in its scratch between launches, in the order of the streams: for each head the
// anchors of a stream's channels, then these channels one after another, all plus kLatticeZero.
//
//   cachegen_encode.cuh   model    a head: step, numbers, anchors, classes
//                         streams  a stream: one lane, backwards into the scratch
//                         slices   a slice: how long it is, and all bytes to their place
//   cachegen_decode.cuh   streams  a stream: one lane
//                         rows     a head

#include "kernels/cuda/rans.cuh"

namespace cairn::kernels::cuda {

// Small blocks: a layer of 32k tokens has some 2000 streams, for as many multiprocessors as can be.
constexpr int kStreamThreads = 64;
constexpr int kHeadThreads = 128;
constexpr int kMostCacheGenSlices = 420;
constexpr uint32_t kCodedMode = 0, kRawMode = 1;  // The first byte of a slice.

struct CacheGenSlice {
  uint8_t* encoded = nullptr;
  uint8_t* scratch = nullptr;
  uint16_t* numbers[2] = {};  // Keys and values.
  uint32_t* faults = nullptr;
  uint64_t* encoded_bytes = nullptr;
  uint64_t bytes = 0;
  int32_t tokens = 0;
  int32_t sink = 0;  // Rows.
  bool wrong_length = false;
};
struct CacheGenPlane {
  int64_t head_stride = 0;
  int64_t token_stride = 0;
  int32_t heads = 0;
  int32_t dim = 0;
  int32_t step64 = 0;
  int32_t class_base = 0;
};
struct CacheGenBatch {
  CacheGenPlane planes[2];
  int32_t count = 0;
  bool bfloat16 = false;
  CacheGenSlice slices[kMostCacheGenSlices];
};
static_assert(sizeof(CacheGenBatch) <= kMostParameterBytes);

// One plane of a slice: sizes, and where its parts of the scratch are.
struct CacheGenPlace {
  int heads = 0, dim = 0, half = 0, rows = 0, sink = 0;  // Rows without the sink.
  // The header of a head: sink rows, step, class of the anchors, classes.
  int64_t header_bytes = 0;
  int64_t stream_bytes = 0;    // The numbers of one stream.
  uint8_t* numbers = nullptr;  // The numbers of the first stream, then those of the second.
  uint8_t* headers = nullptr;
  uint8_t* stage = nullptr;  // Where streams are written.

  CAIRN_DEVICE int64_t StageBytes() const { return stream_bytes / 2 * rans::kMostBytes + 16; }
  CAIRN_DEVICE int64_t StepAt() const { return int64_t{2} * sink * dim; }
  CAIRN_DEVICE int64_t AnchorClassAt() const { return StepAt() + 2; }
  CAIRN_DEVICE int64_t ClassesAt() const { return StepAt() + 3; }
  // Behind the lengths of the two streams.
  CAIRN_DEVICE int64_t StreamsAt() const { return 8 + heads * header_bytes; }
  // The numbers of a head in a stream: its anchors, then its channels.
  CAIRN_DEVICE uint16_t* NumbersOf(int stream, int head) const {
    const int64_t at = stream * stream_bytes + int64_t{head} * (rows + 1) * half * 2;
    return Global(reinterpret_cast<uint16_t*>(numbers + at));
  }
};

CAIRN_DEVICE CacheGenPlace SizesOf(const CacheGenBatch& batch, const CacheGenSlice& slice,
                                   int plane) {
  const CacheGenPlane& of = batch.planes[plane];
  CacheGenPlace place;
  place.heads = of.heads;
  place.dim = of.dim;
  place.half = of.dim / 2;
  place.rows = slice.tokens - slice.sink;
  place.sink = slice.sink;
  place.header_bytes = place.StepAt() + 3 + place.half;
  place.stream_bytes = int64_t{place.heads} * (place.rows + 1) * place.half * 2;
  return place;
}
// The lengths of the four streams, then keys, then values.
CAIRN_DEVICE uint32_t* LengthsOf(const CacheGenSlice& slice) {
  return Global(reinterpret_cast<uint32_t*>(slice.scratch));
}
CAIRN_DEVICE CacheGenPlace OpenPlace(const CacheGenBatch& batch, const CacheGenSlice& slice,
                                     int plane) {
  uint8_t* at = slice.scratch + 16;
  CacheGenPlace place;
  for (int p = 0; p <= plane; ++p) {
    place = SizesOf(batch, slice, p);
    place.numbers = at;
    place.headers = at + 2 * place.stream_bytes;
    place.stage = place.headers + (place.heads * place.header_bytes + 15) / 16 * 16;
    at = place.stage + 2 * place.StageBytes();
  }
  return place;
}

CAIRN_DEVICE void ReportTo(const CacheGenSlice& slice, uint32_t faults) {
  if (faults != 0) atomicOr(Global(slice.faults), faults);
}
// False: the slice must not be touched.
CAIRN_DEVICE bool MayTouch(const CacheGenSlice& slice, uint32_t faults) {
  if (slice.wrong_length) {
    if (threadIdx.x == 0) ReportTo(slice, kLengthFault);
    return false;
  }
  return (LoadAtomic(Global(slice.faults)) & faults) == 0;
}

CAIRN_DEVICE Head HeadOf(const CacheGenBatch& batch, const CacheGenSlice& slice, int plane,
                         int head) {
  const CacheGenPlane& of = batch.planes[plane];
  Head h;
  h.numbers = (plane == 0 ? slice.numbers[0] : slice.numbers[1]) + head * of.head_stride;
  h.stride = of.token_stride;
  h.dim = of.dim;
  h.sink = slice.sink;
  h.rows = slice.tokens - slice.sink;
  h.bfloat16 = batch.bfloat16;
  h.faults = slice.faults;
  return h;
}
CAIRN_DEVICE uint32_t HalfNumberAt(const Head& head, int token, int column, uint32_t* faults) {
  const uint32_t bits = NumberAt(head, token, column);
  return head.bfloat16 ? HalfOfBfloat16(bits, faults) : bits;
}

CAIRN_DEVICE uint32_t Load4(const uint8_t* p) { return Load2(p) | Load2(p + 2) << 16; }
CAIRN_DEVICE void Store4(uint8_t* p, uint32_t bits) {
  Store2(p, bits & 0xffff);
  Store2(p + 2, bits >> 16);
}

CAIRN_DEVICE uint64_t MostBytes(const CacheGenBatch& batch, const CacheGenSlice& slice) {
  int64_t numbers = 0;
  for (int p = 0; p < 2; ++p) numbers += int64_t{batch.planes[p].heads} * batch.planes[p].dim;
  return static_cast<uint64_t>(1 + 2 * slice.tokens * numbers);
}

// Which stream a lane has.
struct StreamIndex {
  int slice = 0;
  int plane = 0;
  int stream = 0;
};
CAIRN_DEVICE StreamIndex StreamOfLane() {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  return {i / 4, i / 2 % 2, i % 2};
}

// The class of channel `c` of a head, less the base.
CAIRN_DEVICE int ClassOfChannel(const uint8_t* header, const CacheGenPlace& place, int c) {
  const int pair = *Global(header + place.ClassesAt() + c / 2);
  return c % 2 == 0 ? pair & 15 : pair >> 4;
}

}  // namespace cairn::kernels::cuda
