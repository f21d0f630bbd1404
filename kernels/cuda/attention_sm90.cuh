#pragma once
// Attention of the rows of prompts for compute capability 9.0a. Blocks are (128 rows, query head,
// chunk), three warp groups each:
//
//   producer    one thread has boxes of K and V copied by the tensor memory accelerator, two tiles
//               of 128 keys ahead
//   consumers   64 rows each: scores = queries * K^T, weights in registers, sums += weights * V,
//               both products by wgmma out of shared memory. While one of the two weighs, the other
//               one multiplies
//
// Barriers: full (K, V: bytes have landed), empty (both consumers are done with a stage). Tiles
// begin at the first key, as in prompt_attention.cuh, and rows have the same bits in every chunk.
// As a box is copied whole, rows behind the last key are garbage: scores of them are not used, and
// their values are set to zero.

#include "kernels/cuda/device_sm90.h"
#include "kernels/cuda/prompt_attention.cuh"

namespace cairn::kernels::cuda {

constexpr int kSm90Threads = 3 * kWarpGroup;
constexpr int kSm90Rows = 128;
constexpr int kSm90Keys = 128;
constexpr int kSm90Stages = 2;
constexpr int kLineBytes = 128;  // 64 numbers: a block of columns.
constexpr int kBlockBytes = 128 * kLineBytes;
constexpr int kEightLines = 8 * kLineBytes;
constexpr unsigned kConsumersBarrier = 1;  // And 2, 3: of one consumer.

template <int kDim>
struct Sm90Shape {
  static constexpr int kBlocks = kDim / 64;
  static constexpr int kTileBytes = kBlocks * kBlockBytes;
  static constexpr int kArena = 1024 + kTileBytes * (1 + 2 * kSm90Stages);
  static constexpr int kBarriers = 3 * kSm90Stages;
  static constexpr size_t kSharedBytes = kArena + (kBarriers * sizeof(uint64_t) + 15) / 16 * 16;
};

struct Sm90Prompt {
  batch::PromptAttentionArgs attention;
  uint64_t pool = 0;
  int32_t page_box = 0;  // Rows. Divides a page's, and 128.
  int32_t unit_box = 0;  // Likewise of a unit.
  MatrixMap pages;       // The pool as rows of head_dim numbers, in boxes of page_box rows.
  MatrixMap units;
};
static_assert(sizeof(Sm90Prompt) <= kMostParameterBytes);

#if CAIRN_HAS_SM90

// A block's shared memory.
template <int kDim>
struct Sm90Memory {
  uint8_t* queries;  // [kBlocks][128 rows][128 bytes], swizzled, as all tiles are.
  uint8_t* tiles;    // K and V of each stage.
  uint64_t* full_k;  // [kSm90Stages]
  uint64_t* full_v;
  uint64_t* empty;

  CAIRN_DEVICE uint8_t* K(int tile) const {
    return tiles + tile % kSm90Stages * 2 * Sm90Shape<kDim>::kTileBytes;
  }
  CAIRN_DEVICE uint8_t* V(int tile) const { return K(tile) + Sm90Shape<kDim>::kTileBytes; }
  CAIRN_DEVICE static unsigned Parity(int tile) {
    return static_cast<unsigned>(tile / kSm90Stages % 2);
  }
};

// The keys of a tile: rows [first, first + count) of `rows`.
struct Sm90Tile {
  KeyRows rows;
  int32_t first;
  int32_t count;
};
CAIRN_DEVICE Sm90Tile TileOf(const PromptKeys& keys, int tile) {
  const bool of_prefix = tile < keys.prefix_tiles;
  const KeyRows rows = of_prefix ? keys.prefix : keys.own;
  const int first = (of_prefix ? tile : tile - keys.prefix_tiles) * kSm90Keys;
  return {rows, first, rows.count - first < kSm90Keys ? rows.count - first : kSm90Keys};
}

// One plane of a tile, box by box. `offset`: of the plane in a page.
template <int kDim>
CAIRN_DEVICE void CopyTile(const Sm90Tile& tile, int64_t offset, uint64_t pool,
                           const MatrixMap* map, int box, uint8_t* to, uint64_t* full) {
  const int boxes = (tile.count + box - 1) / box;
  ArriveExpecting(full, static_cast<uint32_t>(boxes * box * kDim * 2));
  for (int i = 0; i < boxes; ++i) {
    const std::byte* const place = PlaceOf<kDim>(tile.rows, tile.first + i * box) + offset;
    const auto row = static_cast<int>((reinterpret_cast<uintptr_t>(place) - pool) / (kDim * 2));
    CAIRN_UNROLL
    for (int block = 0; block < Sm90Shape<kDim>::kBlocks; ++block) {
      CopyBox(to + block * kBlockBytes + i * box * kLineBytes, map, row, block * 64, full);
    }
  }
}

template <int kDim>
CAIRN_DEVICE void Produce(const Sm90Prompt& p, const PromptKeys& keys,
                          const Sm90Memory<kDim>& memory) {
  for (int i = 0; i < keys.tiles; ++i) {
    const Sm90Tile tile = TileOf(keys, i);
    const bool of_prefix = i < keys.prefix_tiles;
    const MatrixMap* const map = of_prefix ? &p.units : &p.pages;
    const int box = of_prefix ? p.unit_box : p.page_box, stage = i % kSm90Stages;
    WaitPhase(memory.empty + stage, Sm90Memory<kDim>::Parity(i) ^ 1);
    CopyTile<kDim>(tile, tile.rows.k_offset, p.pool, map, box, memory.K(i), memory.full_k + stage);
    CopyTile<kDim>(tile, tile.rows.v_offset, p.pool, map, box, memory.V(i), memory.full_v + stage);
  }
}

// Zeros for the values behind the last key. All 256 consumers call it.
template <int kDim>
CAIRN_DEVICE void ClearValues(uint8_t* v, int count, int thread) {
  constexpr int kChunks = kDim / 8;
  for (int i = thread; i < (kSm90Keys - count) * kChunks; i += 2 * kWarpGroup) {
    const int line = count + i / kChunks, chunk = i % kChunks;
    *reinterpret_cast<uint4*>(v + chunk / 8 * kBlockBytes + line * kLineBytes +
                              (chunk % 8) * 16) = {0, 0, 0, 0};
  }
  FenceForProducts();
  NamedBarrier(kConsumersBarrier, 2 * kWarpGroup);
}

// 64 rows of queries of a consumer, to its lines of the block's tile.
template <int kDim>
CAIRN_DEVICE void LoadQueries(const uint16_t* q, int64_t stride, int rows, int thread,
                              uint8_t* to) {
  constexpr int kChunks = kDim / 8;
  CAIRN_UNROLL
  for (int i = thread; i < 64 * kChunks; i += kWarpGroup) {
    const int r = i / kChunks, chunk = i % kChunks;
    uint4 v = {0, 0, 0, 0};
    if (r < rows) v = *Global(reinterpret_cast<const uint4*>(q + r * stride + chunk * 8));
    *reinterpret_cast<uint4*>(to + chunk / 8 * kBlockBytes + r * kLineBytes +
                              ((chunk % 8) ^ (r & 7)) * 16) = v;
  }
}

template <int kDim>
CAIRN_DEVICE void ScoreTile(const uint8_t* queries, const uint8_t* k, float (&scores)[16][4],
                            GroupProducts* products) {
  products->Begin();
  CAIRN_UNROLL
  for (int step = 0; step < kDim / 16; ++step) {
    const int at = step / 4 * kBlockBytes + step % 4 * 32;
    products->MultiplyShared(scores, MatrixAt(queries + at, 0, kEightLines),
                             MatrixAt(k + at, 0, kEightLines), step > 0);
  }
  products->Commit();
  products->Wait();
}

template <int kDim>
CAIRN_DEVICE void AddTile(const uint8_t* v, const float (&weights)[16][4], PromptSums<kDim>* sums,
                          GroupProducts* products) {
  uint32_t a[8][4];
  CAIRN_UNROLL
  for (int step = 0; step < 8; ++step) {
    WeightsOf16(weights[2 * step], weights[2 * step + 1], a[step]);
  }
  products->Begin();
  CAIRN_UNROLL
  for (int step = 0; step < 8; ++step) {
    products->MultiplyRegisters(sums->values, a[step],
                                MatrixAt(v + step * 2 * kEightLines, kBlockBytes, kEightLines));
  }
  products->Commit();
  products->Wait();
}

// The work of a consumer: 64 rows of a chunk, of which `rows` exist (0 too), and the token that the
// first one is.
struct Sm90Rows {
  const uint16_t* q;
  uint16_t* out;
  int32_t rows;
  int32_t token;
};

template <int kDim>
CAIRN_DEVICE void Consume(const batch::PromptAttentionArgs& a, const PromptKeys& keys,
                          const Sm90Rows& own, int group, const Sm90Memory<kDim>& memory) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpGroup;
  const int lane = thread % kWarp, warp = thread / kWarp;
  const unsigned barrier = kConsumersBarrier + 1 + static_cast<unsigned>(group);
  uint8_t* const queries = memory.queries + group * 64 * kLineBytes;
  LoadQueries<kDim>(own.q, a.q_stride, own.rows, thread, queries);
  FenceForProducts();
  NamedBarrier(barrier, kWarpGroup);
  GroupProducts products;
  PromptSums<kDim> sums;
  const float scale = a.scale * kLog2E;
  for (int tile = 0; tile < keys.tiles; ++tile) {
    const int stage = tile % kSm90Stages;
    const unsigned parity = Sm90Memory<kDim>::Parity(tile);
    float scores[16][4] = {}, rescale[2];
    WaitPhase(memory.full_k + stage, parity);
    ScoreTile<kDim>(queries, memory.K(tile), scores, &products);
    int visible[2];
    VisibleKeys<kSm90Keys>(keys, tile, own.token + warp * 16 + lane / 4, visible);
    WeighTile(scale, visible, lane, scores, sums.max, sums.sum, rescale);
    Rescale<kDim>(rescale, &sums);
    WaitPhase(memory.full_v + stage, parity);
    const int count = TileOf(keys, tile).count;
    if (count < kSm90Keys) ClearValues<kDim>(memory.V(tile), count, group * kWarpGroup + thread);
    AddTile<kDim>(memory.V(tile), scores, &sums, &products);
    __syncwarp();
    if (lane == 0) Arrive(memory.empty + stage);
  }
  float inverse[2];
  InverseSums<kDim>(&sums, inverse);
  // The results take the place of the consumer's queries, which all its warps have read.
  NamedBarrier(barrier, kWarpGroup);
  constexpr int kWarpBytes = 16 * kDim * 2, kWarpsOfBlock = 64 * kLineBytes / kWarpBytes;
  uint8_t* const place =
      queries + warp / kWarpsOfBlock * kBlockBytes + warp % kWarpsOfBlock * kWarpBytes;
  StoreRows16<kDim>(sums, inverse, lane, reinterpret_cast<uint16_t*>(place), own.rows - warp * 16,
                    own.out + warp * 16 * a.out_stride, a.out_stride);
}

template <int kDim>
CAIRN_DEVICE void AttendPooledPrompt(const Sm90Prompt& p) {
  using Sizes = Sm90Shape<kDim>;
  const batch::PromptAttentionArgs& a = p.attention;
  SharedArrays shared;
  uint8_t* const arena = AlignShared1024(shared.Take<uint8_t>(Sizes::kArena));
  auto* const barriers = shared.Take<uint64_t>(Sizes::kBarriers);
  const batch::PromptChunk chunk = *Global(a.chunks + blockIdx.z);
  const int chunk_rows = static_cast<int>(chunk.rows);
  const int parts = (chunk_rows + kSm90Rows - 1) / kSm90Rows;
  if (static_cast<int>(blockIdx.x) >= parts) return;
  const int first = (parts - 1 - static_cast<int>(blockIdx.x)) * kSm90Rows;
  const int rows = chunk_rows - first < kSm90Rows ? chunk_rows - first : kSm90Rows;
  const int head = static_cast<int>(blockIdx.y), before = static_cast<int>(chunk.kv.tokens) + first;
  const PromptKeys keys = KeysOfPrompt<kSm90Keys>(a.kv, chunk.kv, head / a.kv.group, before + rows);
  const Sm90Memory<kDim> memory{arena, arena + Sizes::kTileBytes, barriers, barriers + kSm90Stages,
                                barriers + 2 * kSm90Stages};
  if (threadIdx.x == 0) {
    CAIRN_UNROLL
    for (int s = 0; s < kSm90Stages; ++s) {
      InitialiseBarrier(memory.full_k + s, 1);
      InitialiseBarrier(memory.full_v + s, 1);
      InitialiseBarrier(memory.empty + s, 2 * kWarpGroup / kWarp);
    }
    FenceBarriers();
  }
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / kWarpGroup - 1;
  if (group < 0) {
    ReleaseRegisters<24>();
    if (threadIdx.x == 0) Produce<kDim>(p, keys, memory);
    return;
  }
  ClaimRegisters<240>();
  const int64_t row = chunk.first_row + first + group * 64;
  const int64_t column = static_cast<int64_t>(head) * kDim;
  const Sm90Rows own{a.q + row * a.q_stride + column, a.out + row * a.out_stride + column,
                     rows - group * 64, before + group * 64};
  Consume<kDim>(a, keys, own, group, memory);
}

#endif  // CAIRN_HAS_SM90

}  // namespace cairn::kernels::cuda

CAIRN_KERNEL void __launch_bounds__(384, 1)
    cairn_attend_pooled_prompt_64(CAIRN_PARAMETER(cairn::kernels::cuda::Sm90Prompt) prompt) {
#if CAIRN_HAS_SM90
  cairn::kernels::cuda::AttendPooledPrompt<64>(prompt);
#endif
}
CAIRN_KERNEL void __launch_bounds__(384, 1)
    cairn_attend_pooled_prompt_128(CAIRN_PARAMETER(cairn::kernels::cuda::Sm90Prompt) prompt) {
#if CAIRN_HAS_SM90
  cairn::kernels::cuda::AttendPooledPrompt<128>(prompt);
#endif
}
