#pragma once
// Attention of the rows of prompts, in the shape of FlashAttention-2 (Dao 2023): blocks are (64
// rows, query head, chunk), each of the four warps has 16 rows, and all go through tiles of 64
// keys, of which the next one is copied meanwhile. Tiles begin at the first key. A tile of which a
// row sees nothing multiplies its sums by 1 and adds zeros, so the row has the same bits in every
// chunk.

#include "kernels/cuda/attention.cuh"

namespace cairn::kernels::cuda {

constexpr int kPromptThreads = 128;
constexpr int kPromptRows = 64;
constexpr int kPromptKeys = 64;

template <int kDim>
struct PromptShape {
  static constexpr int kTile = kPromptKeys * kDim;
  // Queries; K and V, twice.
  static constexpr size_t kSharedBytes = (kPromptRows * kDim + 4 * kTile) * sizeof(uint16_t);
};

// The keys that a block goes through: those of the prefix, then those in the pages.
struct PromptKeys {
  KeyRows prefix;
  KeyRows own;
  int32_t prefix_tiles = 0;
  int32_t tiles = 0;
};

// `own`: how many keys in the pages the block's last row sees.
template <int kTileKeys>
CAIRN_DEVICE PromptKeys KeysOfPrompt(const batch::KvForm& form, const batch::SequenceKv& sequence,
                                     int head, int own) {
  PromptKeys keys;
  keys.prefix = RowsOfPrefix(form, KeptOf(form, sequence, head));
  keys.own = RowsOfPages(form, sequence, head, own);
  keys.prefix_tiles = (keys.prefix.count + kTileKeys - 1) / kTileKeys;
  keys.tiles = keys.prefix_tiles + (own + kTileKeys - 1) / kTileKeys;
  return keys;
}

// How many keys of a tile, from the first one on, rows that are tokens `token` and token + 8 see.
template <int kTileKeys>
CAIRN_DEVICE void VisibleKeys(const PromptKeys& keys, int tile, int token, int (&visible)[2]) {
  const int own = tile - keys.prefix_tiles;
  CAIRN_UNROLL
  for (int r = 0; r < 2; ++r) {
    visible[r] =
        own < 0 ? keys.prefix.count - tile * kTileKeys : token + 8 * r + 1 - own * kTileKeys;
  }
}

template <int kDim>
CAIRN_DEVICE void FetchPromptTile(const PromptKeys& keys, int tile, uint16_t* k, uint16_t* v) {
  constexpr int kChunks = kDim / 8;
  const bool of_prefix = tile < keys.prefix_tiles;
  const KeyRows rows = of_prefix ? keys.prefix : keys.own;
  const int first = (of_prefix ? tile : tile - keys.prefix_tiles) * kPromptKeys;
  CAIRN_UNROLL
  for (int i = static_cast<int>(threadIdx.x); i < kPromptKeys * kChunks; i += kPromptThreads) {
    const int r = i / kChunks, chunk = i % kChunks;
    const bool there = first + r < rows.count;
    const std::byte* const from = PlaceOf<kDim>(rows, there ? first + r : first) + chunk * 16;
    CopyAsyncOrZero(k + Swizzled<kDim>(r, chunk), from + rows.k_offset, there);
    CopyAsyncOrZero(v + Swizzled<kDim>(r, chunk), from + rows.v_offset, there);
  }
}

// The state of a warp for its 16 rows so far; a lane has rows g and g + 8.
template <int kDim>
struct PromptSums {
  float values[kDim / 8][4] = {};
  float max[2] = {kNoScore, kNoScore};
  float sum[2] = {0.0f, 0.0f};  // The sums over this lane's keys.
};

template <int kDim>
CAIRN_DEVICE void Score64(const uint16_t* k, int lane, const uint32_t (&queries)[kDim / 16][4],
                          float (&scores)[8][4]) {
  CAIRN_UNROLL
  for (int step = 0; step < kDim / 16; ++step) {
    CAIRN_UNROLL
    for (int n = 0; n < 4; ++n) {
      uint32_t b[4];
      LoadMatrices<false>(
          b, k + Swizzled<kDim>(n * 16 + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2));
      MultiplyAdd<Number16::kHalf>(scores[2 * n], queries[step], {b[0], b[1]});
      MultiplyAdd<Number16::kHalf>(scores[2 * n + 1], queries[step], {b[2], b[3]});
    }
  }
}

template <int kDim>
CAIRN_DEVICE void Rescale(const float (&rescale)[2], PromptSums<kDim>* sums) {
  CAIRN_UNROLL
  for (int n = 0; n < kDim / 8; ++n) {
    CAIRN_UNROLL
    for (int i = 0; i < 4; ++i) sums->values[n][i] *= rescale[i / 2];
  }
}

// One over each row's sum of weights.
template <int kDim>
CAIRN_DEVICE void InverseSums(PromptSums<kDim>* sums, float (&inverse)[2]) {
  CAIRN_UNROLL
  for (int r = 0; r < 2; ++r) {
    sums->sum[r] += __shfl_xor_sync(kWholeWarp, sums->sum[r], 1);
    sums->sum[r] += __shfl_xor_sync(kWholeWarp, sums->sum[r], 2);
    inverse[r] = 1.0f / sums->sum[r];
  }
}

template <int kDim>
CAIRN_DEVICE void AddValues64(const uint16_t* v, int lane, const float (&weights)[8][4],
                              PromptSums<kDim>* sums) {
  CAIRN_UNROLL
  for (int keys = 0; keys < 4; ++keys) {
    uint32_t a[4];
    WeightsOf16(weights[2 * keys], weights[2 * keys + 1], a);
    CAIRN_UNROLL
    for (int n = 0; n < kDim / 16; ++n) {
      uint32_t b[4];
      LoadMatrices<true>(
          b, v + Swizzled<kDim>(keys * 16 + lane % 8 + lane / 8 % 2 * 8, 2 * n + lane / 16));
      MultiplyAdd<Number16::kHalf>(sums->values[2 * n], a, {b[0], b[1]});
      MultiplyAdd<Number16::kHalf>(sums->values[2 * n + 1], a, {b[2], b[3]});
    }
  }
}

// The warp's results through its 16 rows of shared memory to `out`, `rows` of them.
template <int kDim>
CAIRN_DEVICE void StoreRows16(const PromptSums<kDim>& sums, const float (&inverse)[2], int lane,
                              uint16_t* tile, int rows, uint16_t* out, int64_t stride) {
  constexpr int kChunks = kDim / 8;
  CAIRN_UNROLL
  for (int n = 0; n < kDim / 8; ++n) {
    CAIRN_UNROLL
    for (int r = 0; r < 2; ++r) {
      const uint32_t pair = ToBfloat16(sums.values[n][2 * r] * inverse[r]) |
                            ToBfloat16(sums.values[n][2 * r + 1] * inverse[r]) << 16;
      uint16_t* const at = tile + Swizzled<kDim>(lane / 4 + 8 * r, n) + lane % 4 * 2;
      *reinterpret_cast<uint32_t*>(at) = pair;
    }
  }
  __syncwarp();
  CAIRN_UNROLL
  for (int i = lane; i < 16 * kChunks; i += kWarp) {
    const int r = i / kChunks, chunk = i % kChunks;
    if (r >= rows) continue;
    *Global(reinterpret_cast<uint4*>(out + r * stride + chunk * 8)) =
        *reinterpret_cast<const uint4*>(tile + Swizzled<kDim>(r, chunk));
  }
}

template <int kDim>
CAIRN_DEVICE void AttendPromptRows(const batch::PromptAttentionArgs& a) {
  constexpr int kTile = PromptShape<kDim>::kTile;
  constexpr int kChunks = kDim / 8;
  SharedArrays shared;
  auto* const queries = shared.Take<uint16_t>(kPromptRows * kDim);
  auto* const ring = shared.Take<uint16_t>(4 * kTile);
  const batch::PromptChunk chunk = *Global(a.chunks + blockIdx.z);
  const int chunk_rows = static_cast<int>(chunk.rows);
  const int parts = (chunk_rows + kPromptRows - 1) / kPromptRows;
  if (static_cast<int>(blockIdx.x) >= parts) return;
  // Late rows see the most keys: started first, they do not end last.
  const int first = (parts - 1 - static_cast<int>(blockIdx.x)) * kPromptRows;
  const int rows = chunk_rows - first < kPromptRows ? chunk_rows - first : kPromptRows;
  const int head = static_cast<int>(blockIdx.y), before = static_cast<int>(chunk.kv.tokens) + first;
  const PromptKeys keys =
      KeysOfPrompt<kPromptKeys>(a.kv, chunk.kv, head / a.kv.group, before + rows);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;

  const uint16_t* const q =
      a.q + (chunk.first_row + first) * a.q_stride + static_cast<int64_t>(head) * kDim;
  CAIRN_UNROLL
  for (int i = thread; i < kPromptRows * kChunks; i += kPromptThreads) {
    const int r = i / kChunks, c = i % kChunks;
    CopyAsyncOrZero(queries + Swizzled<kDim>(r, c), q + (r < rows ? r * a.q_stride : 0) + c * 8,
                    r < rows);
  }
  const auto fetch = [&](int tile) {
    uint16_t* const k = ring + tile % 2 * 2 * kTile;
    if (tile < keys.tiles) FetchPromptTile<kDim>(keys, tile, k, k + kTile);
    CommitCopies();
  };
  fetch(0);
  PromptSums<kDim> sums;
  uint32_t query[kDim / 16][4];
  const float scale = a.scale * kLog2E;
  const int row = warp * 16 + lane / 4;  // This lane's first row in the block.
  for (int tile = 0; tile < keys.tiles; ++tile) {
    fetch(tile + 1);
    WaitForCopies<1>();
    __syncthreads();
    if (tile == 0) {
      CAIRN_UNROLL
      for (int step = 0; step < kDim / 16; ++step) {
        LoadMatrices<false>(query[step],
                            queries + Swizzled<kDim>(warp * 16 + lane % 16, 2 * step + lane / 16));
      }
    }
    int visible[2];
    VisibleKeys<kPromptKeys>(keys, tile, before + row, visible);
    const uint16_t* const k = ring + tile % 2 * 2 * kTile;
    float scores[8][4] = {}, rescale[2];
    Score64<kDim>(k, lane, query, scores);
    WeighTile(scale, visible, lane, scores, sums.max, sums.sum, rescale);
    Rescale<kDim>(rescale, &sums);
    AddValues64<kDim>(k + kTile, lane, scores, &sums);
    __syncthreads();  // The next fetch writes where this tile is.
  }
  WaitForCopies<0>();
  float inverse[2];
  InverseSums<kDim>(&sums, inverse);
  // No other warp uses these rows.
  StoreRows16<kDim>(sums, inverse, lane, queries + warp * 16 * kDim, rows - warp * 16,
                    a.out + (chunk.first_row + first + warp * 16) * a.out_stride +
                        static_cast<int64_t>(head) * kDim,
                    a.out_stride);
}

}  // namespace cairn::kernels::cuda

CAIRN_KERNEL void __launch_bounds__(128, 2)
    cairn_attend_prompt_64(CAIRN_PARAMETER(cairn::kernels::batch::PromptAttentionArgs) args) {
  cairn::kernels::cuda::AttendPromptRows<64>(args);
}
CAIRN_KERNEL void __launch_bounds__(128, 2)
    cairn_attend_prompt_128(CAIRN_PARAMETER(cairn::kernels::batch::PromptAttentionArgs) args) {
  cairn::kernels::cuda::AttendPromptRows<128>(args);
}
