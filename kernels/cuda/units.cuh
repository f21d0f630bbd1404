#pragma once
// The parts that the selection kernels share: many units in one launch, tiles of keys or values,
// and products with them. A unit is what one call of SelectionKernels gets, mostly one head of one
// layer.
//
// Blocks are (tile of tokens or columns, tile of rows, unit).

#include "cairn/kernels/selection/selection_kernels.h"
#include "kernels/cuda/batch.cuh"

namespace cairn::kernels::cuda {

// By value, as kernel parameters: some 200 units a launch. A launch may have one more number.
template <typename Args>
constexpr int kMostUnits = static_cast<int>((kMostParameterBytes - 32) / sizeof(Args));
template <typename Args>
struct UnitBatch {
  int32_t count = 0;
  Args units[kMostUnits<Args>];
};
// The parameter of a kernel.
#define CAIRN_UNITS(args) CAIRN_PARAMETER(::cairn::kernels::cuda::UnitBatch<::cairn::kernels::args>)

CAIRN_DEVICE int LeastOf(int64_t a, int64_t b) { return static_cast<int>(a < b ? a : b); }

CAIRN_DEVICE const uint16_t* RowAt(const TokenRows& x, int token) {
  const int block = static_cast<int>(x.kv.block_tokens);
  const std::byte* const page = Global(Global(x.kv.pages)[token / block]);
  const size_t at = (x.values ? x.kv.v_offset : x.kv.k_offset) +
                    static_cast<size_t>(x.head) * x.kv.head_stride +
                    static_cast<size_t>(token % block) * static_cast<size_t>(x.kv.head_dim) * 2;
  return Global(reinterpret_cast<const uint16_t*>(page + at));
}

// ---- tiles ----

constexpr int kTileChannels = 32;

// Some channels of kTokens neighbouring tokens as floats, in shared memory: tile[channel][token].
// Tokens from x.end on are 0. All threads of a block take part.
template <int kTokens>
class TokenTile {
 public:
  static constexpr size_t kSharedBytes =
      kTileChannels * kTokens * sizeof(float) + kTokens * sizeof(void*);

  CAIRN_DEVICE explicit TokenTile(SharedArrays* shared)
      : numbers_(shared->Take<float>(kTileChannels * kTokens)),
        rows_(shared->Take<const uint16_t*>(kTokens)) {}

  // Which tokens. Load may follow behind a barrier.
  CAIRN_DEVICE void Open(const TokenRows& x, int first) const {
    for (int i = static_cast<int>(threadIdx.x); i < kTokens; i += static_cast<int>(blockDim.x)) {
      rows_[i] = first + i < x.end ? RowAt(x, first + i) : nullptr;
    }
  }

  // Channels `begin` to begin + 31, as far as there are any. A barrier must stand before (nobody
  // reads the tile any more) and behind it.
  CAIRN_DEVICE void Load(int begin, int dim) const {
    for (int i = static_cast<int>(threadIdx.x); i < kTokens * (kTileChannels / 8);
         i += static_cast<int>(blockDim.x)) {
      // Neighbouring lanes have neighbouring tokens, and so different banks.
      const int token = i % kTokens, channel = i / kTokens * 8;
      const uint16_t* const row = rows_[token];
      float* const to = numbers_ + channel * kTokens + token;
      if (row == nullptr) {
        for (int c = 0; c < 8; ++c) to[c * kTokens] = 0.0f;
      } else if (begin + channel + 8 <= dim) {
        const uint4 halves = Load16(reinterpret_cast<const uint8_t*>(row + begin + channel));
        CAIRN_UNROLL
        for (int c = 0; c < 8; ++c) to[c * kTokens] = FromHalf(HalfAt(halves, c));
      } else {
        for (int c = 0; begin + channel + c < dim; ++c) {
          to[c * kTokens] = FromHalf(*Global(row + begin + channel + c));
        }
      }
    }
  }

  // Channel `channel` of those that were loaded.
  CAIRN_DEVICE const float* Channel(int channel) const { return numbers_ + channel * kTokens; }

 private:
  float* const numbers_;
  const uint16_t** const rows_;  // Null: no such token.
};

// A barrier of the block, and a tile's next channels behind it.
template <int kTokens>
CAIRN_DEVICE int NextChannels(const TokenTile<kTokens>& tile, int begin, int dim) {
  __syncthreads();
  tile.Load(begin, dim);
  __syncthreads();
  return LeastOf(kTileChannels, dim - begin);
}

// ---- products ----

constexpr int kProductTile = 64;  // Rows, and tokens.
constexpr int kProductThreads = 256;
constexpr int kProductStride = kProductTile + 4;  // Fewer lanes share a bank when rows are put.

struct alignas(16) Quad {
  float v[4];
};

// Products of 64 rows of numbers with a tile of 64 tokens: a thread has four neighbouring rows and
// tokens. Each product is one chain of fused multiply-adds over the channels in order.
class ProductTile {
 public:
  static constexpr size_t kSharedBytes =
      TokenTile<kProductTile>::kSharedBytes + kTileChannels * kProductStride * sizeof(float);

  CAIRN_DEVICE explicit ProductTile(SharedArrays* shared)
      : tokens_(shared), rows_(shared->Take<float>(kTileChannels * kProductStride)) {}

  CAIRN_DEVICE int row() const { return static_cast<int>(threadIdx.x) / 16 * 4; }
  CAIRN_DEVICE int token() const { return static_cast<int>(threadIdx.x) % 16 * 4; }

  CAIRN_DEVICE void Open(const TokenRows& x, int first) const { tokens_.Open(x, first); }

  // acc[i][j]: row() + i of the `rows` rows at `a`, `stride` apart, with token() + j. Rows that are
  // not there count as 0.
  CAIRN_DEVICE void Multiply(const float* a, int64_t stride, int rows, int dim,
                             float (&acc)[4][4]) const {
    CAIRN_UNROLL
    for (int i = 0; i < 16; ++i) acc[i / 4][i % 4] = 0.0f;
    for (int begin = 0; begin < dim; begin += kTileChannels) {
      __syncthreads();
      tokens_.Load(begin, dim);
      LoadRows(a, stride, rows, begin, dim);
      __syncthreads();
      const int channels = LeastOf(kTileChannels, dim - begin);
      for (int c = 0; c < channels; ++c) {
        const Quad r = *reinterpret_cast<const Quad*>(rows_ + c * kProductStride + row());
        const Quad t = *reinterpret_cast<const Quad*>(tokens_.Channel(c) + token());
        CAIRN_UNROLL
        for (int i = 0; i < 16; ++i) {
          acc[i / 4][i % 4] = fmaf(r.v[i / 4], t.v[i % 4], acc[i / 4][i % 4]);
        }
      }
    }
  }

 private:
  CAIRN_DEVICE void LoadRows(const float* a, int64_t stride, int rows, int begin, int dim) const {
    for (int i = static_cast<int>(threadIdx.x); i < kProductTile * kTileChannels;
         i += kProductThreads) {
      const int channel = i % kTileChannels, row = i / kTileChannels;
      const bool there = row < rows && begin + channel < dim;
      rows_[channel * kProductStride + row] =
          there ? Global(a)[row * stride + begin + channel] : 0.0f;
    }
  }

  const TokenTile<kProductTile> tokens_;
  float* const rows_;
};

}  // namespace cairn::kernels::cuda
