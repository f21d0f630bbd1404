// The definition of every operation: plain loops, sums in double. Never tuned.

#include "cairn/kernels/forward_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "cairn/kernels/inline_op.h"
#include "kernels/reference/half.h"

namespace cairn::kernels {
namespace {

uint16_t FloatToBfloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if (std::isnan(x)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

void RmsNorm(const RmsNormArgs& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    double sum = 0.0;
    for (int64_t c = 0; c < a.cols; ++c) {
      const double v = a.x[r * a.x_stride + c];
      sum += v * v;
    }
    const double inverse = 1.0 / std::sqrt(sum / static_cast<double>(a.cols) + a.eps);
    for (int64_t c = 0; c < a.cols; ++c) {
      a.y[r * a.y_stride + c] = static_cast<float>(a.x[r * a.x_stride + c] * inverse * a.weight[c]);
    }
  }
}

void Rope(const RopeArgs& a) {
  const int64_t half = a.rope_dim / 2;
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t h = 0; h < a.heads; ++h) {
      float* x = a.x + r * a.row_stride + h * a.head_dim;
      for (int64_t c = 0; c < half; ++c) {
        const double co = a.cosine[r * half + c], si = a.sine[r * half + c];
        const double x0 = x[c], x1 = x[c + half];
        x[c] = static_cast<float>(x0 * co - x1 * si);
        x[c + half] = static_cast<float>(x1 * co + x0 * si);
      }
    }
  }
}

void SwiGlu(const SwiGluArgs& a) {
  for (int64_t i = 0; i < a.n; ++i) {
    const double g = a.gate[i];
    a.y[i] = static_cast<float>(g / (1.0 + std::exp(-g)) * a.up[i]);
  }
}

void RoundToHalf(const ToHalfArgs& a) {
  for (int64_t i = 0; i < a.n; ++i) a.y[i] = kernels::ToHalf(a.x[i]);
}

void WidenHalf(const FromHalfArgs& a) {
  for (int64_t i = 0; i < a.n; ++i) a.y[i] = HalfToFloat(a.x[i]);
}

void ToBfloat16(const ToBfloat16Args& a) {
  for (int64_t i = 0; i < a.n; ++i) a.y[i] = FloatToBfloat16(a.x[i]);
}

void ArgMax(const ArgMaxArgs& a) {
  int64_t best = -1;
  for (int64_t i = 0; i < a.n; ++i) {
    if (std::isnan(a.x[i])) continue;
    if (best < 0 || a.x[i] > a.x[best]) best = i;
  }
  *a.index = best;
}

float ScaleAt(const PackedFormat& f, const std::byte* scales, int64_t row, int64_t lane) {
  if (f.wide) {
    float v;
    std::memcpy(&v, scales + (row * kPanelRows + lane) * 4, 4);
    return v;
  }
  uint16_t h;
  std::memcpy(&h, scales + (row * kPanelRows + lane) * 2, 2);
  return HalfToFloat(h);
}

// Weight (n, c) of a packed matrix: the packed order as packed_matrix.h states it.
double WeightAt(const PackedView& w, int64_t n, int64_t c) {
  const PackedFormat& f = w.format();
  const int64_t panel = n / kPanelRows, lane = n % kPanelRows, step = c / kStepColumns;
  const int64_t col = c % kStepColumns;
  const std::byte* numbers =
      w.numbers(panel) + static_cast<size_t>(step) * f.number_bytes_per_step();
  const std::byte* scales = w.scales(panel) + static_cast<size_t>(step) * f.scale_bytes_per_step();
  int q = 0;
  switch (f.kind) {
    case PackedKind::kFloat: {
      float v;
      std::memcpy(&v, numbers + (col * kPanelRows + lane) * 4, 4);
      return v;
    }
    case PackedKind::kHalf:
    case PackedKind::kBfloat16: {
      uint16_t h;
      std::memcpy(&h, numbers + (col * kPanelRows + lane) * 2, 2);
      return f.kind == PackedKind::kHalf ? HalfToFloat(h) : Bfloat16ToFloat(h);
    }
    case PackedKind::kNibble: {
      const int byte = static_cast<int>(numbers[col / 8 * 64 + lane * 4 + col % 4]);
      q = (col % 8 < 4 ? byte & 15 : byte >> 4) - f.offset;
      break;
    }
    case PackedKind::kByte:
      q = static_cast<int8_t>(numbers[col / 4 * 64 + lane * 4 + col % 4]);
      break;
  }
  const int64_t scale_row = f.group == 16 ? col / 16 : 0;
  double value = static_cast<double>(ScaleAt(f, scales, scale_row, lane)) * q;
  if (f.has_min) value += ScaleAt(f, scales, f.group == 16 ? 2 : 1, lane);
  return value;
}

void Product(const PackedView& w, int64_t panel_begin, int64_t panel_end, const float* x,
             int64_t x_stride, int64_t rows, float* y, int64_t y_stride, bool accumulate) {
  const int64_t end = std::min(panel_end * kPanelRows, w.rows());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t n = panel_begin * kPanelRows; n < end; ++n) {
      double sum = accumulate ? y[r * y_stride + n] : 0.0;
      for (int64_t c = 0; c < w.cols(); ++c) sum += WeightAt(w, n, c) * x[r * x_stride + c];
      y[r * y_stride + n] = static_cast<float>(sum);
    }
  }
}

void MatVec(const MatVecArgs& a) {
  Product(a.w, a.panel_begin, a.panel_end, a.x, a.x_stride, a.rows, a.y, a.y_stride, a.accumulate);
}

void GemmFloat(const GemmArgs& a) {
  Product(a.w, a.panel_begin, a.panel_end, a.a, a.a_stride, a.rows, a.y, a.y_stride, a.accumulate);
}

void GemmBfloat16(const GemmArgs& a) {
  std::vector<float> x(static_cast<size_t>(a.rows * a.a_stride));
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t c = 0; c < a.w.cols(); ++c) {
      x[static_cast<size_t>(r * a.a_stride + c)] = Bfloat16ToFloat(a.a_bf16[r * a.a_stride + c]);
    }
  }
  Product(a.w, a.panel_begin, a.panel_end, x.data(), a.a_stride, a.rows, a.y, a.y_stride,
          a.accumulate);
}

// A key and its value.
struct Row {
  const uint16_t* k;
  const uint16_t* v;
};

void AddRows(const PagedKv& kv, int64_t head, int64_t begin, int64_t end, std::vector<Row>* rows) {
  for (int64_t t = begin; t < end; ++t) rows->push_back({kv.K(head, t), kv.V(head, t)});
}

// Softmax attention of one query over rows: returns the maximum and sum, fills acc.
void Attend(const std::vector<Row>& rows, int64_t dim, const float* q, double scale,
            std::vector<double>* acc, double* max, double* sum) {
  std::vector<double> score;
  *max = -std::numeric_limits<double>::infinity();
  for (const Row& row : rows) {
    double s = 0.0;
    for (int64_t d = 0; d < dim; ++d) s += static_cast<double>(q[d]) * HalfToFloat(row.k[d]);
    score.push_back(s * scale);
    *max = std::max(*max, score.back());
  }
  acc->assign(static_cast<size_t>(dim), 0.0);
  *sum = 0.0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const double p = std::exp(score[i] - *max);
    *sum += p;
    for (int64_t d = 0; d < dim; ++d) {
      (*acc)[static_cast<size_t>(d)] += p * HalfToFloat(rows[i].v[d]);
    }
  }
}

// Adds what earlier calls left for a query: its maximum, its sum, [dim] of its acc.
void AddEarlier(const float* earlier, std::vector<double>* acc, double* max, double* sum) {
  const double common = std::max(*max, double{earlier[0]});
  const double now = std::exp(*max - common), before = std::exp(double{earlier[0]} - common);
  for (size_t d = 0; d < acc->size(); ++d) (*acc)[d] = (*acc)[d] * now + earlier[2 + d] * before;
  *sum = *sum * now + earlier[1] * before;
  *max = common;
}

void Attention(const AttentionArgs& a) {
  std::vector<double> acc;
  double max, sum;
  const int64_t dim = a.kv.head_dim;
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t g = 0; g < a.group; ++g) {
      const int64_t offset = (a.kv_head * a.group + g) * dim;
      std::vector<Row> rows;
      AddRows(a.prefix, 0, 0, a.prefix_rows, &rows);
      if (!a.more) AddRows(a.kv, a.kv_head, 0, a.first_position + r + 1, &rows);
      Attend(rows, dim, a.q + r * a.q_stride + offset, a.scale, &acc, &max, &sum);
      float* const state = reinterpret_cast<float*>(a.state) + (r * a.group + g) * (dim + 2);
      if (a.resume) AddEarlier(state, &acc, &max, &sum);
      if (a.more) {
        // The sums as they are with this maximum in float32.
        state[0] = static_cast<float>(max);
        const double factor = std::exp(max - double{state[0]});
        state[1] = static_cast<float>(sum * factor);
        std::ranges::transform(acc, state + 2,
                               [=](double x) { return static_cast<float>(x * factor); });
        continue;
      }
      for (int64_t d = 0; d < dim; ++d) {
        a.out[r * a.out_stride + offset + d] =
            static_cast<float>(acc[static_cast<size_t>(d)] / sum);
      }
    }
  }
}

void AttentionPart(const AttentionPartArgs& a) {
  std::vector<double> acc;
  double max, sum;
  std::vector<Row> rows;
  AddRows(a.kv, a.kv_head, a.begin, a.end, &rows);
  const int64_t dim = a.kv.head_dim;
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t g = 0; g < a.group; ++g) {
      const int64_t head = r * a.row_stride + g;
      Attend(rows, dim, a.q + r * a.q_stride + (a.kv_head * a.group + g) * dim, a.scale, &acc, &max,
             &sum);
      a.max[head] = static_cast<float>(max);
      a.sum[head] = static_cast<float>(sum);
      for (int64_t d = 0; d < dim; ++d) {
        a.acc[head * dim + d] = static_cast<float>(acc[static_cast<size_t>(d)]);
      }
    }
  }
}

void AttentionMerge(const AttentionMergeArgs& a) {
  for (int64_t g = 0; g < a.group; ++g) {
    double max = -std::numeric_limits<double>::infinity();
    for (int64_t p = 0; p < a.parts; ++p) max = std::max<double>(max, a.max[p * a.group + g]);
    for (int64_t d = 0; d < a.head_dim; ++d) {
      double acc = 0.0, sum = 0.0;
      for (int64_t p = 0; p < a.parts; ++p) {
        const double factor = std::exp(a.max[p * a.group + g] - max);
        acc += factor * a.acc[(p * a.group + g) * a.head_dim + d];
        sum += factor * a.sum[p * a.group + g];
      }
      a.out[g * a.head_dim + d] = static_cast<float>(acc / sum);
    }
  }
}

}  // namespace

const ForwardKernels& ReferenceForwardKernels() {
  static const ForwardKernels table = [] {
    ForwardKernels k;
    k.name = "reference";
    k.rms_norm = InlineOp<RmsNorm>::Run;
    k.rope = InlineOp<Rope>::Run;
    k.swiglu = InlineOp<SwiGlu>::Run;
    k.to_half = InlineOp<RoundToHalf>::Run;
    k.from_half = InlineOp<WidenHalf>::Run;
    k.to_bf16 = InlineOp<ToBfloat16>::Run;
    k.arg_max = InlineOp<ArgMax>::Run;
    k.mat_vec = InlineOp<MatVec>::Run;
    k.gemm_f32 = InlineOp<GemmFloat>::Run;
    k.gemm_bf16 = InlineOp<GemmBfloat16>::Run;
    k.attention_f32 = InlineOp<Attention>::Run;
    k.attention_bf16 = InlineOp<Attention>::Run;
    k.attention_part = InlineOp<AttentionPart>::Run;
    k.attention_merge = InlineOp<AttentionMerge>::Run;
    return k;
  }();
  return table;
}

}  // namespace cairn::kernels
