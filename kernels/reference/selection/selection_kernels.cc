// The definition of the selection kernels, in plain loops and double precision.

#include "cairn/kernels/selection/selection_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "cairn/kernels/inline_op.h"
#include "kernels/reference/half.h"

namespace cairn::kernels {
namespace {

std::vector<double> Row(const TokenRows& x, int64_t token) {
  std::vector<double> row(static_cast<size_t>(x.kv.head_dim));
  for (size_t c = 0; c < row.size(); ++c) row[c] = FromHalf(x.row(token)[c]);
  return row;
}

template <typename A, typename B>
double Dot(const A& a, const B& b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<size_t>(i);
    sum += static_cast<double>(a[at]) * static_cast<double>(b[at]);
  }
  return sum;
}

void SoftmaxOf(std::vector<double>* x) {
  const bool finite = std::all_of(x->begin(), x->end(), [](double v) { return std::isfinite(v); });
  const double max = *std::max_element(x->begin(), x->end());
  double sum = 0;
  for (double& v : *x) sum += v = std::exp(v - max);
  for (double& v : *x) v = finite ? v / sum : std::nan("");
}

std::vector<double> Weights(const TokenRows& keys, const float* q, int64_t visible, double scale) {
  std::vector<double> w;
  for (int64_t j = 0; j < visible; ++j) {
    w.push_back(Dot(q, Row(keys, j), keys.kv.head_dim) * scale);
  }
  SoftmaxOf(&w);
  return w;
}

void WindowAttention(const WindowAttentionArgs& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const int64_t visible = a.first_row + r + 1;
    const std::vector<double> w = Weights(a.keys, a.q + r * a.q_stride, visible, a.scale);
    float* out = a.out + r * a.out_stride;
    for (int64_t j = 0; j < a.keys.end; ++j) {
      out[j] = j < visible ? static_cast<float>(w[static_cast<size_t>(j)]) : 0.0f;
    }
  }
}

void AccumulateAttention(const AccumulateAttentionArgs& a) {
  std::vector<double> sums(a.sums, a.sums + a.keys.end);
  for (int64_t r = 0; r < a.rows; ++r) {
    const std::vector<double> w =
        Weights(a.keys, a.q + r * a.q_stride, a.first_row + r + 1, a.scale);
    for (size_t j = 0; j < w.size(); ++j) sums[j] += w[j];
  }
  for (size_t j = 0; j < sums.size(); ++j) a.sums[j] = static_cast<float>(sums[j]);
}

void ReduceRows(const ReduceRowsArgs& a) {
  for (int64_t j = 0; j < a.cols; ++j) {
    const auto at = [&](int64_t r) { return static_cast<double>(a.x[r * a.stride + j]); };
    double sum = 0, max = at(0);
    for (int64_t r = 0; r < a.rows; ++r) {
      sum += at(r);
      max = std::isfinite(at(r)) ? std::max(max, at(r)) : std::nan("");
    }
    const double mean = sum / static_cast<double>(a.rows);
    double squares = 0;
    for (int64_t r = 0; r < a.rows; ++r) squares += (at(r) - mean) * (at(r) - mean);
    const double variance = a.rows > 1 ? squares / static_cast<double>(a.rows - 1) : squares;
    a.y[j] = static_cast<float>(a.reduction == Reduction::kMean  ? mean
                                : a.reduction == Reduction::kMax ? max
                                                                 : variance);
  }
}

void Pool(const PoolArgs& a) {
  for (int64_t i = 0; i < a.n; ++i) {
    double sum = 0, max = -std::numeric_limits<double>::infinity();
    for (int64_t j = i - a.reach; j <= i + a.reach; ++j) {
      if (j < 0 || j >= a.n) continue;
      sum += static_cast<double>(a.x[j]);
      max = std::isnan(a.x[j]) || std::isnan(max) ? std::nan("")
                                                  : std::max(max, static_cast<double>(a.x[j]));
    }
    a.y[i] = static_cast<float>(a.max ? max : sum / static_cast<double>(2 * a.reach + 1));
  }
}

void ChunkMeans(const ChunkMeansArgs& a) {
  for (int64_t c = 0; c * a.chunk < a.n; ++c) {
    const int64_t end = std::min(a.n, (c + 1) * a.chunk);
    double sum = 0;
    for (int64_t i = c * a.chunk; i < end; ++i) sum += static_cast<double>(a.x[i]);
    a.y[c] = static_cast<float>(sum / static_cast<double>(end - c * a.chunk));
  }
}

void Entropy(const EntropyArgs& a) {
  double sum = 0;
  for (int64_t i = 0; i < a.n; ++i) {
    const double p = static_cast<double>(a.p[i]);
    if (p > 0) sum -= p * std::log(p);
  }
  *a.entropy = static_cast<float>(sum);
}

double Norm(const std::vector<double>& x) {
  return std::sqrt(Dot(x, x, static_cast<int64_t>(x.size())));
}

void RowNorms(const RowNormsArgs& a) {
  for (int64_t t = a.x.begin; t < a.x.end; ++t) {
    a.norms[t - a.x.begin] = static_cast<float>(Norm(Row(a.x, t)));
  }
}

void SumUnitRows(const SumUnitRowsArgs& a) {
  for (int64_t c = 0; c < a.x.kv.head_dim; ++c) {
    double sum = static_cast<double>(a.sum[c]);
    for (int64_t t = a.x.begin; t < a.x.end; ++t) {
      const double norm = static_cast<double>(a.norms[t - a.x.begin]);
      sum += FromHalf(a.x.row(t)[c]) / std::max(norm, 1e-12);
    }
    a.sum[c] = static_cast<float>(sum);
  }
}

void Cosines(const CosinesArgs& a) {
  const int64_t dim = a.x.kv.head_dim;
  const double v = std::max(std::sqrt(Dot(a.v, a.v, dim)), 1e-8);
  for (int64_t t = a.x.begin; t < a.x.end; ++t) {
    const double norm = std::max(static_cast<double>(a.norms[t - a.x.begin]), 1e-8);
    a.cosines[t - a.x.begin] = static_cast<float>(Dot(Row(a.x, t), a.v, dim) / (norm * v));
  }
}

void LagScores(const LagScoresArgs& a) {
  if (a.x.count() <= 0) return;
  const auto dim = static_cast<size_t>(a.x.kv.head_dim);
  std::vector<double> low = Row(a.next, a.next.begin), high = low;
  for (int64_t t = a.next.begin; t < a.next.end; ++t) {
    const std::vector<double> row = Row(a.next, t);
    for (size_t c = 0; c < dim; ++c) {
      low[c] = std::min(low[c], row[c]);
      high[c] = std::max(high[c], row[c]);
    }
  }
  std::vector<double> scores;
  for (int64_t t = a.x.begin; t < a.x.end; ++t) {
    std::vector<double> row = Row(a.x, t);
    for (size_t c = 0; c < dim; ++c) {
      row[c] = high[c] == low[c] ? 0.0 : (row[c] - low[c]) / (high[c] - low[c]);
    }
    const double mean = std::accumulate(row.begin(), row.end(), 0.0) / static_cast<double>(dim);
    for (double& x : row) x -= mean;
    scores.push_back(Norm(row) / std::sqrt(static_cast<double>(dim - 1)));
  }
  SoftmaxOf(&scores);
  for (size_t i = 0; i < scores.size(); ++i) a.scores[i] = static_cast<float>(scores[i]);
}

void QueryMoments(const QueryMomentsArgs& a) {
  for (int64_t i = 0; i < a.dim; ++i) {
    double sum = static_cast<double>(a.sum[i]);
    for (int64_t r = 0; r < a.rows; ++r) sum += static_cast<double>(a.q[r * a.q_stride + i]);
    a.sum[i] = static_cast<float>(sum);
    for (int64_t j = 0; j < a.dim; ++j) {
      double product = static_cast<double>(a.products[i * a.dim + j]);
      for (int64_t r = 0; r < a.rows; ++r) {
        const float* q = a.q + r * a.q_stride;
        product += static_cast<double>(q[i]) * static_cast<double>(q[j]);
      }
      a.products[i * a.dim + j] = static_cast<float>(product);
    }
  }
}

void ExpectedLogits(const ExpectedLogitsArgs& a) {
  const int64_t dim = a.keys.kv.head_dim;
  const double scale = static_cast<double>(a.scale);
  for (int64_t t = a.keys.begin; t < a.keys.end; ++t) {
    const std::vector<double> k = Row(a.keys, t);
    double square = 0;
    for (int64_t i = 0; i < dim; ++i) {
      square += k[static_cast<size_t>(i)] * Dot(a.covariance + i * dim, k, dim);
    }
    a.logits[t - a.keys.begin] =
        static_cast<float>(Dot(a.mean, k, dim) * scale + square * scale * scale / 2);
  }
}

void Softmax(const SoftmaxArgs& a) {
  if (a.n == 0) return;
  std::vector<double> x(a.x, a.x + a.n);
  SoftmaxOf(&x);
  for (int64_t i = 0; i < a.n; ++i) a.x[i] = static_cast<float>(x[static_cast<size_t>(i)]);
}

void ProjectedNorms(const ProjectedNormsArgs& a) {
  const int64_t dim = a.values.kv.head_dim;
  for (int64_t t = a.values.begin; t < a.values.end; ++t) {
    const std::vector<double> v = Row(a.values, t);
    double sum = static_cast<double>(a.norms[t - a.values.begin]);
    for (int64_t o = 0; o < a.hidden; ++o) sum += std::fabs(Dot(a.w + o * dim, v, dim));
    a.norms[t - a.values.begin] = static_cast<float>(sum);
  }
}

void CountNonFinite(const CountFloatsArgs& a) {
  *a.count = std::count_if(a.x, a.x + a.n, [](float v) { return !std::isfinite(v); });
}

void MarkTop(const MarkTopArgs& a) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < a.n; ++i) {
    if (a.marks[i] == 0) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t i, int64_t j) { return a.scores[i] > a.scores[j]; });
  for (int64_t i = 0; i < a.count && i < static_cast<int64_t>(order.size()); ++i) {
    a.marks[order[static_cast<size_t>(i)]] = 1;
  }
}

void GatherRows(const GatherRowsArgs& a) {
  for (int64_t i = 0; i < a.n; ++i) {
    for (int64_t c = 0; c < a.x.kv.head_dim; ++c) {
      a.out[i * a.x.kv.head_dim + c] = a.x.row(a.rows[i])[c];
    }
  }
}

void TurnRows(const TurnRowsArgs& a) {
  const int64_t half = a.rope_dim / 2;
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t p = 0; p < half; ++p) {
      uint16_t* low = a.x + i * a.head_dim + p;
      uint16_t* high = low + half;
      const double x = FromHalf(*low), y = FromHalf(*high);
      const double c = static_cast<double>(a.cosine[i * half + p]);
      const double s = static_cast<double>(a.sine[i * half + p]);
      *low = ToHalf(static_cast<float>(x * c - y * s));
      *high = ToHalf(static_cast<float>(y * c + x * s));
    }
  }
}

}  // namespace

const SelectionKernels& ReferenceSelectionKernels() {
  static const SelectionKernels kernels = [] {
    SelectionKernels k;
    k.name = "reference";
    k.window_attention = InlineOp<WindowAttention>::Run;
    k.accumulate_attention = InlineOp<AccumulateAttention>::Run;
    k.reduce_rows = InlineOp<ReduceRows>::Run;
    k.pool = InlineOp<Pool>::Run;
    k.chunk_means = InlineOp<ChunkMeans>::Run;
    k.entropy = InlineOp<Entropy>::Run;
    k.row_norms = InlineOp<RowNorms>::Run;
    k.sum_unit_rows = InlineOp<SumUnitRows>::Run;
    k.cosines = InlineOp<Cosines>::Run;
    k.lag_scores = InlineOp<LagScores>::Run;
    k.query_moments = InlineOp<QueryMoments>::Run;
    k.expected_logits = InlineOp<ExpectedLogits>::Run;
    k.softmax = InlineOp<Softmax>::Run;
    k.projected_norms = InlineOp<ProjectedNorms>::Run;
    k.count_non_finite = InlineOp<CountNonFinite>::Run;
    k.mark_top = InlineOp<MarkTop>::Run;
    k.gather_rows = InlineOp<GatherRows>::Run;
    k.turn_rows = InlineOp<TurnRows>::Run;
    return k;
  }();
  return kernels;
}

}  // namespace cairn::kernels
