#pragma once
// Which kernels an operation launches, and in what shape. Whoever launches them is a parameter:
//
//   launch(kernel, Shape{blocks, threads, shared_bytes}, arguments...)
//
// which queues the kernel on a stream (a driver) or runs it (the tests' emulation). Lists longer
// than kernel parameters hold become several launches.

#include <algorithm>
#include <memory>

#include "cairn/kernels/codec/slice_kernels.h"
#include "kernels/cuda/cachegen_launches.h"
#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/int4.cuh"
#include "kernels/cuda/int8.cuh"
#include "kernels/cuda/mixed.cuh"
#include "kernels/cuda/pages.cuh"
#include "kernels/cuda/raw.cuh"
#include "kernels/cuda/shape.h"
#include "kernels/cuda/turbo.cuh"
#include "kernels/cuda/xxh3.cuh"

namespace cairn::kernels::cuda {

using PlaneKernel = void (*)(CAIRN_PARAMETER(PlaneBatch));

struct PlaneLaunch {
  PlaneKernel kernel = nullptr;
  unsigned threads = 128;
  size_t shared_bytes = 0;
  int64_t units = 1;  // Blocks for one head.
};

// How many blocks of `threads` threads a head of `work` pieces gets: each thread has about four.
constexpr int64_t BlocksFor(int64_t work, int64_t threads) {
  return std::max<int64_t>(1, (work + 4 * threads - 1) / (4 * threads));
}

template <int kDim>
PlaneLaunch TurboLaunch(PlaneKernel encode, PlaneKernel decode, bool encodes, int64_t tokens) {
  using Sizes = TurboShape<kDim>;
  return {encodes ? encode : decode, kTurboThreads,
          encodes ? Sizes::kEncodeSharedBytes : Sizes::kDecodeSharedBytes,
          std::max<int64_t>(1, (tokens + kTurboRows - 1) / kTurboRows)};
}

// For heads of at most `tokens` tokens. REQUIRES: a shape that the codec supports.
inline PlaneLaunch LaunchOf(const PlaneForm& plane, bool encodes, int64_t tokens) {
  const int64_t dim = plane.dim, chunks = tokens * ((dim + 15) / 16);
  switch (plane.coding) {
    case HeadCoding::kRaw:
      return {encodes ? cairn_raw_encode : cairn_raw_decode, 256, 0,
              BlocksFor(dim % 8 == 0 ? 2 * chunks : tokens * dim, 256)};
    case HeadCoding::kInt8:
      return {encodes ? cairn_int8_encode : cairn_int8_decode, 128, 0, BlocksFor(chunks, 128)};
    case HeadCoding::kFp8:
      return {encodes ? cairn_fp8_encode : cairn_fp8_decode, 128, 0, BlocksFor(chunks, 128)};
    case HeadCoding::kInt4Token:
      return {encodes ? cairn_int4_token_encode : cairn_int4_token_decode, 128, 0,
              BlocksFor(chunks, 128)};
    case HeadCoding::kInt4Channel:
      return {encodes ? cairn_int4_channel_encode : cairn_int4_channel_decode, 128,
              encodes ? 0 : kChannelSharedBytes,
              (tokens + plane.parameter - 1) / plane.parameter + 1};
    case HeadCoding::kMixed:
      if (encodes) return {cairn_mixed_encode, kMixedThreads, kMixedSharedBytes, 1};
      return {cairn_mixed_decode, kMixedThreads, 0,
              std::max<int64_t>(1, (tokens + kMixedRows - 1) / kMixedRows)};
    case HeadCoding::kCacheGen:
      break;  // See cachegen_launches.h.
    case HeadCoding::kTurbo:
      switch (dim) {
        case 64:
          return TurboLaunch<64>(cairn_turbo_encode_64, cairn_turbo_decode_64, encodes, tokens);
        case 128:
          return TurboLaunch<128>(cairn_turbo_encode_128, cairn_turbo_decode_128, encodes, tokens);
        case 256:
          return TurboLaunch<256>(cairn_turbo_encode_256, cairn_turbo_decode_256, encodes, tokens);
        default:
          return TurboLaunch<512>(cairn_turbo_encode_512, cairn_turbo_decode_512, encodes, tokens);
      }
  }
  return {};
}

// A plane of some slices of one form.
inline void FillBatch(const SliceForm& form, bool values, const SliceTask* slices, int64_t count,
                      PlaneBatch* batch) {
  const PlaneForm& plane = values ? form.v : form.k;
  batch->head_stride = plane.head_stride;
  batch->token_stride = plane.token_stride;
  batch->dim = plane.dim;
  // By channel all rows of a block may share a group: no block has more.
  batch->parameter = std::min(plane.parameter, 65535);
  batch->row_bytes = static_cast<int32_t>(RowBytes(plane));
  batch->outliers = plane.outliers;
  batch->values = values;
  batch->bfloat16 = form.bfloat16;
  batch->signs = form.signs;
  for (int64_t i = 0; i < count; ++i) {
    const SliceTask& slice = slices[i];
    const int64_t sink = SinkRows(form, slice);
    SlicePlane& to = batch->slices[i];
    to.encoded = reinterpret_cast<uint8_t*>(slice.encoded);
    if (values) to.encoded += form.k.heads * HeadBytes(form.k, sink, slice.tokens);
    to.numbers = values ? slice.v : slice.k;
    to.faults = slice.faults;
    to.head_bytes = HeadBytes(plane, sink, slice.tokens);
    to.tokens = slice.tokens;
    to.sink = static_cast<int32_t>(sink);
    to.layer = slice.layer;
    to.wrong_length = slice.bytes != static_cast<uint64_t>(SliceBytes(form, slice));
  }
}

template <typename Launch>
void LaunchSlices(Launch launch, const SlicesArgs& a, bool encodes) {
  if (IsCacheGen(a.form)) return LaunchCacheGen(launch, a, encodes);
  const auto batch = std::make_unique<PlaneBatch>();  // Too large for a small stack.
  for (int64_t first = 0; first < a.count; first += kMostSlices) {
    const int64_t count = std::min<int64_t>(kMostSlices, a.count - first);
    int64_t tokens = 0, sink = 0;
    for (int64_t i = first; i < first + count; ++i) {
      tokens = std::max<int64_t>(tokens, a.slices[i].tokens);
      sink = std::max(sink, SinkRows(a.form, a.slices[i]));
    }
    for (const bool values : {false, true}) {
      const PlaneForm& plane = values ? a.form.v : a.form.k;
      if (plane.heads == 0) continue;
      FillBatch(a.form, values, a.slices + first, count, batch.get());
      const auto run = [&](const PlaneLaunch& of) {
        const dim3 blocks{static_cast<unsigned>(of.units), static_cast<unsigned>(plane.heads),
                          static_cast<unsigned>(count)};
        launch(of.kernel, Shape{blocks, of.threads, of.shared_bytes}, *batch);
      };
      if (sink > 0) {
        run({encodes ? cairn_sink_encode : cairn_sink_decode, 256, 0,
             BlocksFor(sink * plane.dim, 256)});
      }
      run(LaunchOf(plane, encodes, tokens));
    }
  }
}

template <typename Launch>
void LaunchHashRuns(Launch launch, const HashRunsArgs& a) {
  const auto batch = std::make_unique<HashBatch>();
  for (int64_t first = 0; first < a.count; first += kMostRuns) {
    batch->count = static_cast<int32_t>(std::min<int64_t>(kMostRuns, a.count - first));
    std::copy_n(a.runs + first, batch->count, batch->runs);
    const int blocks = (batch->count + kHashRunsOfBlock - 1) / kHashRunsOfBlock;
    launch(cairn_hash_runs, Shape{{static_cast<unsigned>(blocks), 1, 1}, kHashThreads, 0}, *batch);
  }
}

template <typename Launch>
void LaunchPages(Launch launch, const MovePagesArgs& a, bool gathers) {
  const PageMap& pages = a.pages;
  const auto batch = std::make_unique<PageBatch>();
  batch->block_stride = a.block_stride;
  batch->stride = pages.stride;
  batch->piece_bytes = pages.piece_bytes;
  batch->bfloat16_pages = a.bfloat16_pages;
  batch->faults = a.faults;
  const int64_t units = BlocksFor(pages.piece_bytes / 16, kPageThreads);
  for (int64_t block = 0; block < pages.blocks; block += kMostPageBlocks) {
    const int64_t blocks = std::min<int64_t>(kMostPageBlocks, pages.blocks - block);
    std::copy_n(pages.index + block, blocks, batch->index);
    for (int64_t piece = 0; piece < pages.piece_count; piece += kMostPieces) {
      const int64_t pieces = std::min<int64_t>(kMostPieces, pages.piece_count - piece);
      std::copy_n(pages.pieces + piece, pieces, batch->pieces);
      batch->blocks = a.blocks + static_cast<uint64_t>(block) * a.block_stride +
                      static_cast<uint64_t>(piece) * pages.piece_bytes;
      launch(gathers ? cairn_gather_pages : cairn_scatter_pages,
             Shape{{static_cast<unsigned>(units), static_cast<unsigned>(pieces),
                    static_cast<unsigned>(blocks)},
                   kPageThreads,
                   0},
             *batch);
    }
  }
}

}  // namespace cairn::kernels::cuda
