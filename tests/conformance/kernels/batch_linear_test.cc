// Products of batches, on every backend that has them, against sums in double.

#include "tests/conformance/kernels/batch_case.h"

namespace cairn::kernels {
namespace {

using testing::BackendCaseName;
using testing::Bfloat16s;
using testing::FloatsOfBfloat16;
using testing::Guarded;

using Gemm = batch::Op<batch::GemmArgs> batch::ForwardKernels::*;

struct Shape {
  int64_t rows, outputs, cols;
};
std::string Describe(const Shape& s) {
  return std::to_string(s.rows) + " rows, " + std::to_string(s.outputs) + " outputs, " +
         std::to_string(s.cols) + " columns";
}

// Both factors, with a gap behind each row that holds NaN.
struct Factors {
  Factors(const Shape& s, const std::vector<float>& a_numbers, const std::vector<float>& w_numbers)
      : shape(s),
        stride(s.cols + 8),
        a(Padded(a_numbers, s.rows)),
        w(Padded(w_numbers, s.outputs)) {}

  std::vector<uint16_t> Padded(const std::vector<float>& numbers, int64_t rows) const {
    const std::vector<uint16_t> bits = Bfloat16s(numbers);
    std::vector<uint16_t> padded(static_cast<size_t>(rows * stride), 0x7fc0);
    for (int64_t r = 0; r < rows; ++r) {
      std::copy_n(bits.begin() + r * shape.cols, shape.cols, padded.begin() + r * stride);
    }
    return padded;
  }

  Shape shape;
  int64_t stride;
  std::vector<uint16_t> a, w;
};

class BatchLinearTest : public testing::BatchTest {
 protected:
  Factors Some(const Shape& s) { return {s, Random(s.rows * s.cols), Random(s.outputs * s.cols)}; }

  // `step` rows a call. y begins with `start` everywhere.
  std::vector<float> Run(Gemm gemm, const Factors& f, int64_t step, bool accumulate = false,
                         float start = 77.0f) {
    const Shape& s = f.shape;
    const int64_t y_stride = (s.outputs + 3) / 4 * 4 + 4;
    Guarded<float> y(here(), s.rows * y_stride, start);
    const uint16_t* const a = here().In(f.a);
    const uint16_t* const w = here().In(f.w);
    for (int64_t r = 0; r < s.rows; r += step) {
      batch::GemmArgs g;
      g.a = a + r * f.stride;
      g.w = w;
      g.y = y.get() + r * y_stride;
      g.rows = std::min(step, s.rows - r);
      g.outputs = s.outputs;
      g.cols = s.cols;
      g.a_stride = g.w_stride = f.stride;
      g.y_stride = y_stride;
      g.accumulate = accumulate;
      here().Run(gemm, g);
    }
    const std::vector<float> all = y.Read();
    std::vector<float> got;
    for (int64_t r = 0; r < s.rows; ++r) {
      got.insert(got.end(), all.begin() + r * y_stride, all.begin() + r * y_stride + s.outputs);
      for (int64_t i = s.outputs; i < y_stride; ++i) {
        EXPECT_EQ(all[static_cast<size_t>(r * y_stride + i)], start) << "behind a row";
      }
    }
    return got;
  }

  // The bound is that of a rounding towards zero for each 16 columns.
  static void Compare(const Factors& f, const std::vector<float>& got, double start) {
    const std::vector<float> a = FloatsOfBfloat16(f.a), w = FloatsOfBfloat16(f.w);
    const double unit = std::ldexp(1.0, -23) * static_cast<double>(f.shape.cols / 16 + 6);
    for (int64_t r = 0; r < f.shape.rows; ++r) {
      for (int64_t o = 0; o < f.shape.outputs; ++o) {
        double sum = start, size = std::fabs(start);
        for (int64_t c = 0; c < f.shape.cols; ++c) {
          const double p = double{a[static_cast<size_t>(r * f.stride + c)]} *
                           double{w[static_cast<size_t>(o * f.stride + c)]};
          sum += p;
          size += std::fabs(p);
        }
        ASSERT_LE(std::fabs(got[static_cast<size_t>(r * f.shape.outputs + o)] - sum), unit * size)
            << Describe(f.shape) << ": row " << r << ", output " << o;
      }
    }
  }
};

constexpr Gemm kGemms[] = {&batch::ForwardKernels::gemm, &batch::ForwardKernels::gemm_few_rows};

TEST_P(BatchLinearTest, ProductsAreTheSums) {
  for (const Shape& s : {Shape{1, 1, 8}, Shape{5, 37, 40}, Shape{17, 130, 200}, Shape{130, 16, 72},
                         Shape{30, 20, 1040}}) {
    const Factors f = Some(s);
    for (const Gemm gemm : kGemms) {
      Compare(f, Run(gemm, f, s.rows), 0.0);
      Compare(f, Run(gemm, f, s.rows, true, 5.0f), 5.0);
    }
  }
}

TEST_P(BatchLinearTest, ARowHasTheSameBitsAmongAnyOthers) {
  const Factors f = Some({70, 20, 136});
  for (const Gemm gemm : kGemms) {
    const std::vector<float> together = Run(gemm, f, 70);
    for (const int64_t step : {1, 9, 16, 31, 64}) EXPECT_EQ(Run(gemm, f, step), together) << step;
  }
}

TEST_P(BatchLinearTest, ARowOfNanStaysInItsRow) {
  Factors f = Some({20, 24, 64});
  f.a[static_cast<size_t>(5 * f.stride + 7)] = 0x7fc0;
  for (const Gemm gemm : kGemms) {
    const std::vector<float> y = Run(gemm, f, 20);
    for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / 24 == 5) << i;
  }
}

TEST_P(BatchLinearTest, EmptyProductsWriteNothing) {
  Guarded<float> y(here(), 0);
  for (const Gemm gemm : kGemms) {
    batch::GemmArgs g;
    g.y = y.get();
    g.outputs = 16;
    g.cols = 8;
    here().Run(gemm, g);
  }
}

INSTANTIATE_TEST_SUITE_P(All, BatchLinearTest, ::testing::ValuesIn(testing::BackendNames()),
                         BackendCaseName);

}  // namespace
}  // namespace cairn::kernels
