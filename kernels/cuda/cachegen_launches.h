#pragma once
// Which kernels slices of cachegen take. `launch`: see launches.h.

#include <algorithm>
#include <memory>

#include "kernels/cuda/cachegen_decode.cuh"
#include "kernels/cuda/cachegen_encode.cuh"
#include "kernels/cuda/shape.h"

namespace cairn::kernels::cuda {

// Where the window of classes begins: halving the step doubles the numbers, and a class stands for
// sqrt(2) of them.
constexpr int ClassBase(int64_t step64) {
  int base = 0;
  for (; step64 < 4; step64 *= 2) base += 2;
  return base;
}

inline void FillCacheGenBatch(const SliceForm& form, const SliceTask* slices, int64_t count,
                              bool encodes, CacheGenBatch* batch) {
  for (int p = 0; p < 2; ++p) {
    const PlaneForm& plane = p == 0 ? form.k : form.v;
    batch->planes[p] = {plane.head_stride, plane.token_stride, plane.heads,
                        plane.dim,         plane.parameter,    ClassBase(plane.parameter)};
  }
  batch->count = static_cast<int32_t>(count);
  batch->bfloat16 = form.bfloat16;
  for (int64_t i = 0; i < count; ++i) {
    const SliceTask& slice = slices[i];
    const auto most = static_cast<uint64_t>(SliceBytes(form, slice));
    CacheGenSlice& to = batch->slices[i];
    to.encoded = reinterpret_cast<uint8_t*>(slice.encoded);
    to.scratch = reinterpret_cast<uint8_t*>(slice.scratch);
    to.numbers[0] = slice.k;
    to.numbers[1] = slice.v;
    to.faults = slice.faults;
    to.encoded_bytes = slice.encoded_bytes;
    to.bytes = slice.bytes;
    to.tokens = slice.tokens;
    to.sink = static_cast<int32_t>(SinkRows(form, slice));
    to.wrong_length = encodes ? slice.bytes < most : slice.bytes == 0 || slice.bytes > most;
  }
}

template <typename Launch>
void LaunchCacheGen(Launch launch, const SlicesArgs& a, bool encodes) {
  const auto batch = std::make_unique<CacheGenBatch>();  // Too large for a small stack.
  const auto heads = static_cast<unsigned>(std::max(a.form.k.heads, a.form.v.heads));
  for (int64_t first = 0; first < a.count; first += kMostCacheGenSlices) {
    const int64_t count = std::min<int64_t>(kMostCacheGenSlices, a.count - first);
    FillCacheGenBatch(a.form, a.slices + first, count, encodes, batch.get());
    const auto slices = static_cast<unsigned>(count);
    const dim3 streams{(4 * slices + kStreamThreads - 1) / kStreamThreads, 1, 1};
    const dim3 planes{1, std::max(1u, heads), 2 * slices};
    if (encodes) {
      launch(cairn_cachegen_model, Shape{planes, kHeadThreads, 96 + kMaxHeadDim}, *batch);
      launch(cairn_cachegen_encode_streams,
             Shape{streams, kStreamThreads, rans::Tables<false>::kSharedBytes}, *batch);
      launch(cairn_cachegen_encode_slices, Shape{{1, 1, slices}, kSliceThreads, 0}, *batch);
    } else {
      launch(cairn_cachegen_decode_streams,
             Shape{streams, kStreamThreads, rans::Tables<true>::kSharedBytes}, *batch);
      launch(cairn_cachegen_decode_rows,
             Shape{planes, kHeadThreads, kTurnTile * kTurnStride * sizeof(uint16_t)}, *batch);
    }
  }
}

}  // namespace cairn::kernels::cuda
