#pragma once
// Scores of single keys and values. A token is a thread's, and its sums are chains over the
// channels in order. Blocks are (tile of tokens, 1, unit).

#include "kernels/cuda/softmax.cuh"

namespace cairn::kernels::cuda {

constexpr int kScoreTokens = 128;  // And threads.
using TokenScoreTile = TokenTile<kScoreTokens>;

CAIRN_DEVICE int FirstOf(const TokenRows& x, int tokens) {
  return static_cast<int>(x.begin) + static_cast<int>(blockIdx.x) * tokens;
}

CAIRN_DEVICE void RowNormsUnits(const UnitBatch<RowNormsArgs>& batch) {
  SharedArrays shared;
  const TokenScoreTile tile(&shared);
  const RowNormsArgs& a = batch.units[blockIdx.z];
  const int first = FirstOf(a.x, kScoreTokens), dim = static_cast<int>(a.x.kv.head_dim);
  if (first >= a.x.end) return;
  tile.Open(a.x, first);
  const int thread = static_cast<int>(threadIdx.x);
  float sum = 0.0f;
  for (int begin = 0; begin < dim; begin += kTileChannels) {
    const int channels = NextChannels(tile, begin, dim);
    for (int c = 0; c < channels; ++c) {
      const float x = tile.Channel(c)[thread];
      sum = fmaf(x, x, sum);
    }
  }
  if (first + thread < a.x.end) Global(a.norms)[first + thread - a.x.begin] = sqrtf(sum);
}

// A channel is a thread's, and adds up all tokens: one block for a unit.
constexpr int kUnitRowsThreads = 128;
CAIRN_DEVICE void SumUnitRowsUnits(const UnitBatch<SumUnitRowsArgs>& batch) {
  SharedArrays shared;
  float* const inverse = shared.Take<float>(kUnitRowsThreads);
  auto** const rows = shared.Take<const uint16_t*>(kUnitRowsThreads);
  const SumUnitRowsArgs& a = batch.units[blockIdx.z];
  const int begin = static_cast<int>(a.x.begin), count = static_cast<int>(a.x.end) - begin;
  const int dim = static_cast<int>(a.x.kv.head_dim), thread = static_cast<int>(threadIdx.x);
  for (int base = 0; base < count; base += kUnitRowsThreads) {
    const int tokens = LeastOf(kUnitRowsThreads, count - base);
    __syncthreads();
    if (thread < tokens) {
      const float norm = Global(a.norms)[base + thread];
      inverse[thread] = 1.0f / (norm > 1e-12f ? norm : 1e-12f);
      rows[thread] = RowAt(a.x, begin + base + thread);
    }
    __syncthreads();
    for (int c = thread; c < dim; c += kUnitRowsThreads) {
      float sum = Global(a.sum)[c];
      for (int t = 0; t < tokens; ++t) {
        sum = fmaf(FromHalf(*Global(rows[t] + c)), inverse[t], sum);
      }
      Global(a.sum)[c] = sum;
    }
  }
}

CAIRN_DEVICE void CosinesUnits(const UnitBatch<CosinesArgs>& batch) {
  SharedArrays shared;
  const TokenScoreTile tile(&shared);
  float* const other = shared.Take<float>(kTileChannels);
  const CosinesArgs& a = batch.units[blockIdx.z];
  const int first = FirstOf(a.x, kScoreTokens), dim = static_cast<int>(a.x.kv.head_dim);
  if (first >= a.x.end) return;
  tile.Open(a.x, first);
  const int thread = static_cast<int>(threadIdx.x);
  // Every thread has the length of `v`, so nobody waits for it.
  float product = 0.0f, square = 0.0f;
  for (int begin = 0; begin < dim; begin += kTileChannels) {
    __syncthreads();
    if (thread < kTileChannels && begin + thread < dim) other[thread] = Global(a.v)[begin + thread];
    tile.Load(begin, dim);
    __syncthreads();
    const int channels = LeastOf(kTileChannels, dim - begin);
    for (int c = 0; c < channels; ++c) {
      const float v = other[c];
      product = fmaf(v, tile.Channel(c)[thread], product);
      square = fmaf(v, v, square);
    }
  }
  if (first + thread >= a.x.end) return;
  const int at = first + thread - static_cast<int>(a.x.begin);
  const float length = sqrtf(square), known = Global(a.norms)[at];
  const float v = length > 1e-8f ? length : 1e-8f, norm = known > 1e-8f ? known : 1e-8f;
  Global(a.cosines)[at] = product / (norm * v);
}

// Without the softmax, which is a launch of its own.
CAIRN_DEVICE void LagScoresUnits(const UnitBatch<LagScoresArgs>& batch) {
  SharedArrays shared;
  const TokenScoreTile tile(&shared);
  float* const least = shared.Take<float>(kMaxHeadDim);
  float* const span = shared.Take<float>(kMaxHeadDim);
  const LagScoresArgs& a = batch.units[blockIdx.z];
  const int first = FirstOf(a.x, kScoreTokens), dim = static_cast<int>(a.x.kv.head_dim);
  if (first >= a.x.end) return;
  const int thread = static_cast<int>(threadIdx.x);
  for (int c = thread; c < dim; c += kScoreTokens) {
    float low = FromHalf(*Global(RowAt(a.next, static_cast<int>(a.next.begin)) + c)), high = low;
    for (int t = static_cast<int>(a.next.begin) + 1; t < a.next.end; ++t) {
      const float x = FromHalf(*Global(RowAt(a.next, t) + c));
      low = x < low ? x : low;
      high = x > high ? x : high;
    }
    least[c] = low;
    span[c] = high - low;
  }
  tile.Open(a.x, first);
  const auto relative = [&](int begin, int c) {
    const float range = span[begin + c];
    return range == 0.0f ? 0.0f : (tile.Channel(c)[thread] - least[begin + c]) / range;
  };
  const auto n = static_cast<float>(dim);
  float sum = 0.0f, squares = 0.0f;
  for (int begin = 0; begin < dim; begin += kTileChannels) {
    const int channels = NextChannels(tile, begin, dim);
    for (int c = 0; c < channels; ++c) sum += relative(begin, c);
  }
  const float mean = sum / n;
  for (int begin = 0; begin < dim; begin += kTileChannels) {
    const int channels = NextChannels(tile, begin, dim);
    for (int c = 0; c < channels; ++c) {
      const float e = relative(begin, c) - mean;
      squares = fmaf(e, e, squares);
    }
  }
  if (first + thread < a.x.end) {
    Global(a.scores)[first + thread - a.x.begin] = sqrtf(squares / (n - 1.0f));
  }
}

// ---- products ----

constexpr int kFoldStride = kProductTile + 4;
constexpr size_t kFoldSharedBytes = kProductTile * kFoldStride * sizeof(float);

// Puts a thread's products to fold[row][token].
CAIRN_DEVICE void PutProducts(const ProductTile& tile, const float (&acc)[4][4], float* fold) {
  CAIRN_UNROLL
  for (int i = 0; i < 4; ++i) {
    Quad quad;
    CAIRN_UNROLL
    for (int j = 0; j < 4; ++j) quad.v[j] = acc[i][j];
    *reinterpret_cast<Quad*>(fold + (tile.row() + i) * kFoldStride + tile.token()) = quad;
  }
}

CAIRN_DEVICE void ExpectedLogitsUnits(const UnitBatch<ExpectedLogitsArgs>& batch) {
  SharedArrays shared;
  const ProductTile tile(&shared);
  float* const fold = shared.Take<float>(kProductTile * kFoldStride);
  const ExpectedLogitsArgs& a = batch.units[blockIdx.z];
  const int first = FirstOf(a.keys, kProductTile), dim = static_cast<int>(a.keys.kv.head_dim);
  if (first >= a.keys.end) return;
  const int thread = static_cast<int>(threadIdx.x);
  const bool mine = thread < kProductTile && first + thread < a.keys.end;
  const uint16_t* row = nullptr;
  if (mine) row = RowAt(a.keys, first + thread);
  tile.Open(a.keys, first);
  float sum = 0.0f, mean = 0.0f;
  for (int base = 0; base < dim; base += kProductTile) {
    float acc[4][4];
    tile.Multiply(a.covariance + static_cast<int64_t>(base) * dim, dim, dim - base, dim, acc);
    PutProducts(tile, acc, fold);
    __syncthreads();
    const int channels = LeastOf(kProductTile, dim - base);
    if (mine) {
      for (int c = 0; c < channels; ++c) {
        const float x = FromHalf(*Global(row + base + c));
        sum = fmaf(x, fold[c * kFoldStride + thread], sum);
        mean = fmaf(Global(a.mean)[base + c], x, mean);
      }
    }
    __syncthreads();
  }
  if (!mine) return;
  const float half = a.scale * a.scale * 0.5f;
  Global(a.logits)[first + thread - a.keys.begin] = fmaf(sum, half, mean * a.scale);
}

// On the units for single numbers, in the order of the CPUs, so that results are theirs to the last
// bit. Tensor cores would be faster, and give others.
CAIRN_DEVICE void ProjectedNormsUnits(const UnitBatch<ProjectedNormsArgs>& batch) {
  SharedArrays shared;
  const ProductTile tile(&shared);
  float* const fold = shared.Take<float>(kProductTile * kFoldStride);
  const ProjectedNormsArgs& a = batch.units[blockIdx.z];
  const int first = FirstOf(a.values, kProductTile), dim = static_cast<int>(a.values.kv.head_dim);
  if (first >= a.values.end) return;
  const int thread = static_cast<int>(threadIdx.x), hidden = static_cast<int>(a.hidden);
  tile.Open(a.values, first);
  float sum = 0.0f;
  for (int base = 0; base < hidden; base += kProductTile) {
    float acc[4][4];
    tile.Multiply(a.w + static_cast<int64_t>(base) * dim, dim, hidden - base, dim, acc);
    PutProducts(tile, acc, fold);
    __syncthreads();
    const int outputs = LeastOf(kProductTile, hidden - base);
    if (thread < kProductTile) {
      for (int o = 0; o < outputs; ++o) sum += fabsf(fold[o * kFoldStride + thread]);
    }
    __syncthreads();
  }
  if (thread < kProductTile && first + thread < a.values.end) {
    Global(a.norms)[first + thread - a.values.begin] += sum;
  }
}

// Blocks are (columns, rows of the products, unit), 16 of each. A product is a thread's.
constexpr int kMomentTile = 16;
CAIRN_DEVICE void QueryMomentsUnits(const UnitBatch<QueryMomentsArgs>& batch) {
  const QueryMomentsArgs& a = batch.units[blockIdx.z];
  const int dim = static_cast<int>(a.dim), thread = static_cast<int>(threadIdx.x);
  const int i = static_cast<int>(blockIdx.y) * kMomentTile + thread / kMomentTile;
  const int j = static_cast<int>(blockIdx.x) * kMomentTile + thread % kMomentTile;
  if (i >= dim || j >= dim) return;
  const auto number = [&](int row, int column) { return Global(a.q)[row * a.q_stride + column]; };
  float product = Global(a.products)[i * dim + j];
  for (int r = 0; r < a.rows; ++r) product = fmaf(number(r, i), number(r, j), product);
  Global(a.products)[i * dim + j] = product;
  if (i != 0) return;
  float sum = Global(a.sum)[j];
  for (int r = 0; r < a.rows; ++r) sum += number(r, j);
  Global(a.sum)[j] = sum;
}

}  // namespace cairn::kernels::cuda

CAIRN_KERNEL void __launch_bounds__(128) cairn_row_norms(CAIRN_UNITS(RowNormsArgs) batch) {
  cairn::kernels::cuda::RowNormsUnits(batch);
}
CAIRN_KERNEL void __launch_bounds__(128) cairn_sum_unit_rows(CAIRN_UNITS(SumUnitRowsArgs) batch) {
  cairn::kernels::cuda::SumUnitRowsUnits(batch);
}
CAIRN_KERNEL void __launch_bounds__(128) cairn_cosines(CAIRN_UNITS(CosinesArgs) batch) {
  cairn::kernels::cuda::CosinesUnits(batch);
}
CAIRN_KERNEL void __launch_bounds__(128) cairn_lag_scores(CAIRN_UNITS(LagScoresArgs) batch) {
  cairn::kernels::cuda::LagScoresUnits(batch);
}
CAIRN_KERNEL void __launch_bounds__(256)
    cairn_expected_logits(CAIRN_UNITS(ExpectedLogitsArgs) batch) {
  cairn::kernels::cuda::ExpectedLogitsUnits(batch);
}
// Four blocks a multiprocessor: without the number nvcc makes room for more, and spills.
CAIRN_KERNEL void __launch_bounds__(256, 4)
    cairn_projected_norms(CAIRN_UNITS(ProjectedNormsArgs) batch) {
  cairn::kernels::cuda::ProjectedNormsUnits(batch);
}
CAIRN_KERNEL void __launch_bounds__(256) cairn_query_moments(CAIRN_UNITS(QueryMomentsArgs) batch) {
  cairn::kernels::cuda::QueryMomentsUnits(batch);
}
