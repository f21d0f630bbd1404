// Products with packed weights: every implementation and weight type against plain sums over
// DequantiseRow.

#include "tests/conformance/kernels/case.h"

namespace cairn::kernels {
namespace {

using testing::ExpectClose;
using testing::Guarded;
using testing::kWeightTypes;
using testing::MakeMatrix;
using testing::TestMatrix;

struct Shape {
  int64_t rows, cols;
};

// Outputs around panel edges; columns of one block, and of many.
std::vector<Shape> Shapes(WeightType type) {
  const int64_t block = BlockElements(type);
  std::vector<Shape> shapes;
  for (const int64_t rows : {1, 15, 16, 17, 40}) shapes.push_back({rows, block == 1 ? 45 : block});
  shapes.push_back({48, block == 1 ? 100 : 3 * block});
  return shapes;
}

std::string Describe(WeightType type, const Shape& s, int64_t rows) {
  return std::string(Name(type)) + " " + std::to_string(s.rows) + "x" + std::to_string(s.cols) +
         " times " + std::to_string(rows) + " rows";
}

class LinearTest : public testing::KernelTest {
 protected:
  // Plain sums in double; scale is the sum of absolute products, which bounds rounding errors.
  static void Expected(const TestMatrix& m, const std::vector<float>& x, int64_t x_stride,
                       int64_t rows, std::vector<float>* y, std::vector<double>* scale) {
    const int64_t n = m.packed.rows(), k = m.packed.cols();
    y->resize(static_cast<size_t>(rows * n));
    scale->resize(y->size());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < n; ++i) {
        double sum = 0.0, absolute = 0.0;
        for (int64_t c = 0; c < k; ++c) {
          const double p = static_cast<double>(m.floats[static_cast<size_t>(i * k + c)]) *
                           x[static_cast<size_t>(r * x_stride + c)];
          sum += p;
          absolute += std::fabs(p);
        }
        (*y)[static_cast<size_t>(r * n + i)] = static_cast<float>(sum);
        (*scale)[static_cast<size_t>(r * n + i)] = absolute;
      }
    }
  }

  // Rows padded with zeros to a full step, as the kernels want them.
  std::vector<float> Input(int64_t rows, int64_t cols, int64_t stride, int64_t padded_rows) {
    std::vector<float> x(static_cast<size_t>(padded_rows * stride));
    const std::vector<float> values = Random(rows * cols);
    for (int64_t r = 0; r < rows; ++r) {
      std::copy_n(values.begin() + r * cols, cols, x.begin() + r * stride);
    }
    return x;
  }

  // The products with many rows that the backend has.
  std::vector<void (*ForwardKernels::*)(Stream&, const GemmArgs&)> Gemms() {
    if (here().forward().gemm_bf16 == nullptr) return {&ForwardKernels::gemm_f32};
    return {&ForwardKernels::gemm_f32, &ForwardKernels::gemm_bf16};
  }

  // Rounded by the backend, in its memory.
  const uint16_t* Bfloat16(const std::vector<float>& x) {
    auto* const rounded = here().Allocate<uint16_t>(x.size());
    here().Run(&ForwardKernels::to_bf16, {here().In(x), rounded, std::ssize(x)});
    return rounded;
  }

  static void Compare(const std::vector<float>& want, const std::vector<double>& scale,
                      const std::vector<float>& got, double bound, const std::string& what) {
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_LE(std::fabs(static_cast<double>(want[i]) - got[i]), bound * scale[i] + 1e-9)
          << what << ": index " << i << ": want " << want[i] << ", got " << got[i];
    }
  }
};

TEST_P(LinearTest, MatVecInFloat32) {
  for (const WeightType type : kWeightTypes) {
    for (const Shape& s : Shapes(type)) {
      for (const int64_t rows : {1, 3}) {
        const TestMatrix m = MakeMatrix(type, s.rows, s.cols, &rng());
        const int64_t stride = m.packed.steps() * kStepColumns;
        const std::vector<float> x = Input(rows, s.cols, stride, rows);
        std::vector<float> want;
        std::vector<double> scale;
        Expected(m, x, stride, rows, &want, &scale);
        Guarded<float> got(here(), rows * s.rows);
        MatVecArgs a;
        a.w = here().In(m.packed);
        a.x = here().In(x);
        a.y = got.get();
        a.rows = rows;
        a.x_stride = stride;
        a.y_stride = s.rows;
        a.panel_end = m.packed.panels();
        here().Run(&ForwardKernels::mat_vec, a);
        Compare(want, scale, got.Read(), 4e-6, Describe(type, s, rows));
      }
    }
  }
}

TEST_P(LinearTest, MatVecInIntegersKeeps15BitsOfTheActivations) {
  if (here().forward().prepare_activation == nullptr) GTEST_SKIP() << "float products only";
  for (const WeightType type : kWeightTypes) {
    for (const Shape& s : Shapes(type)) {
      const int64_t rows = 3;
      const TestMatrix m = MakeMatrix(type, s.rows, s.cols, &rng());
      const int64_t stride = m.packed.steps() * kStepColumns;
      const std::vector<float> x = Input(rows, s.cols, stride, rows);
      std::vector<float> want;
      std::vector<double> scale;
      Expected(m, x, stride, rows, &want, &scale);
      const auto activation_stride = static_cast<int64_t>(ActivationBytes(s.cols));
      Guarded<std::byte> activation(here(), rows * activation_stride);
      const float* const input = here().In(x);
      for (int64_t r = 0; r < rows; ++r) {
        here().Run(&ForwardKernels::prepare_activation,
                   {input + r * stride, s.cols, activation.get() + r * activation_stride});
      }
      Guarded<float> got(here(), rows * s.rows);
      MatVecArgs a;
      a.w = here().In(m.packed);
      a.x = input;
      a.activation = activation.get();
      a.y = got.get();
      a.rows = rows;
      a.x_stride = stride;
      a.activation_stride = activation_stride;
      a.y_stride = s.rows;
      a.panel_end = m.packed.panels();
      here().Run(&ForwardKernels::mat_vec, a);
      // Rounding error of an activation: 2^-15 of the largest of its 32, here at most 4 sigma.
      Compare(want, scale, got.Read(), 3e-4, Describe(type, s, rows));
    }
  }
}

TEST_P(LinearTest, IntegerMatVecOfZerosIsZero) {
  if (here().forward().prepare_activation == nullptr) GTEST_SKIP() << "float products only";
  const TestMatrix m = MakeMatrix(WeightType::kQ4_1, 16, 64, &rng());
  const std::vector<float> x(64, 0.0f);
  Guarded<std::byte> activation(here(), static_cast<int64_t>(ActivationBytes(64)));
  const float* const input = here().In(x);
  here().Run(&ForwardKernels::prepare_activation, {input, 64, activation.get()});
  Guarded<float> y(here(), 16, 1.0f);
  MatVecArgs a;
  a.w = here().In(m.packed);
  a.x = input;
  a.activation = activation.get();
  a.y = y.get();
  a.panel_end = 1;
  here().Run(&ForwardKernels::mat_vec, a);
  for (const float v : y.Read()) EXPECT_EQ(v, 0.0f);
}

TEST_P(LinearTest, GemmFloat32) {
  for (const WeightType type : kWeightTypes) {
    for (const Shape& s : Shapes(type)) {
      for (const int64_t rows : {1, 12, 13, 64}) {
        const TestMatrix m = MakeMatrix(type, s.rows, s.cols, &rng());
        const int64_t stride = m.packed.steps() * kStepColumns;
        const std::vector<float> x = Input(rows, s.cols, stride, rows);
        std::vector<float> want;
        std::vector<double> scale;
        Expected(m, x, stride, rows, &want, &scale);
        std::byte* const scratch = here().Scratch(GemmScratchBytes(s.cols));
        Guarded<float> got(here(), rows * s.rows);
        GemmArgs g;
        g.w = here().In(m.packed);
        g.a = here().In(x);
        g.y = got.get();
        g.rows = rows;
        g.a_stride = stride;
        g.y_stride = s.rows;
        g.panel_end = m.packed.panels();
        g.scratch = scratch;
        here().Run(&ForwardKernels::gemm_f32, g);
        Compare(want, scale, got.Read(), 4e-6, Describe(type, s, rows));
      }
    }
  }
}

TEST_P(LinearTest, GemmBfloat16) {
  if (here().forward().gemm_bf16 == nullptr) GTEST_SKIP() << "no bfloat16 products";
  for (const WeightType type : kWeightTypes) {
    for (const Shape& s : Shapes(type)) {
      for (const int64_t rows : {1, 16, 17, 33, 64}) {
        const TestMatrix m = MakeMatrix(type, s.rows, s.cols, &rng());
        const int64_t stride = m.packed.steps() * kStepColumns;
        const int64_t padded = (rows + 15) / 16 * 16;
        const std::vector<float> x = Input(rows, s.cols, stride, padded);
        std::vector<float> want;
        std::vector<double> scale;
        Expected(m, x, stride, rows, &want, &scale);
        const uint16_t* const x16 = Bfloat16(x);
        std::byte* const scratch = here().Scratch(GemmScratchBytes(s.cols));
        Guarded<float> got(here(), rows * s.rows);
        GemmArgs g;
        g.w = here().In(m.packed);
        g.a_bf16 = x16;
        g.y = got.get();
        g.rows = rows;
        g.a_stride = stride;
        g.y_stride = s.rows;
        g.panel_end = m.packed.panels();
        g.scratch = scratch;
        here().Run(&ForwardKernels::gemm_bf16, g);
        // Both factors are rounded to eight bits.
        Compare(want, scale, got.Read(), 8.1e-3, Describe(type, s, rows));
      }
    }
  }
}

TEST_P(LinearTest, PanelRangesAndRowCountsDoNotChangeABit) {
  const TestMatrix m = MakeMatrix(WeightType::kQ4_1, 80, 96, &rng());
  const std::vector<float> x = Input(64, 96, 96, 64);
  const float* const input = here().In(x);
  const uint16_t* const x16 = Bfloat16(x);
  for (const auto gemm : Gemms()) {
    std::byte* const scratch = here().Scratch(GemmScratchBytes(96));
    GemmArgs g;
    g.w = here().In(m.packed);
    g.a = input;
    g.a_bf16 = x16;
    g.rows = 64;
    g.a_stride = 96;
    g.y_stride = 80;
    g.panel_end = m.packed.panels();
    g.scratch = scratch;
    Guarded<float> whole(here(), 64 * 80), parts(here(), 64 * 80);
    g.y = whole.get();
    here().Run(gemm, g);
    g.y = parts.get();
    for (int64_t p = 0; p < m.packed.panels(); p += 3) {
      g.panel_begin = p;
      g.panel_end = std::min<int64_t>(p + 3, m.packed.panels());
      for (int64_t r = 0; r < 64; r += 16) {
        g.rows = 16;
        g.a = input + r * 96;
        g.a_bf16 = x16 + r * 96;
        g.y = parts.get() + r * 80;
        here().Run(gemm, g);
      }
    }
    EXPECT_EQ(whole.Read(), parts.Read());
  }
}

TEST_P(LinearTest, ARowOfAMatVecHasTheBitsThatItHasAlone) {
  constexpr int64_t kRows = 11;  // By fours, and three are left.
  for (const WeightType type : kWeightTypes) {
    for (const Shape& s : Shapes(type)) {
      const TestMatrix m = MakeMatrix(type, s.rows, s.cols, &rng());
      const int64_t stride = m.packed.steps() * kStepColumns;
      const std::vector<float> x = Input(kRows, s.cols, stride, kRows);
      const float* const input = here().In(x);
      const auto activation_stride = static_cast<int64_t>(ActivationBytes(s.cols));
      const bool integers = here().forward().prepare_activation != nullptr;
      Guarded<std::byte> activation(here(), kRows * activation_stride);
      for (int64_t r = 0; integers && r < kRows; ++r) {
        here().Run(&ForwardKernels::prepare_activation,
                   {input + r * stride, s.cols, activation.get() + r * activation_stride});
      }
      for (const bool in_integers : {false, true}) {
        if (in_integers && !integers) continue;
        const auto run = [&](int64_t step) {
          Guarded<float> y(here(), kRows * s.rows, 2.0f);
          for (int64_t r = 0; r < kRows; r += step) {
            MatVecArgs a;
            a.w = here().In(m.packed);
            a.x = input + r * stride;
            a.activation = in_integers ? activation.get() + r * activation_stride : nullptr;
            a.y = y.get() + r * s.rows;
            a.rows = std::min(step, kRows - r);
            a.x_stride = stride;
            a.activation_stride = activation_stride;
            a.y_stride = s.rows;
            a.panel_end = m.packed.panels();
            a.accumulate = true;
            here().Run(&ForwardKernels::mat_vec, a);
          }
          return y.Read();
        };
        const std::vector<float> alone = run(1);
        for (const int64_t step : {2, 3, 4, 11}) {
          ASSERT_EQ(run(step), alone) << Describe(type, s, step);
        }
      }
    }
  }
}

TEST_P(LinearTest, AccumulateAddsToWhatIsThere) {
  for (const int64_t outputs : {32, 37}) {
    const TestMatrix m = MakeMatrix(WeightType::kQ8_0, outputs, 64, &rng());
    const int64_t rows = 20;
    const std::vector<float> x = Input(rows, 64, 64, 32);
    const uint16_t* const x16 = Bfloat16(x);
    std::vector<float> want;
    std::vector<double> scale;
    Expected(m, x, 64, rows, &want, &scale);
    for (float& v : want) v += 5.0f;
    for (double& v : scale) v += 5.0;
    std::byte* const scratch = here().Scratch(GemmScratchBytes(64));
    for (const auto gemm : Gemms()) {
      Guarded<float> got(here(), rows * outputs, 5.0f);
      GemmArgs g;
      g.w = here().In(m.packed);
      g.a = here().In(x);
      g.a_bf16 = x16;
      g.y = got.get();
      g.rows = rows;
      g.a_stride = 64;
      g.y_stride = outputs;
      g.panel_end = m.packed.panels();
      g.accumulate = true;
      g.scratch = scratch;
      here().Run(gemm, g);
      Compare(want, scale, got.Read(), gemm == &ForwardKernels::gemm_f32 ? 4e-6 : 8.1e-3, "gemm");
    }
    Guarded<float> got(here(), rows * outputs, 5.0f);
    MatVecArgs a;
    a.w = here().In(m.packed);
    a.x = here().In(x);
    a.y = got.get();
    a.rows = rows;
    a.x_stride = 64;
    a.y_stride = outputs;
    a.panel_end = m.packed.panels();
    a.accumulate = true;
    here().Run(&ForwardKernels::mat_vec, a);
    Compare(want, scale, got.Read(), 4e-6, "mat_vec");
  }
}

TEST_P(LinearTest, ARowOfNanStaysInItsRow) {
  const TestMatrix m = MakeMatrix(WeightType::kQ4_0, 32, 64, &rng());
  std::vector<float> x = Input(16, 64, 64, 16);
  x[5 * 64 + 7] = std::nanf("");
  const uint16_t* const x16 = Bfloat16(x);
  std::byte* const scratch = here().Scratch(GemmScratchBytes(64));
  for (const auto gemm : Gemms()) {
    Guarded<float> y(here(), 16 * 32);
    GemmArgs g;
    g.w = here().In(m.packed);
    g.a = here().In(x);
    g.a_bf16 = x16;
    g.y = y.get();
    g.rows = 16;
    g.a_stride = 64;
    g.y_stride = 32;
    g.panel_end = 2;
    g.scratch = scratch;
    here().Run(gemm, g);
    const std::vector<float> products = y.Read();
    for (size_t i = 0; i < 16 * 32; ++i) EXPECT_EQ(std::isnan(products[i]), i / 32 == 5) << i;
  }
}

TEST_P(LinearTest, EmptyProductsWriteNothing) {
  const TestMatrix m = MakeMatrix(WeightType::kF32, 16, 32, &rng());
  std::byte* const scratch = here().Scratch(GemmScratchBytes(32));
  Guarded<float> y(here(), 0);
  GemmArgs g;
  g.w = here().In(m.packed);
  g.y = y.get();
  g.scratch = scratch;
  g.panel_end = 1;
  here().Run(&ForwardKernels::gemm_f32, g);
  if (here().forward().gemm_bf16 != nullptr) here().Run(&ForwardKernels::gemm_bf16, g);
  MatVecArgs a;
  a.w = here().In(m.packed);
  a.y = y.get();
  a.rows = 0;
  a.panel_end = 1;
  here().Run(&ForwardKernels::mat_vec, a);
}

INSTANTIATE_TEST_SUITE_P(All, LinearTest, ::testing::ValuesIn(testing::BackendNames()),
                         testing::BackendCaseName);

TEST(PackedMatrixTest, ReferenceReadsPackedWeightsAsDequantiseRowReadsRows) {
  std::mt19937 rng(7);
  for (const WeightType type : kWeightTypes) {
    const int64_t cols = BlockElements(type) == 1 ? 33 : 2 * BlockElements(type);
    const TestMatrix m = MakeMatrix(type, 21, cols, &rng);
    // A unit vector picks a column.
    for (int64_t c = 0; c < cols; ++c) {
      std::vector<float> x(static_cast<size_t>(m.packed.steps() * kStepColumns)), y(21);
      x[static_cast<size_t>(c)] = 1.0f;
      MatVecArgs a;
      a.w = m.packed;
      a.x = x.data();
      a.y = y.data();
      a.panel_end = m.packed.panels();
      InlineStream stream;
      ReferenceForwardKernels().mat_vec(stream, a);
      for (int64_t r = 0; r < 21; ++r) {
        const float want = m.floats[static_cast<size_t>(r * cols + c)];
        ASSERT_NEAR(y[static_cast<size_t>(r)], want, 1e-6 * std::fabs(want) + 1e-6)
            << Name(type) << " row " << r << " column " << c;
      }
    }
  }
}

}  // namespace
}  // namespace cairn::kernels
