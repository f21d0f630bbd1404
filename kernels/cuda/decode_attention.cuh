#pragma once
// Attention of decoded tokens. Blocks are (split of 512 keys, KV head, row). The query heads of the
// group are the rows of the small matrices, up to 16 of them. Each of the four warps takes every
// fourth tile of 16 keys with a maximum of its own, so there is no barrier but at the end, where
// the warps' sums are added in order. A second kernel adds the splits, in order, too. The length of
// a split is fixed, so a row has the same bits whatever else is in the batch.

#include "kernels/cuda/attention.cuh"

namespace cairn::kernels::cuda {

constexpr int kDecodeThreads = 128;
constexpr int kDecodeWarps = kDecodeThreads / kWarp;
constexpr int kDecodeQueries = 16;
constexpr int kDecodeKeys = 16;  // Keys of a tile.
constexpr int kDecodeStages = 3;
constexpr int kCombineThreads = 128;

template <int kDim>
struct DecodeShape {
  static constexpr int kTile = kDecodeKeys * kDim;  // Numbers of K, or of V.
  static constexpr int kWarpRing = kDecodeStages * 2 * kTile;
  static constexpr int kRing = kDecodeWarps * kWarpRing;
  static constexpr size_t kSharedBytes = (kRing + kDecodeQueries * kDim) * sizeof(uint16_t);
  // The ring becomes the place where warps meet.
  static_assert(kDecodeWarps * kDecodeQueries * (kDim + 2) * sizeof(float) <=
                kRing * sizeof(uint16_t));
};

// The keys of a split: rows [begin, end).
struct SplitKeys {
  KeyRows rows;
  int32_t begin = 0;
  int32_t end = 0;
};

CAIRN_DEVICE SplitKeys KeysOfSplit(const batch::KvForm& form, const batch::SequenceKv& sequence,
                                   int head, int split) {
  constexpr int kKeys = static_cast<int>(batch::kSplitKeys);
  const batch::KeptRows kept = KeptOf(form, sequence, head);
  const int of_prefix = (static_cast<int>(kept.rows) + kKeys - 1) / kKeys;
  SplitKeys keys;
  if (split < of_prefix) {
    keys.rows = RowsOfPrefix(form, kept);
  } else {
    keys.rows = RowsOfPages(form, sequence, head, static_cast<int>(sequence.tokens));
    split -= of_prefix;
  }
  keys.begin = split * kKeys;
  keys.end = keys.rows.count < keys.begin + kKeys ? keys.rows.count : keys.begin + kKeys;
  return keys;
}

// Copies of K and V of the 16 keys from `first` on; behind `end` come zeros.
template <int kDim>
CAIRN_DEVICE void FetchTile(const KeyRows& rows, int first, int end, int lane, uint16_t* k) {
  constexpr int kChunks = kDim / 8;
  const std::byte* const place = PlaceOf<kDim>(rows, first);  // A tile lies in one page.
  CAIRN_UNROLL
  for (int i = lane; i < kDecodeKeys * kChunks; i += kWarp) {
    const int r = i / kChunks, chunk = i % kChunks;
    const bool there = first + r < end;
    const std::byte* const from = place + (there ? r * kDim * 2 + chunk * 16 : 0);
    uint16_t* const to = k + Swizzled<kDim>(r, chunk);
    CopyAsyncOrZero(to, from + rows.k_offset, there);
    CopyAsyncOrZero(to + kDecodeKeys * kDim, from + rows.v_offset, there);
  }
}

// The state of a warp for its rows g and g + 8 so far.
template <int kDim>
struct RowSums {
  float values[kDim / 8][4] = {};
  float max[2] = {kNoScore, kNoScore};
  float sum[2] = {0.0f, 0.0f};  // The sums over this lane's keys.
};

template <int kDim>
CAIRN_DEVICE void AttendTile(const uint16_t* k, int keys, float scale, int lane,
                             const uint32_t (&queries)[kDim / 16][4], RowSums<kDim>* sums) {
  const uint16_t* const v = k + kDecodeKeys * kDim;
  float scores[2][4] = {};
  CAIRN_UNROLL
  for (int step = 0; step < kDim / 16; ++step) {
    uint32_t b[4];  // Keys 0 to 7 in both halves of the step's columns, then keys 8 to 15.
    LoadMatrices<false>(b, k + Swizzled<kDim>(lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2));
    MultiplyAdd<Number16::kHalf>(scores[0], queries[step], {b[0], b[1]});
    MultiplyAdd<Number16::kHalf>(scores[1], queries[step], {b[2], b[3]});
  }
  uint32_t weights[4];
  float rescale[2];
  WeighTile(scale, {keys, keys}, lane, scores, sums->max, sums->sum, rescale);
  WeightsOf16(scores[0], scores[1], weights);
  CAIRN_UNROLL
  for (int n = 0; n < kDim / 16; ++n) {
    uint32_t b[4];  // Columns 16 n to 16 n + 7 of keys 0 to 7 and 8 to 15, then the next columns.
    LoadMatrices<true>(b, v + Swizzled<kDim>(lane % 8 + lane / 8 % 2 * 8, 2 * n + lane / 16));
    CAIRN_UNROLL
    for (int half = 0; half < 2; ++half) {
      float(&c)[4] = sums->values[2 * n + half];
      CAIRN_UNROLL
      for (int i = 0; i < 4; ++i) c[i] *= rescale[i / 2];
      MultiplyAdd<Number16::kHalf>(c, weights, {b[2 * half], b[2 * half + 1]});
    }
  }
}

// Where the results of a split are.
struct SplitResults {
  float* values;   // [kDim]
  float* max_sum;  // [2]
};
CAIRN_DEVICE SplitResults ResultsOf(const batch::DecodeAttentionArgs& a, int64_t row, int64_t split,
                                    int64_t head, int dim) {
  const int64_t heads = static_cast<int64_t>(a.kv.kv_heads) * a.kv.group;
  const int64_t at = (row * a.most_splits + split) * heads + head;
  float* const behind = a.scratch + a.rows * a.most_splits * heads * dim;
  return {Global(a.scratch + at * dim), Global(behind + at * 2)};
}

// The four warps' sums of `count` queries, added in order. `values` is shared memory that nobody
// uses any more: [warp][query][kDim] of values, then maxima and sums.
template <int kDim, typename ResultsOfQuery>
CAIRN_DEVICE void AddWarps(const RowSums<kDim>& sums, float* values, int count,
                           ResultsOfQuery results_of) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  float* const stats = values + kDecodeWarps * kDecodeQueries * kDim;  // [warp][query][2]
  const int g = lane / 4, t = lane % 4;
  CAIRN_UNROLL
  for (int n = 0; n < kDim / 8; ++n) {
    CAIRN_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int r = warp * kDecodeQueries + g + i / 2 * 8;
      values[r * kDim + n * 8 + 2 * t + i % 2] = sums.values[n][i];
    }
  }
  if (t == 0) {
    CAIRN_UNROLL
    for (int r = 0; r < 2; ++r) {
      float* const stat = stats + (warp * kDecodeQueries + g + 8 * r) * 2;
      stat[0] = sums.max[r];
      stat[1] = sums.sum[r];
    }
  }
  __syncthreads();
  for (int i = thread; i < count * kDim; i += kDecodeThreads) {
    const int r = i / kDim, d = i % kDim;
    float top = kNoScore, sum = 0.0f, value = 0.0f;
    CAIRN_UNROLL
    for (int w = 0; w < kDecodeWarps; ++w) top = fmaxf(top, stats[(w * kDecodeQueries + r) * 2]);
    CAIRN_UNROLL
    for (int w = 0; w < kDecodeWarps; ++w) {
      const int at = w * kDecodeQueries + r;
      const float factor = Exp2(stats[at * 2] - top);
      sum += stats[at * 2 + 1] * factor;
      value += values[at * kDim + d] * factor;
    }
    const SplitResults to = results_of(r);
    to.values[d] = value;
    if (d == 0) {
      to.max_sum[0] = top;
      to.max_sum[1] = sum;
    }
  }
}

template <int kDim>
CAIRN_DEVICE void AttendSplit(const batch::DecodeAttentionArgs& a) {
  using Sizes = DecodeShape<kDim>;
  constexpr int kChunks = kDim / 8;
  SharedArrays shared;
  auto* const ring = shared.Take<uint16_t>(Sizes::kRing);
  auto* const queries = shared.Take<uint16_t>(kDecodeQueries * kDim);
  const int slices = (a.kv.group + kDecodeQueries - 1) / kDecodeQueries;
  const int head = static_cast<int>(blockIdx.y) / slices;
  const int first_query = static_cast<int>(blockIdx.y) % slices * kDecodeQueries;
  const int count =
      a.kv.group - first_query < kDecodeQueries ? a.kv.group - first_query : kDecodeQueries;
  const int64_t row = blockIdx.z,
                query_head = static_cast<int64_t>(head) * a.kv.group + first_query;
  const batch::SequenceKv sequence = *Global(a.sequences + row);
  const SplitKeys keys = KeysOfSplit(a.kv, sequence, head, static_cast<int>(blockIdx.x));
  if (keys.begin >= keys.end) return;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;

  const uint16_t* const q = a.q + row * a.q_stride + query_head * kDim;
  for (int i = thread; i < kDecodeQueries * kChunks; i += kDecodeThreads) {
    const int r = i / kChunks, chunk = i % kChunks;
    CopyAsyncOrZero(queries + Swizzled<kDim>(r, chunk), q + (r < count ? r * kDim : 0) + chunk * 8,
                    r < count);
  }
  CommitCopies();
  uint16_t* const own = ring + warp * Sizes::kWarpRing;
  const auto stage = [&](int tile) {
    return own + tile / kDecodeWarps % kDecodeStages * 2 * Sizes::kTile;
  };
  const auto fetch = [&](int tile) {
    const int first = keys.begin + tile * kDecodeKeys;
    if (first < keys.end) FetchTile<kDim>(keys.rows, first, keys.end, lane, stage(tile));
    CommitCopies();  // Also of nothing: waits count groups.
  };
  CAIRN_UNROLL
  for (int s = 0; s < kDecodeStages - 1; ++s) fetch(warp + kDecodeWarps * s);
  WaitForCopies<kDecodeStages - 1>();
  __syncthreads();
  uint32_t query[kDim / 16][4];
  CAIRN_UNROLL
  for (int step = 0; step < kDim / 16; ++step) {
    LoadMatrices<false>(query[step], queries + Swizzled<kDim>(lane % 16, 2 * step + lane / 16));
  }
  RowSums<kDim> sums;
  const float scale = a.scale * kLog2E;
  const int tiles = (keys.end - keys.begin + kDecodeKeys - 1) / kDecodeKeys;
  for (int tile = warp; tile < tiles; tile += kDecodeWarps) {
    fetch(tile + kDecodeWarps * (kDecodeStages - 1));
    WaitForCopies<kDecodeStages - 1>();
    __syncwarp();
    AttendTile<kDim>(stage(tile), keys.end - keys.begin - tile * kDecodeKeys, scale, lane, query,
                     &sums);
    __syncwarp();  // The next fetch writes where this tile is.
  }
  CAIRN_UNROLL
  for (int r = 0; r < 2; ++r) {
    sums.sum[r] += __shfl_xor_sync(kWholeWarp, sums.sum[r], 1);
    sums.sum[r] += __shfl_xor_sync(kWholeWarp, sums.sum[r], 2);
  }

  WaitForCopies<0>();
  __syncthreads();
  AddWarps<kDim>(sums, reinterpret_cast<float*>(ring), count,
                 [&](int r) { return ResultsOf(a, row, blockIdx.x, query_head + r, kDim); });
}

// Blocks are (query head, row).
CAIRN_DEVICE void CombineSplits(const batch::DecodeAttentionArgs& a) {
  constexpr int kKeys = static_cast<int>(batch::kSplitKeys);
  const int64_t row = blockIdx.y, head = blockIdx.x;
  const int dim = a.kv.head_dim;
  const batch::SequenceKv sequence = *Global(a.sequences + row);
  const batch::KeptRows kept = KeptOf(a.kv, sequence, static_cast<int>(head) / a.kv.group);
  const int splits = (static_cast<int>(kept.rows) + kKeys - 1) / kKeys +
                     (static_cast<int>(sequence.tokens) + kKeys - 1) / kKeys;
  float top = kNoScore;
  for (int s = 0; s < splits; ++s) top = fmaxf(top, ResultsOf(a, row, s, head, dim).max_sum[0]);
  for (int d = static_cast<int>(threadIdx.x); d < dim; d += kCombineThreads) {
    float sum = 0.0f, value = 0.0f;
    for (int s = 0; s < splits; ++s) {
      const SplitResults from = ResultsOf(a, row, s, head, dim);
      const float factor = Exp2(from.max_sum[0] - top);
      sum += from.max_sum[1] * factor;
      value += from.values[d] * factor;
    }
    const float result = splits == 0 ? 0.0f : value / sum;
    *Global(a.out + row * a.out_stride + head * dim + d) =
        static_cast<uint16_t>(ToBfloat16(result));
  }
}

}  // namespace cairn::kernels::cuda

CAIRN_KERNEL void __launch_bounds__(128, 2)
    cairn_attend_split_64(CAIRN_PARAMETER(cairn::kernels::batch::DecodeAttentionArgs) args) {
  cairn::kernels::cuda::AttendSplit<64>(args);
}
CAIRN_KERNEL void __launch_bounds__(128, 2)
    cairn_attend_split_128(CAIRN_PARAMETER(cairn::kernels::batch::DecodeAttentionArgs) args) {
  cairn::kernels::cuda::AttendSplit<128>(args);
}
CAIRN_KERNEL void __launch_bounds__(128)
    cairn_combine_splits(CAIRN_PARAMETER(cairn::kernels::batch::DecodeAttentionArgs) args) {
  cairn::kernels::cuda::CombineSplits(args);
}
