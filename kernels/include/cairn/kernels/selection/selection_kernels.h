#pragma once
// Kernels of the selections of tokens: a table of functions for each backend (backend.h).
//
// The kept rows must not depend on the machine, so every instruction set gives the same numbers,
// bit for bit. Lanes are tokens, sums over channels and rows are chains of fused multiply-adds in
// order, and the one sum over tokens (of a softmax) has 16 partial sums. So results depend neither
// on how tokens are shared among threads nor on the cuts in which rows arrive.
//
// A function launches its operation on the stream (stream.h says what that means). The kernels of
// CPUs allocate nothing, start no threads, and may be called from any thread. Empty input is
// allowed and writes nothing. Numbers that are not finite lead to scores that are not finite, so
// code that ranks scores calls count_non_finite first.

#include <cstddef>
#include <cstdint>

#include "cairn/kernels/attention.h"
#include "cairn/kernels/isa.h"
#include "cairn/kernels/stream.h"

namespace cairn::kernels {

// Tokens that are transposed together.
inline constexpr int64_t kSelectionTile = 64;

// Keys or values of one KV head, tokens [begin, end) of `kv`.
struct TokenRows {
  PagedKv kv;
  bool values = false;  // Else keys.
  int64_t head = 0;
  int64_t begin = 0;
  int64_t end = 0;

  const uint16_t* row(int64_t token) const {
    return values ? kv.V(head, token) : kv.K(head, token);
  }
  int64_t count() const { return end - begin; }
};

// A transposed tile, and products of `rows` numbers with it. 64-byte aligned.
constexpr size_t SelectionScratchBytes(int64_t dim, int64_t rows) {
  return static_cast<size_t>((dim + rows) * kSelectionTile) * sizeof(float);
}

// Weights of causal softmax attention (a window of queries over all keys before them). Row r of one
// query head is the token first_row + r:
//   out[r][j] = softmax_j(q_r . k_j * scale) for j <= first_row + r, 0 for the others below
//   keys.end.
// A row with a logit that is not finite is NaN in all its visible columns.
// REQUIRES: keys.begin == 0, first_row + rows <= keys.end <= out_stride.
struct WindowAttentionArgs {
  TokenRows keys;
  const float* q = nullptr;
  int64_t q_stride = 0;
  int64_t rows = 0;
  int64_t first_row = 0;
  float scale = 1.0f;
  float* out = nullptr;  // [rows][out_stride]
  int64_t out_stride = 0;
  std::byte* scratch = nullptr;  // SelectionScratchBytes(head_dim, 0)
};

// The same weights, summed over the rows: sums[j] += out[r][j], rows in order. `weights` holds
// kAccumulatedRows rows of keys.end numbers, rounded up to whole tiles.
inline constexpr int64_t kAccumulatedRows = 32;
struct AccumulateAttentionArgs {
  TokenRows keys;
  const float* q = nullptr;
  int64_t q_stride = 0;
  int64_t rows = 0;
  int64_t first_row = 0;
  float scale = 1.0f;
  float* sums = nullptr;         // [keys.end]
  float* weights = nullptr;      // [kAccumulatedRows][RoundedTokens(keys.end)]
  std::byte* scratch = nullptr;  // SelectionScratchBytes(head_dim, 0)
};
constexpr int64_t RoundedTokens(int64_t tokens) {
  return (tokens + kSelectionTile - 1) / kSelectionTile * kSelectionTile;
}

// Rows of numbers, [rows][cols] with a stride, to one row.
enum class Reduction {
  kMean,
  kMax,
  kVariance,  // Sum of squared differences from the mean, over rows - 1; 0 when there is one row.
};
struct ReduceRowsArgs {
  Reduction reduction = Reduction::kMean;
  const float* x = nullptr;
  int64_t rows = 0;  // At least 1.
  int64_t cols = 0;
  int64_t stride = 0;
  float* y = nullptr;  // [cols]
};

// One-dimensional pooling over 2 * reach + 1 neighbours, stride 1. The mean divides by 2 * reach +
// 1 everywhere and counts neighbours outside as 0. The maximum ignores them.
struct PoolArgs {
  const float* x = nullptr;
  float* y = nullptr;  // [n]; not x.
  int64_t n = 0;
  int64_t reach = 0;
  bool max = false;
};

// y[c] = mean of x[c * chunk .. min(n, (c + 1) * chunk)).
struct ChunkMeansArgs {
  const float* x = nullptr;
  int64_t n = 0;
  int64_t chunk = 1;
  float* y = nullptr;  // [ceil(n / chunk)]
};

// *entropy = -sum p ln p; p <= 0 adds nothing.
struct EntropyArgs {
  const float* p = nullptr;
  int64_t n = 0;
  float* entropy = nullptr;
};

// norms[t - begin] = ||row t||_2.
struct RowNormsArgs {
  TokenRows x;
  float* norms = nullptr;
  std::byte* scratch = nullptr;  // SelectionScratchBytes(head_dim, 0)
};

// sum[c] += row[c] / max(||row||_2, 1e-12), tokens in order.
struct SumUnitRowsArgs {
  TokenRows x;
  const float* norms = nullptr;  // [count]
  float* sum = nullptr;          // [head_dim]
};

// cosines[t - begin] = (row . v) / (max(||row||_2, 1e-8) * max(||v||_2, 1e-8)).
struct CosinesArgs {
  TokenRows x;
  const float* norms = nullptr;  // [count]
  const float* v = nullptr;      // [head_dim]
  float* cosines = nullptr;
  std::byte* scratch = nullptr;  // SelectionScratchBytes(head_dim, 0)
};

// LagKV's states score of the tokens of x, relative to `next`, the tokens behind them:
//   softmax_t(std_c((x[t][c] - min_c) / (max_c - min_c))), min and max over next; std over
//   head_dim - 1. A channel whose max is its min counts as 0.
// REQUIRES: 2 <= head_dim <= 512, next.count() >= 1.
inline constexpr int64_t kLagScratchRows = 16;  // Two numbers for each channel.
struct LagScoresArgs {
  TokenRows x;
  TokenRows next;
  float* scores = nullptr;       // [x.count()]
  std::byte* scratch = nullptr;  // SelectionScratchBytes(head_dim, kLagScratchRows)
};

// sum[i] += q_r[i]; products[i][j] += q_r[i] * q_r[j]; rows in order. REQUIRES: dim % 16 == 0.
struct QueryMomentsArgs {
  const float* q = nullptr;
  int64_t q_stride = 0;
  int64_t rows = 0;
  int64_t dim = 0;
  float* sum = nullptr;       // [dim]
  float* products = nullptr;  // [dim][dim]
};

// logits[t - begin] = mean . k_t * scale + (k_t' * covariance * k_t) * scale * scale / 2.
struct ExpectedLogitsArgs {
  TokenRows keys;
  const float* mean = nullptr;        // [head_dim]
  const float* covariance = nullptr;  // [head_dim][head_dim]
  float scale = 1.0f;
  float* logits = nullptr;
  std::byte* scratch = nullptr;  // SelectionScratchBytes(head_dim, head_dim)
};

// x = softmax(x). All NaN when a number is not finite.
struct SoftmaxArgs {
  float* x = nullptr;
  int64_t n = 0;
};

// norms[t - begin] += || v_t . W ||_1 for one query head's part W of the output projection.
struct ProjectedNormsArgs {
  TokenRows values;
  const float* w = nullptr;  // Transposed: [hidden][head_dim]
  int64_t hidden = 0;
  float* norms = nullptr;
  std::byte* scratch = nullptr;  // SelectionScratchBytes(head_dim, kProjectedRows)
};
inline constexpr int64_t kProjectedRows = 48;

// *count = the numbers that are NaN or infinite.
struct CountFloatsArgs {
  const float* x = nullptr;
  int64_t n = 0;
  int64_t* count = nullptr;
};

// Marks the `count` best of the numbers that have no mark: larger scores first, then lower indices.
// Marks all when fewer are left. REQUIRES: no score is NaN.
struct MarkTopArgs {
  const float* scores = nullptr;
  int64_t n = 0;
  int64_t count = 0;
  uint8_t* marks = nullptr;  // [n], 0 or 1
};

// out[i] = row rows[i], without gaps. REQUIRES: the rows lie in [begin, end).
struct GatherRowsArgs {
  TokenRows x;
  const int32_t* rows = nullptr;
  int64_t n = 0;
  uint16_t* out = nullptr;  // [n][head_dim] binary16
};

// Turns keys to other positions, in place: pair p of row i is channels (p, p + rope_dim / 2),
// turned by the angle whose cosine and sine are given: (new - old position) * frequency of p.
// Rounded to nearest even.
struct TurnRowsArgs {
  uint16_t* x = nullptr;  // [rows][head_dim] binary16
  int64_t rows = 0;
  int64_t head_dim = 0;
  int64_t rope_dim = 0;           // Even, <= head_dim.
  const float* cosine = nullptr;  // [rows][rope_dim / 2]
  const float* sine = nullptr;
};

struct SelectionKernels {
  // "reference", Name(isa), or the name of another backend.
  const char* name = nullptr;

  void (*window_attention)(Stream&, const WindowAttentionArgs&) = nullptr;
  void (*accumulate_attention)(Stream&, const AccumulateAttentionArgs&) = nullptr;
  void (*reduce_rows)(Stream&, const ReduceRowsArgs&) = nullptr;
  void (*pool)(Stream&, const PoolArgs&) = nullptr;
  void (*chunk_means)(Stream&, const ChunkMeansArgs&) = nullptr;
  void (*entropy)(Stream&, const EntropyArgs&) = nullptr;
  void (*row_norms)(Stream&, const RowNormsArgs&) = nullptr;
  void (*sum_unit_rows)(Stream&, const SumUnitRowsArgs&) = nullptr;
  void (*cosines)(Stream&, const CosinesArgs&) = nullptr;
  void (*lag_scores)(Stream&, const LagScoresArgs&) = nullptr;
  void (*query_moments)(Stream&, const QueryMomentsArgs&) = nullptr;
  void (*expected_logits)(Stream&, const ExpectedLogitsArgs&) = nullptr;
  void (*softmax)(Stream&, const SoftmaxArgs&) = nullptr;
  void (*projected_norms)(Stream&, const ProjectedNormsArgs&) = nullptr;
  void (*count_non_finite)(Stream&, const CountFloatsArgs&) = nullptr;
  void (*mark_top)(Stream&, const MarkTopArgs&) = nullptr;
  void (*gather_rows)(Stream&, const GatherRowsArgs&) = nullptr;
  void (*turn_rows)(Stream&, const TurnRowsArgs&) = nullptr;
};

// The definition, in plain loops and double precision: scores agree with it within rounding, marks
// and copies exactly.
const SelectionKernels& ReferenceSelectionKernels();
// REQUIRES: Supports(isa). Instruction sets beyond kAvx512 have kAvx512's.
const SelectionKernels& CpuSelectionKernels(Isa isa);

}  // namespace cairn::kernels
