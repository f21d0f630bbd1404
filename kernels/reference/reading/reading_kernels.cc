// The definition of the kernels for reading a context by rows, in plain loops.

#include "cairn/kernels/reading/reading_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "cairn/kernels/codec/turbo_levels.h"
#include "cairn/kernels/inline_op.h"
#include "kernels/reference/half.h"

namespace cairn::kernels {
namespace {

float HalfAt(const std::byte* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return FromHalf(bits);
}

int32_t NibbleAt(const std::byte* codes, int64_t c) {
  const auto byte = static_cast<int32_t>(codes[c / 32 * 16 + c % 16]);
  return c % 32 < 16 ? byte & 15 : byte >> 4;
}

// docs/inside/formats/codecs.md, turbo.
void WidenTurbo(const CopyRows& x, const std::byte* in, double* y) {
  const std::byte* codes = in + 2;
  const double gain = static_cast<double>(HalfAt(in)) / static_cast<double>(x.dim);
  const int32_t half = 1 << (x.bits - 1);
  for (int64_t c = 0; c < x.dim; ++c) {
    int32_t code = 0;
    if (x.bits == 4) {
      code = NibbleAt(codes, c);
    } else {
      code = static_cast<int32_t>(codes[c / 64 * 16 + c % 16]) >> (c % 64 / 16 * 2) & 3;
      if (x.bits == 3) {
        code |= (static_cast<int32_t>(codes[x.dim / 4 + c / 8]) >> (c % 8) & 1) << 2;
      }
    }
    const float* level = TurboLevels(x.bits);
    y[c] = code < half ? -static_cast<double>(level[half - 1 - code])
                       : static_cast<double>(level[code - half]);
  }
  for (int64_t distance = 1; distance < x.dim; distance *= 2) {
    for (int64_t i = 0; i < x.dim; ++i) {
      if ((i & distance) != 0) continue;
      const double a = y[i], b = y[i + distance];
      y[i] = a + b;
      y[i + distance] = a - b;
    }
  }
  for (int64_t c = 0; c < x.dim; ++c) y[c] *= x.signs[c] != 0 ? -gain : gain;
}

void Widen(const CopyRows& x, int64_t row, double* y) {
  const std::byte* const in = x.row(row);
  const int64_t groups = (x.dim + kCopyGroup - 1) / kCopyGroup;
  switch (x.form) {
    case CopyForm::kHalf:
      for (int64_t c = 0; c < x.dim; ++c) y[c] = static_cast<double>(HalfAt(in + 2 * c));
      break;
    case CopyForm::kInt8:
      for (int64_t c = 0; c < x.dim; ++c) {
        const auto code = static_cast<int8_t>(in[2 * groups + c]);
        y[c] = static_cast<double>(HalfAt(in + c / kCopyGroup * 2)) * code;
      }
      break;
    case CopyForm::kInt4:
      for (int64_t c = 0; c < x.dim; ++c) {
        const std::byte* const scales = in + c / kCopyGroup * 4;
        y[c] = static_cast<double>(HalfAt(scales)) * NibbleAt(in + 4 * groups, c) +
               static_cast<double>(HalfAt(scales + 2));
      }
      break;
    case CopyForm::kTurbo:
      WidenTurbo(x, in, y);
      break;
  }
}

void RowLogits(const RowLogitsArgs& a) {
  std::vector<double> key(static_cast<size_t>(a.keys.dim));
  for (int64_t r = a.begin; r < a.end; ++r) {
    Widen(a.keys, r, key.data());
    for (int64_t g = 0; g < a.group; ++g) {
      double dot = 0;
      for (int64_t c = 0; c < a.keys.dim; ++c) {
        dot += static_cast<double>(a.q[g * a.q_stride + c]) * key[static_cast<size_t>(c)];
      }
      a.logits[g * a.stride + r] = static_cast<float>(dot * static_cast<double>(a.scale));
    }
  }
}

void TopRows(const TopRowsArgs& a) {
  std::fill_n(a.scores, a.n, 0.0f);
  for (int64_t g = 0; g < a.group && a.n > 0; ++g) {
    const float* const x = a.logits + g * a.stride;
    const double max = static_cast<double>(*std::max_element(x, x + a.n));
    double sum = 0;
    for (int64_t r = 0; r < a.n; ++r) sum += std::exp(static_cast<double>(x[r]) - max);
    for (int64_t r = 0; r < a.n; ++r) {
      const double share = std::exp(static_cast<double>(x[r]) - max) / sum;
      a.scores[r] = std::max(a.scores[r], static_cast<float>(share));
    }
  }
  std::vector<int32_t> order(static_cast<size_t>(a.n));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t i, int32_t j) { return a.scores[i] > a.scores[j]; });
  order.resize(static_cast<size_t>(std::min(a.count, a.n)));
  std::sort(order.begin(), order.end());
  std::copy(order.begin(), order.end(), a.rows);
}

void AttendRows(const AttendRowsArgs& a) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  const int64_t dim = a.values.dim;
  std::vector<double> value(static_cast<size_t>(dim));
  std::vector<double> acc(static_cast<size_t>(a.group * dim));
  for (int64_t g = 0; g < a.group; ++g) {
    float* const x = a.logits + g * a.stride;
    a.max[g] = kNone;
    for (int64_t r = a.begin; r < a.end; ++r) a.max[g] = std::max(a.max[g], x[r]);
    double sum = 0;
    for (int64_t r = a.begin; r < a.end; ++r) {
      x[r] = x[r] == kNone ? 0.0f
                           : static_cast<float>(std::exp(static_cast<double>(x[r]) -
                                                         static_cast<double>(a.max[g])));
      sum += static_cast<double>(x[r]);
    }
    a.sum[g] = static_cast<float>(sum);
  }
  for (int64_t r = a.begin; r < a.end; ++r) {
    Widen(a.values, r, value.data());
    for (int64_t g = 0; g < a.group; ++g) {
      const auto weight = static_cast<double>(a.logits[g * a.stride + r]);
      for (int64_t c = 0; c < dim; ++c) {
        acc[static_cast<size_t>(g * dim + c)] += weight * value[static_cast<size_t>(c)];
      }
    }
  }
  for (int64_t i = 0; i < a.group * dim; ++i) {
    a.acc[i] = static_cast<float>(acc[static_cast<size_t>(i)]);
  }
}

}  // namespace

const ReadingKernels& ReferenceReadingKernels() {
  static constexpr ReadingKernels kTable{.name = "reference",
                                         .row_logits = InlineOp<RowLogits>::Run,
                                         .top_rows = InlineOp<TopRows>::Run,
                                         .attend_rows = InlineOp<AttendRows>::Run};
  return kTable;
}

}  // namespace cairn::kernels
