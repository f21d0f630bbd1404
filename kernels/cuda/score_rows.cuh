#pragma once
// Rows of scores: reductions, pooling, means of chunks; copies of rows, and their rotation. Every
// number is a thread's. Blocks are (part of the numbers, 1, unit).

#include "cairn/kernels/selection/unit_kernels.h"
#include "kernels/cuda/units.cuh"

namespace cairn::kernels::cuda {

constexpr int kScoreThreads = 256;

CAIRN_DEVICE int ThreadIndex() { return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); }
CAIRN_DEVICE int ThreadCount() { return static_cast<int>(gridDim.x * blockDim.x); }

CAIRN_DEVICE float Reduced(const ReduceRowsArgs& a, int column) {
  const auto number = [&](int row) { return Global(a.x)[row * a.stride + column]; };
  const int rows = static_cast<int>(a.rows);
  float out = number(0);
  if (a.reduction == Reduction::kMax) {
    // Adding a number's difference from itself keeps NaN, which a comparison would lose.
    float check = out - out;
    for (int r = 1; r < rows; ++r) {
      const float x = number(r);
      out = out > x ? out : x;
      check += x - x;
    }
    return out + check;
  }
  for (int r = 1; r < rows; ++r) out += number(r);
  out /= static_cast<float>(rows);
  if (a.reduction == Reduction::kMean) return out;
  float squares = 0.0f;
  for (int r = 0; r < rows; ++r) {
    const float e = number(r) - out;
    squares = fmaf(e, e, squares);
  }
  return rows > 1 ? squares / static_cast<float>(rows - 1) : squares;
}

CAIRN_DEVICE void ReduceRowsUnits(const UnitBatch<ReduceRowsArgs>& batch) {
  const ReduceRowsArgs& a = batch.units[blockIdx.z];
  for (int i = ThreadIndex(); i < a.cols; i += ThreadCount()) Global(a.y)[i] = Reduced(a, i);
}

CAIRN_DEVICE void PoolUnits(const UnitBatch<PoolArgs>& batch) {
  const PoolArgs& a = batch.units[blockIdx.z];
  const int reach = static_cast<int>(a.reach);
  const auto divisor = static_cast<float>(2 * reach + 1);
  for (int i = ThreadIndex(); i < a.n; i += ThreadCount()) {
    const int begin = i > reach ? i - reach : 0, end = LeastOf(a.n, int64_t{i} + reach + 1);
    float out = Global(a.x)[begin];
    for (int j = begin + 1; j < end; ++j) {
      const float x = Global(a.x)[j];
      if (a.max) {
        out = x > out || x != x ? x : out;  // NaN wins, so that it is seen later.
      } else {
        out += x;
      }
    }
    Global(a.y)[i] = a.max ? out : out / divisor;
  }
}

CAIRN_DEVICE void ChunkMeansUnits(const UnitBatch<ChunkMeansArgs>& batch) {
  const ChunkMeansArgs& a = batch.units[blockIdx.z];
  for (int64_t i = ThreadIndex(); i * a.chunk < a.n; i += ThreadCount()) {
    const int begin = static_cast<int>(i * a.chunk), end = LeastOf(a.n, (i + 1) * a.chunk);
    float sum = 0.0f;
    for (int j = begin; j < end; ++j) sum += Global(a.x)[j];
    Global(a.y)[i] = sum / static_cast<float>(end - begin);
  }
}

// One block for a unit.
CAIRN_DEVICE void CountUnits(const UnitBatch<CountFloatsArgs>& batch) {
  SharedArrays shared;
  auto* const count = shared.Take<uint32_t>(1);
  const CountFloatsArgs& a = batch.units[blockIdx.z];
  if (threadIdx.x == 0) *count = 0;
  __syncthreads();
  uint32_t mine = 0;
  for (int i = ThreadIndex(); i < a.n; i += ThreadCount()) {
    mine += (BitsOf(Global(a.x)[i]) & 0x7f800000) == 0x7f800000 ? 1 : 0;
  }
  if (mine > 0) atomicAdd(count, mine);
  __syncthreads();
  if (threadIdx.x == 0) *Global(a.count) = *count;
}

CAIRN_DEVICE void GatherRowsUnits(const UnitBatch<GatherRowsArgs>& batch) {
  const GatherRowsArgs& a = batch.units[blockIdx.z];
  const int dim = static_cast<int>(a.x.kv.head_dim);
  const int chunk = dim % 8 == 0 ? 8 : 1, chunks = dim / chunk;
  for (int64_t i = ThreadIndex(); i < a.n * chunks; i += ThreadCount()) {
    const auto row = static_cast<int>(i / chunks), column = static_cast<int>(i % chunks) * chunk;
    const uint16_t* const from = RowAt(a.x, Global(a.rows)[row]) + column;
    uint16_t* const to = a.out + int64_t{row} * dim + column;
    if (chunk == 8) {
      Store16(reinterpret_cast<uint8_t*>(to), Load16(reinterpret_cast<const uint8_t*>(from)));
    } else {
      *Global(to) = *Global(from);
    }
  }
}

CAIRN_DEVICE void TurnRowsUnits(const UnitBatch<TurnRowsArgs>& batch) {
  const TurnRowsArgs& a = batch.units[blockIdx.z];
  const int half = static_cast<int>(a.rope_dim / 2);
  for (int64_t i = ThreadIndex(); i < a.rows * half; i += ThreadCount()) {
    const float c = Global(a.cosine)[i], s = Global(a.sine)[i];
    uint16_t* const low = Global(a.x + i / half * a.head_dim + i % half);
    const float x = FromHalf(low[0]), y = FromHalf(low[half]);
    low[0] = static_cast<uint16_t>(ToHalf(x * c - y * s));
    low[half] = static_cast<uint16_t>(ToHalf(y * c + x * s));
  }
}

// ---- between the operations of a method ----

CAIRN_DEVICE void CombineScoresUnits(const UnitBatch<CombineScoresArgs>& batch) {
  const CombineScoresArgs& a = batch.units[blockIdx.z];
  const bool negative = a.combination == Combination::kNegative;
  for (int i = ThreadIndex(); i < a.n; i += ThreadCount()) {
    const float x = Global(a.x)[i];
    Global(a.y)[i] = negative ? -x : (x + Global(a.other)[i]) * 0.5f;
  }
}

CAIRN_DEVICE void RankScoresUnits(const UnitBatch<RankScoresArgs>& batch) {
  const RankScoresArgs& a = batch.units[blockIdx.z];
  const int n = static_cast<int>(a.n);
  for (int i = ThreadIndex(); i < n; i += ThreadCount()) {
    const float x = Global(a.x)[i];
    int before = 0;
    bool finite = true;
    for (int k = 0; k < n; ++k) {
      const float other = Global(a.x)[k];
      before += other < x || (other == x && k < i) ? 1 : 0;
      finite = finite && (BitsOf(other) & 0x7f800000) != 0x7f800000;
    }
    Global(a.y)[i] = finite ? static_cast<float>(before) : x;
  }
}

CAIRN_DEVICE void ChunkMarksUnits(const UnitBatch<ChunkMarksArgs>& batch) {
  const ChunkMarksArgs& a = batch.units[blockIdx.z];
  for (int64_t c = ThreadIndex(); c * a.chunk < a.tokens; c += ThreadCount()) {
    const int64_t begin = c * a.chunk, end = LeastOf(a.tokens, begin + a.chunk);
    uint32_t mark = 0;
    for (int64_t head = 0; head < a.heads; ++head) {
      for (int64_t t = begin; t < end; ++t) mark |= Global(a.marks)[head * a.tokens + t];
    }
    Global(a.taken)[c] = static_cast<uint8_t>(mark);
  }
}

CAIRN_DEVICE void SpreadMarksUnits(const UnitBatch<SpreadMarksArgs>& batch) {
  const SpreadMarksArgs& a = batch.units[blockIdx.z];
  const auto tokens = static_cast<int>(a.tokens), chunk = static_cast<int>(a.chunk);
  for (int t = ThreadIndex(); t < tokens; t += ThreadCount()) {
    if (Global(a.taken)[t / chunk] == 0) continue;
    for (int64_t head = 0; head < a.heads; ++head) Global(a.marks)[head * tokens + t] = 1;
  }
}

}  // namespace cairn::kernels::cuda

CAIRN_KERNEL void __launch_bounds__(256) cairn_reduce_rows(CAIRN_UNITS(ReduceRowsArgs) batch) {
  cairn::kernels::cuda::ReduceRowsUnits(batch);
}
CAIRN_KERNEL void __launch_bounds__(256) cairn_pool(CAIRN_UNITS(PoolArgs) batch) {
  cairn::kernels::cuda::PoolUnits(batch);
}
CAIRN_KERNEL void __launch_bounds__(256) cairn_chunk_means(CAIRN_UNITS(ChunkMeansArgs) batch) {
  cairn::kernels::cuda::ChunkMeansUnits(batch);
}
CAIRN_KERNEL void __launch_bounds__(256) cairn_count_floats(CAIRN_UNITS(CountFloatsArgs) batch) {
  cairn::kernels::cuda::CountUnits(batch);
}
CAIRN_KERNEL void __launch_bounds__(256) cairn_gather_rows(CAIRN_UNITS(GatherRowsArgs) batch) {
  cairn::kernels::cuda::GatherRowsUnits(batch);
}
CAIRN_KERNEL void __launch_bounds__(256) cairn_turn_rows(CAIRN_UNITS(TurnRowsArgs) batch) {
  cairn::kernels::cuda::TurnRowsUnits(batch);
}
CAIRN_KERNEL void __launch_bounds__(256)
    cairn_combine_scores(CAIRN_UNITS(CombineScoresArgs) batch) {
  cairn::kernels::cuda::CombineScoresUnits(batch);
}
CAIRN_KERNEL void __launch_bounds__(256) cairn_rank_scores(CAIRN_UNITS(RankScoresArgs) batch) {
  cairn::kernels::cuda::RankScoresUnits(batch);
}
CAIRN_KERNEL void __launch_bounds__(256) cairn_chunk_marks(CAIRN_UNITS(ChunkMarksArgs) batch) {
  cairn::kernels::cuda::ChunkMarksUnits(batch);
}
CAIRN_KERNEL void __launch_bounds__(256) cairn_spread_marks(CAIRN_UNITS(SpreadMarksArgs) batch) {
  cairn::kernels::cuda::SpreadMarksUnits(batch);
}
