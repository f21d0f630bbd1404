#pragma once
// Decoding slices of cachegen: see cachegen.cuh.

#include "kernels/cuda/cachegen.cuh"

namespace cairn::kernels::cuda {

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
    const CacheGenPlace place = SizesOf(batch, slice, p);
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

// Puts numbers by 16 bytes. One thread uses it.
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
  for (int i = static_cast<int>(threadIdx.x); i < slice.tokens * chunks; i += kHeadThreads) {
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
  for (int i = thread; i < place.sink * chunks; i += kHeadThreads) {
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
      for (int i = thread; i < channels * kTurnTile; i += kHeadThreads) {
        const int c = first + i / kTurnTile, r = i % kTurnTile;
        if (r >= rows) continue;
        const uint16_t* const anchors = place.NumbersOf(c / place.half, h);
        const int channel = c % place.half;
        const uint32_t n = anchors[place.half + int64_t{channel} * place.rows + row + r];
        tile[i / kTurnTile * kTurnStride + r] =
            static_cast<uint16_t>(anchors[channel] + n - kLatticeZero);
      }
      __syncthreads();
      for (int i = thread; i < rows * (channels / 8); i += kHeadThreads) {
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

CAIRN_KERNEL void __launch_bounds__(64)
    cairn_cachegen_decode_streams(CAIRN_PARAMETER(cairn::kernels::cuda::CacheGenBatch) batch) {
  cairn::kernels::cuda::CacheGenDecodeStreams(batch);
}
CAIRN_KERNEL void __launch_bounds__(128)
    cairn_cachegen_decode_rows(CAIRN_PARAMETER(cairn::kernels::cuda::CacheGenBatch) batch) {
  cairn::kernels::cuda::CacheGenDecodeRows(batch);
}
