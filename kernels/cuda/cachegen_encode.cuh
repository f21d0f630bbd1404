#pragma once
// Encoding slices of cachegen: see cachegen.cuh.

#include "kernels/cuda/cachegen.cuh"
#include "kernels/cuda/lattice.cuh"

namespace cairn::kernels::cuda {

constexpr int kSliceThreads = 256;

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
  for (int i = thread; i < place.sink * dim; i += kHeadThreads) {
    const uint32_t half = HalfNumberAt(head, i / dim, i % dim, &faults);
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
        const float x = FromHalf(HalfNumberAt(head, place.sink + row, column, &faults));
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
  for (int c = thread; c < dim; c += kHeadThreads) {
    const int stream = c / place.half, channel = c % place.half;
    uint16_t* const out = place.NumbersOf(stream, h);
    uint16_t* const run = out + place.half + int64_t{channel} * rows;
    int64_t sum = 0, squares = 0;
    for (int row = 0; row < rows; ++row) {
      const uint32_t half = HalfNumberAt(head, place.sink + row, c, &faults);
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
  for (int i = thread; i < dim / 2; i += kHeadThreads) {
    *Global(header + place.ClassesAt() + i) =
        static_cast<uint8_t>(classes[2 * i] | classes[2 * i + 1] << 4);
  }
  Report(head, faults);
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

// Bytes of the coded slice. 0: coding gains nothing.
CAIRN_DEVICE uint64_t CodedBytes(const CacheGenBatch& batch, const CacheGenSlice& slice) {
  const uint64_t most = MostBytes(batch, slice);
  uint64_t at = 1;
  for (int p = 0; p < 2; ++p) {
    const CacheGenPlace place = SizesOf(batch, slice, p);
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

}  // namespace cairn::kernels::cuda

CAIRN_KERNEL void __launch_bounds__(128)
    cairn_cachegen_model(CAIRN_PARAMETER(cairn::kernels::cuda::CacheGenBatch) batch) {
  cairn::kernels::cuda::CacheGenModel(batch);
}
CAIRN_KERNEL void __launch_bounds__(64)
    cairn_cachegen_encode_streams(CAIRN_PARAMETER(cairn::kernels::cuda::CacheGenBatch) batch) {
  cairn::kernels::cuda::CacheGenEncodeStreams(batch);
}
CAIRN_KERNEL void __launch_bounds__(256)
    cairn_cachegen_encode_slices(CAIRN_PARAMETER(cairn::kernels::cuda::CacheGenBatch) batch) {
  cairn::kernels::cuda::CacheGenEncodeSlice(batch);
}
