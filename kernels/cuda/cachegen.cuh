#pragma once
// cachegen: whole multiples of a step, entropy-coded (docs/formats/codecs.md). The numbers of a
// slice wait in its scratch between launches, in the order of the streams: for each head the
// anchors of a stream's channels, then these channels one after another, all plus kLatticeZero.
//
//   encode   model    a head: step, numbers, anchors, classes
//            streams  a stream: one lane, backwards into the scratch
//            slices   a slice: how long it is, and all bytes to their place
//   decode   streams  a stream: one lane
//            rows     a head

#include "kernels/cuda/lattice.cuh"
#include "kernels/cuda/rans.cuh"

namespace cairn::kernels::cuda {

constexpr int kStreamThreads = 128;
constexpr int kModelThreads = 128;
constexpr int kSliceThreads = 256;
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
  int64_t header_bytes = 0;    // Of a head: sink rows, step, class of the anchors, classes.
  int64_t stream_bytes = 0;    // The numbers of one stream.
  uint8_t* numbers = nullptr;  // Of the first stream, then the second.
  uint8_t* headers = nullptr;
  uint8_t* stage = nullptr;  // Where streams are written.

  CAIRN_DEVICE int64_t StageBytes() const { return stream_bytes / 2 * rans::kMostBytes + 16; }
  CAIRN_DEVICE int64_t StepAt() const { return int64_t{2} * sink * dim; }
  CAIRN_DEVICE int64_t AnchorClassAt() const { return StepAt() + 2; }
  CAIRN_DEVICE int64_t ClassesAt() const { return StepAt() + 3; }
  // Behind the lengths of the two streams.
  CAIRN_DEVICE int64_t StreamsAt() const { return 8 + heads * header_bytes; }
  // Of a head in a stream: its anchors, then its channels.
  CAIRN_DEVICE uint16_t* NumbersOf(int stream, int head) const {
    const int64_t at = stream * stream_bytes + int64_t{head} * (rows + 1) * half * 2;
    return Global(reinterpret_cast<uint16_t*>(numbers + at));
  }
};

CAIRN_DEVICE CacheGenPlace PlaceOf(const CacheGenBatch& batch, const CacheGenSlice& slice,
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
    place = PlaceOf(batch, slice, p);
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
CAIRN_DEVICE uint32_t HalfOf(const Head& head, int token, int column, uint32_t* faults) {
  const uint32_t bits = NumberAt(head, token, column);
  return head.bfloat16 ? HalfOfBfloat16(bits, faults) : bits;
}

CAIRN_DEVICE uint32_t Load4(const uint8_t* p) { return Load2(p) | Load2(p + 2) << 16; }
CAIRN_DEVICE void Store4(uint8_t* p, uint32_t bits) {
  Store2(p, bits & 0xffff);
  Store2(p + 2, bits >> 16);
}

// ---- encoding ----

CAIRN_DEVICE int64_t FloorDivide(int64_t a, int64_t b) {
  return a >= 0 ? a / b : -((-a + b - 1) / b);
}

// Blocks are (1, head, 2 * slice + plane).
CAIRN_DEVICE void CacheGenModel(const CacheGenBatch& batch) {
  SharedArrays shared;
  float* const parts = shared.Take<float>(16);
  auto* const step = shared.Take<uint32_t>(1);
  auto* const squares_of_anchors = shared.Take<unsigned long long>(1);
  auto* const classes = shared.Take<uint8_t>(kMaxHeadDim);
  const CacheGenSlice& slice = batch.slices[blockIdx.z / 2];
  const int plane = static_cast<int>(blockIdx.z % 2), h = static_cast<int>(blockIdx.y);
  if (h >= batch.planes[plane].heads || !MayTouch(slice, 0)) return;
  const CacheGenPlace place = OpenPlace(batch, slice, plane);
  const Head head = HeadOf(batch, slice, plane, h);
  uint8_t* const header = place.headers + h * place.header_bytes;
  const int thread = static_cast<int>(threadIdx.x), dim = place.dim, rows = place.rows;
  uint32_t faults = 0;
  for (int i = thread; i < place.sink * dim; i += kModelThreads) {
    const uint32_t half = HalfOf(head, i / dim, i % dim, &faults);
    if (!IsFinite(half)) faults |= kNonFiniteFault;
    Store2(header + 2 * i, half);
  }
  if (rows == 0) {
    Report(head, faults);
    return;
  }
  // As LatticeEncodeRows.
  if (thread < 16) {
    float sum = 0.0f;
    for (int row = 0; row < rows; ++row) {
      for (int column = thread; column < dim; column += 16) {
        const float x = FromHalf(HalfOf(head, place.sink + row, column, &faults));
        sum += x * x;
      }
    }
    parts[thread] = sum;
  }
  if (thread == 0) *squares_of_anchors = 0;
  __syncthreads();
  if (thread == 0) {
    *step = LatticeStep(parts, rows * dim, batch.planes[plane].step64);
    Store2(header + place.StepAt(), *step);
  }
  __syncthreads();
  const float inverse = Reciprocal(*step);
  const int base = batch.planes[plane].class_base;
  for (int c = thread; c < dim; c += kModelThreads) {
    const int stream = c / place.half, channel = c % place.half;
    uint16_t* const out = place.NumbersOf(stream, h);
    uint16_t* const run = out + place.half + int64_t{channel} * rows;
    int64_t sum = 0, squares = 0;
    for (int row = 0; row < rows; ++row) {
      const uint32_t half = HalfOf(head, place.sink + row, c, &faults);
      if (!IsFinite(half)) faults |= kNonFiniteFault;
      const int code = LatticeCode(FromHalf(half), inverse);
      run[row] = static_cast<uint16_t>(code);
      const int64_t n = code - kLatticeZero;
      sum += n;
      squares += n * n;
    }
    const int64_t mean = FloorDivide(2 * sum + rows, int64_t{2} * rows);
    out[channel] = static_cast<uint16_t>(mean + kLatticeZero);
    const int64_t spread = squares - 2 * mean * sum + rows * mean * mean;
    classes[c] = static_cast<uint8_t>(rans::ClassOf(spread, rows, base) - base);
    atomicAdd(squares_of_anchors, static_cast<unsigned long long>(mean * mean));
  }
  __syncthreads();
  if (thread == 0) {
    const auto squares = static_cast<int64_t>(*squares_of_anchors);
    *Global(header + place.AnchorClassAt()) =
        static_cast<uint8_t>(rans::ClassOf(squares, dim, base) - base);
  }
  for (int i = thread; i < dim / 2; i += kModelThreads) {
    *Global(header + place.ClassesAt() + i) =
        static_cast<uint8_t>(classes[2 * i] | classes[2 * i + 1] << 4);
  }
  Report(head, faults);
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

CAIRN_DEVICE void CacheGenEncodeStreams(const CacheGenBatch& batch) {
  SharedArrays shared;
  const rans::Tables<false> tables(&shared);
  tables.Build();
  const StreamIndex index = StreamOfLane();
  if (index.slice >= batch.count) return;
  const CacheGenSlice& slice = batch.slices[index.slice];
  if (slice.wrong_length) return;
  const CacheGenPlace place = OpenPlace(batch, slice, index.plane);
  if (place.heads == 0 || place.rows == 0) return;
  const int base = batch.planes[index.plane].class_base;
  rans::Writer writer(place.stage + (index.stream + 1) * place.StageBytes());
  for (int h = place.heads - 1; h >= 0; --h) {
    const uint8_t* const header = place.headers + h * place.header_bytes;
    const uint16_t* const anchors = place.NumbersOf(index.stream, h);
    for (int d = place.half - 1; d >= 0; --d) {
      const rans::Class c =
          rans::ClassAt(base + ClassOfChannel(header, place, index.stream * place.half + d));
      const int anchor = anchors[d];
      const uint16_t* const run = anchors + place.half + int64_t{d} * place.rows;
      for (int row = place.rows - 1; row >= 0; --row) writer.Put(tables, c, run[row] - anchor);
    }
    const rans::Class c = rans::ClassAt(base + *Global(header + place.AnchorClassAt()));
    for (int d = place.half - 1; d >= 0; --d) writer.Put(tables, c, anchors[d] - kLatticeZero);
  }
  LengthsOf(slice)[2 * index.plane + index.stream] = writer.Finish();
}

// All threads of the block; runs do not overlap.
CAIRN_DEVICE void CopyRun(uint8_t* to, const uint8_t* from, int64_t bytes) {
  const int64_t chunks = bytes / 16;
  for (int64_t i = threadIdx.x; i < chunks; i += kSliceThreads) {
    Store16(to + 16 * i, Load16(from + 16 * i));
  }
  for (int64_t i = chunks * 16 + threadIdx.x; i < bytes; i += kSliceThreads) {
    *Global(to + i) = *Global(from + i);
  }
}

CAIRN_DEVICE uint64_t MostBytes(const CacheGenBatch& batch, const CacheGenSlice& slice) {
  int64_t numbers = 0;
  for (int p = 0; p < 2; ++p) numbers += int64_t{batch.planes[p].heads} * batch.planes[p].dim;
  return static_cast<uint64_t>(1 + 2 * slice.tokens * numbers);
}

// Bytes of the coded slice. 0: coding gains nothing.
CAIRN_DEVICE uint64_t CodedBytes(const CacheGenBatch& batch, const CacheGenSlice& slice) {
  const uint64_t most = MostBytes(batch, slice);
  uint64_t at = 1;
  for (int p = 0; p < 2; ++p) {
    const CacheGenPlace place = PlaceOf(batch, slice, p);
    if (place.heads == 0) continue;
    if (place.rows == 0) return 0;
    at += static_cast<uint64_t>(place.StreamsAt()) + LengthsOf(slice)[2 * p] +
          LengthsOf(slice)[2 * p + 1];
    if (at > most) return 0;
  }
  return at;
}

// Every number of a slice as it comes. All threads of the block.
CAIRN_DEVICE void PutRawSlice(const CacheGenBatch& batch, const CacheGenSlice& slice) {
  uint8_t* to = slice.encoded + 1;
  for (int p = 0; p < 2; ++p) {
    const int heads = batch.planes[p].heads, chunks = batch.planes[p].dim / 8;
    for (int h = 0; h < heads; ++h) {
      const Head head = HeadOf(batch, slice, p, h);
      uint32_t faults = 0;  // They are known.
      for (int i = static_cast<int>(threadIdx.x); i < slice.tokens * chunks; i += kSliceThreads) {
        Store16(to + 16 * int64_t{i}, Load8Halves(head, i / chunks, i % chunks * 8, &faults));
      }
      to += 16 * int64_t{slice.tokens} * chunks;
    }
  }
}

// Blocks are (1, 1, slice).
CAIRN_DEVICE void CacheGenEncodeSlice(const CacheGenBatch& batch) {
  const CacheGenSlice& slice = batch.slices[blockIdx.z];
  const bool first = threadIdx.x == 0;
  // A slice with faults is refused.
  if (!MayTouch(slice, ~0u)) {
    if (first) *Global(slice.encoded_bytes) = 0;
    return;
  }
  const uint64_t coded = CodedBytes(batch, slice);
  if (first) {
    *Global(slice.encoded) = static_cast<uint8_t>(coded == 0 ? kRawMode : kCodedMode);
    *Global(slice.encoded_bytes) = coded == 0 ? MostBytes(batch, slice) : coded;
  }
  if (coded == 0) {
    PutRawSlice(batch, slice);
    return;
  }
  uint8_t* to = slice.encoded + 1;
  for (int p = 0; p < 2; ++p) {
    const CacheGenPlace place = OpenPlace(batch, slice, p);
    if (place.heads == 0) continue;
    const uint32_t* const lengths = LengthsOf(slice) + 2 * p;
    if (first) {
      Store4(to, lengths[0]);
      Store4(to + 4, lengths[1]);
    }
    CopyRun(to + 8, place.headers, place.heads * place.header_bytes);
    to += place.StreamsAt();
    for (int s = 0; s < 2; ++s) {
      CopyRun(to, place.stage + (s + 1) * place.StageBytes() - lengths[s], lengths[s]);
      to += lengths[s];
    }
  }
}

// ---- decoding ----

// Where the parts of an encoded slice are. All offsets are within the slice.
struct EncodedSlice {
  bool good = false;
  bool raw = false;
  uint64_t headers[2] = {};  // With the lengths before them.
  uint64_t stream = 0;       // The wanted one.
  uint32_t length = 0;
};

CAIRN_DEVICE EncodedSlice Parse(const CacheGenBatch& batch, const CacheGenSlice& slice,
                                const StreamIndex& wanted) {
  EncodedSlice parsed;
  const uint32_t mode = *Global(slice.encoded);
  if (mode == kRawMode) {
    parsed.raw = true;
    parsed.good = slice.bytes == MostBytes(batch, slice);
    return parsed;
  }
  if (mode != kCodedMode || slice.tokens - slice.sink <= 0) return parsed;
  uint64_t at = 1;
  CAIRN_UNROLL
  for (int p = 0; p < 2; ++p) {
    const CacheGenPlace place = PlaceOf(batch, slice, p);
    parsed.headers[p] = at;
    if (place.heads == 0) continue;
    if (static_cast<uint64_t>(place.StreamsAt()) > slice.bytes - at) return parsed;
    const uint8_t* const lengths = slice.encoded + at;
    at += static_cast<uint64_t>(place.StreamsAt());
    CAIRN_UNROLL
    for (int s = 0; s < 2; ++s) {
      const uint32_t length = Load4(lengths + 4 * s);
      if (length < 4 || length % 2 != 0 || length > slice.bytes - at) return parsed;
      if (p == wanted.plane && s == wanted.stream) {
        parsed.stream = at;
        parsed.length = length;
      }
      at += length;
    }
  }
  parsed.good = at == slice.bytes;
  return parsed;
}

// Puts numbers by 16 bytes.
class NumberWriter {
 public:
  CAIRN_DEVICE explicit NumberWriter(uint16_t* to) : to_(reinterpret_cast<uint4*>(to)) {}
  CAIRN_DEVICE void Put(uint32_t number) {
    v_ = {v_.x >> 16 | v_.y << 16, v_.y >> 16 | v_.z << 16, v_.z >> 16 | v_.w << 16,
          v_.w >> 16 | number << 16};
    if (++count_ % 8 == 0) *Global(to_++) = v_;
  }

 private:
  uint4* to_;  // Aligned.
  uint4 v_ = {};
  uint32_t count_ = 0;
};

CAIRN_DEVICE void CacheGenDecodeStreams(const CacheGenBatch& batch) {
  SharedArrays shared;
  const rans::Tables<true> tables(&shared);
  tables.Build();
  const StreamIndex index = StreamOfLane();
  if (index.slice >= batch.count) return;
  const CacheGenSlice& slice = batch.slices[index.slice];
  if (slice.wrong_length) {
    ReportTo(slice, kLengthFault);
    return;
  }
  if ((LoadAtomic(Global(slice.faults)) & kHashFault) != 0) return;
  const EncodedSlice parsed = Parse(batch, slice, index);
  if (!parsed.good) ReportTo(slice, kStreamFault);
  const CacheGenPlace place = OpenPlace(batch, slice, index.plane);
  if (!parsed.good || parsed.raw || place.heads == 0) return;
  const int base = batch.planes[index.plane].class_base;
  const uint8_t* header =
      slice.encoded + (index.plane == 0 ? parsed.headers[0] : parsed.headers[1]) + 8;
  rans::Reader reader(slice.encoded + parsed.stream, parsed.length);
  // A head's numbers, and so those of all heads, are a multiple of eight.
  NumberWriter writer(place.NumbersOf(index.stream, 0));
  bool good = true;
  for (int h = 0; h < place.heads && good; ++h, header += place.header_bytes) {
    const int anchor_class = *Global(header + place.AnchorClassAt());
    good = anchor_class < rans::kWindow;
    const rans::Class of_anchors = rans::ClassAt(base + (good ? anchor_class : 0));
    for (int d = 0; d < place.half; ++d) {
      writer.Put(static_cast<uint32_t>(reader.Number(tables, of_anchors) + kLatticeZero));
    }
    for (int d = 0; d < place.half; ++d) {
      const rans::Class c =
          rans::ClassAt(base + ClassOfChannel(header, place, index.stream * place.half + d));
      for (int row = 0; row < place.rows; ++row) {
        writer.Put(static_cast<uint32_t>(reader.Number(tables, c) + kLatticeZero));
      }
    }
  }
  if (!good || !reader.AtEnd()) ReportTo(slice, kStreamFault);
}

constexpr int kTurnTile = 64;  // Channels and rows that change places at a time.
constexpr int kTurnStride = kTurnTile + 2;

CAIRN_DEVICE void DecodeRawHead(const CacheGenBatch& batch, const CacheGenSlice& slice, int plane,
                                int h) {
  const Head head = HeadOf(batch, slice, plane, h);
  const CacheGenPlane& keys = batch.planes[0];
  const int64_t numbers_before = (plane == 0 ? 0 : int64_t{keys.heads} * slice.tokens * keys.dim) +
                                 int64_t{h} * slice.tokens * head.dim;
  const uint8_t* const from = slice.encoded + 1 + 2 * numbers_before;
  const int chunks = head.dim / 8;
  uint32_t faults = 0;
  for (int i = static_cast<int>(threadIdx.x); i < slice.tokens * chunks; i += kModelThreads) {
    const uint4 halves = Load16(from + 16 * int64_t{i});
    if (!AllFinite(halves)) faults |= kScaleFault;
    Store8Halves(head, i / chunks, i % chunks * 8, halves);
  }
  Report(head, faults);
}

// Blocks are (1, head, 2 * slice + plane).
CAIRN_DEVICE void CacheGenDecodeRows(const CacheGenBatch& batch) {
  SharedArrays shared;
  auto* const tile = shared.Take<uint16_t>(kTurnTile * kTurnStride);
  const CacheGenSlice& slice = batch.slices[blockIdx.z / 2];
  const int plane = static_cast<int>(blockIdx.z % 2), h = static_cast<int>(blockIdx.y);
  if (h >= batch.planes[plane].heads) return;
  if (!MayTouch(slice, kHashFault | kStreamFault)) return;
  const EncodedSlice parsed = Parse(batch, slice, {});
  if (parsed.raw) {
    DecodeRawHead(batch, slice, plane, h);
    return;
  }
  const CacheGenPlace place = OpenPlace(batch, slice, plane);
  const Head head = HeadOf(batch, slice, plane, h);
  const uint8_t* const header = slice.encoded +
                                (plane == 0 ? parsed.headers[0] : parsed.headers[1]) + 8 +
                                h * place.header_bytes;
  const int thread = static_cast<int>(threadIdx.x), chunks = place.dim / 8;
  uint32_t faults = 0;
  for (int i = thread; i < place.sink * chunks; i += kModelThreads) {
    const uint4 halves = Load16(header + 16 * int64_t{i});
    if (!AllFinite(halves)) faults |= kScaleFault;
    Store8Halves(head, i / chunks, i % chunks * 8, halves);
  }
  const uint32_t step_bits = Load2(header + place.StepAt());
  if (!IsScale(step_bits)) faults |= kScaleFault;
  const float step = FromHalf(step_bits);
  for (int first = 0; first < place.dim; first += kTurnTile) {
    const int channels = place.dim - first < kTurnTile ? place.dim - first : kTurnTile;
    for (int row = 0; row < place.rows; row += kTurnTile) {
      const int rows = place.rows - row < kTurnTile ? place.rows - row : kTurnTile;
      for (int i = thread; i < channels * kTurnTile; i += kModelThreads) {
        const int c = first + i / kTurnTile, r = i % kTurnTile;
        if (r >= rows) continue;
        const uint16_t* const anchors = place.NumbersOf(c / place.half, h);
        const int channel = c % place.half;
        const uint32_t n = anchors[place.half + int64_t{channel} * place.rows + row + r];
        tile[i / kTurnTile * kTurnStride + r] =
            static_cast<uint16_t>(anchors[channel] + n - kLatticeZero);
      }
      __syncthreads();
      for (int i = thread; i < rows * (channels / 8); i += kModelThreads) {
        const int r = i / (channels / 8), c = i % (channels / 8) * 8;
        uint32_t halves[8];
        CAIRN_UNROLL
        for (int k = 0; k < 8; ++k) {
          const int n = static_cast<int>(tile[(c + k) * kTurnStride + r]) - kLatticeZero;
          halves[k] = Decoded(static_cast<float>(n) * step);
        }
        Store8Halves(head, place.sink + row + r, first + c, PackHalves(halves));
      }
      __syncthreads();
    }
  }
  Report(head, faults);
}

}  // namespace cairn::kernels::cuda

CAIRN_KERNEL void __launch_bounds__(128)
    cairn_cachegen_model(CAIRN_PARAMETER(cairn::kernels::cuda::CacheGenBatch) batch) {
  cairn::kernels::cuda::CacheGenModel(batch);
}
CAIRN_KERNEL void __launch_bounds__(128)
    cairn_cachegen_encode_streams(CAIRN_PARAMETER(cairn::kernels::cuda::CacheGenBatch) batch) {
  cairn::kernels::cuda::CacheGenEncodeStreams(batch);
}
CAIRN_KERNEL void __launch_bounds__(256)
    cairn_cachegen_encode_slices(CAIRN_PARAMETER(cairn::kernels::cuda::CacheGenBatch) batch) {
  cairn::kernels::cuda::CacheGenEncodeSlice(batch);
}
CAIRN_KERNEL void __launch_bounds__(128)
    cairn_cachegen_decode_streams(CAIRN_PARAMETER(cairn::kernels::cuda::CacheGenBatch) batch) {
  cairn::kernels::cuda::CacheGenDecodeStreams(batch);
}
CAIRN_KERNEL void __launch_bounds__(128)
    cairn_cachegen_decode_rows(CAIRN_PARAMETER(cairn::kernels::cuda::CacheGenBatch) batch) {
  cairn::kernels::cuda::CacheGenDecodeRows(batch);
}
