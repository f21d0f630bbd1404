// Row operations and conversions: every implementation against the reference.

#include <limits>

#include "tests/conformance/kernels/case.h"

namespace cairn::kernels {
namespace {

using testing::Device;
using testing::ExpectClose;
using testing::Guarded;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class ElementwiseTest : public testing::KernelTest {};

TEST_P(ElementwiseTest, RmsNorm) {
  for (const int64_t cols : {1, 3, 16, 31, 64, 576, 1000}) {
    for (const int64_t rows : {0, 1, 5}) {
      const std::vector<float> x = Random(rows * (cols + 3) + 1), weight = Random(cols);
      Guarded<float> want(host(), rows * cols), got(here(), rows * cols);
      host().Run(&ForwardKernels::rms_norm,
                 {x.data(), weight.data(), want.get(), rows, cols, cols + 3, cols, 1e-5f});
      here().Run(&ForwardKernels::rms_norm,
                 {here().In(x), here().In(weight), got.get(), rows, cols, cols + 3, cols, 1e-5f});
      ExpectClose(want.Read(), got.Read(), 2e-6, 1e-7, "cols " + std::to_string(cols));
    }
  }
}

TEST_P(ElementwiseTest, RmsNormSpreadsNanOverItsRowOnly) {
  std::vector<float> x = Random(3 * 40);
  const std::vector<float> weight = Random(40);
  x[50] = kNan;
  Guarded<float> want(host(), 120), got(here(), 120);
  host().Run(&ForwardKernels::rms_norm,
             {x.data(), weight.data(), want.get(), 3, 40, 40, 40, 1e-5f});
  here().Run(&ForwardKernels::rms_norm,
             {here().In(x), here().In(weight), got.get(), 3, 40, 40, 40, 1e-5f});
  ExpectClose(want.Read(), got.Read(), 2e-6, 1e-7, "NaN");
  EXPECT_FALSE(std::isnan(got.Read()[39]));
  EXPECT_TRUE(std::isnan(got.Read()[40]));
}

TEST_P(ElementwiseTest, RopeTurnsPairsAndKeepsOtherChannels) {
  for (const int64_t dim : {2, 16, 64, 80, 128}) {
    for (const int64_t rotated : {dim, dim / 4 * 2}) {
      const int64_t rows = 3, heads = 2, stride = heads * dim + 5;
      const std::vector<float> x = Random(rows * stride);
      const std::vector<float> cosine = Random(rows * rotated / 2),
                               sine = Random(rows * rotated / 2);
      Guarded<float> want(host(), x), got(here(), x);
      host().Run(&ForwardKernels::rope,
                 {want.get(), rows, heads, dim, rotated, stride, cosine.data(), sine.data()});
      here().Run(&ForwardKernels::rope, {got.get(), rows, heads, dim, rotated, stride,
                                         here().In(cosine), here().In(sine)});
      ExpectClose(want.Read(), got.Read(), 1e-6, 1e-6, "head size " + std::to_string(dim));
    }
  }
}

TEST_P(ElementwiseTest, SwiGlu) {
  for (const int64_t n : {0, 1, 7, 16, 33, 1536}) {
    const std::vector<float> gate = Random(n, 20.0f), up = Random(n);
    Guarded<float> want(host(), n), got(here(), n);
    host().Run(&ForwardKernels::swiglu, {gate.data(), up.data(), want.get(), n});
    here().Run(&ForwardKernels::swiglu, {here().In(gate), here().In(up), got.get(), n});
    ExpectClose(want.Read(), got.Read(), 2e-6, 1e-30, "n " + std::to_string(n));
  }
}

TEST_P(ElementwiseTest, SwiGluOfExtremeGates) {
  const std::vector<float> gate = {kNan, kInf, 1000.0f, -1000.0f, 0.0f, -0.0f, 88.5f, -88.5f};
  const std::vector<float> up(gate.size(), 2.0f);
  Guarded<float> want(host(), 8), got(here(), 8);
  host().Run(&ForwardKernels::swiglu, {gate.data(), up.data(), want.get(), 8});
  here().Run(&ForwardKernels::swiglu, {here().In(gate), here().In(up), got.get(), 8});
  ExpectClose(want.Read(), got.Read(), 2e-6, 1e-30, "extreme gates");
}

TEST_P(ElementwiseTest, FromHalfIsExactForAllBits) {
  std::vector<uint16_t> x(65536);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint16_t>(i);
  Guarded<float> want(host(), 65536), got(here(), 65536);
  host().Run(&ForwardKernels::from_half, {x.data(), want.get(), 65536});
  here().Run(&ForwardKernels::from_half, {here().In(x), got.get(), 65536});
  ExpectClose(want.Read(), got.Read(), 0.0, 0.0, "half");
}

TEST_P(ElementwiseTest, ToHalfRoundsToNearestEven) {
  std::vector<float> x = {0.0f,   -0.0f,  1.0f,    65504.0f, 65519.9f, 65520.0f,  -65520.0f,
                          kInf,   -kInf,  6.1e-5f, 6.0e-5f,  5.97e-8f, 2.98e-8f,  2.99e-8f,
                          1e-10f, 1e-40f, 2049.0f, 2051.0f,  2050.0f,  0.333333f, -1e30f};
  // Every half, and what lies around and between neighbours.
  for (uint32_t h = 0; h < 0x7c00; ++h) {
    const float f = HalfToFloat(static_cast<uint16_t>(h));
    const float next = HalfToFloat(static_cast<uint16_t>(h + 1));
    x.push_back(f);
    if (std::isinf(next)) continue;
    const float middle = (f + next) / 2;
    x.push_back(middle);
    x.push_back(std::nextafterf(middle, kInf));
    x.push_back(-std::nextafterf(middle, 0.0f));
  }
  const auto n = static_cast<int64_t>(x.size());
  Guarded<uint16_t> want(host(), n), got(here(), n);
  host().Run(&ForwardKernels::to_half, {x.data(), want.get(), n});
  here().Run(&ForwardKernels::to_half, {here().In(x), got.get(), n});
  const std::vector<uint16_t> expected = want.Read(), halves = got.Read();
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(expected[i], halves[i]) << "of " << x[i];
}

TEST_P(ElementwiseTest, ToHalfKeepsNan) {
  const std::vector<float> x(20, kNan);
  Guarded<uint16_t> got(here(), 20);
  here().Run(&ForwardKernels::to_half, {here().In(x), got.get(), 20});
  for (const uint16_t h : got.Read()) EXPECT_GT(h & 0x7fff, 0x7c00);
}

TEST_P(ElementwiseTest, ToBfloat16RoundsToNearestEven) {
  for (const int64_t n : {0, 1, 31, 32, 33, 1000}) {
    std::vector<float> x = Random(n, 1e3f);
    if (n > 4) x[2] = kInf, x[3] = 0.0f, x[4] = 1.00390625f;
    Guarded<uint16_t> want(host(), n), got(here(), n);
    host().Run(&ForwardKernels::to_bf16, {x.data(), want.get(), n});
    here().Run(&ForwardKernels::to_bf16, {here().In(x), got.get(), n});
    EXPECT_EQ(want.Read(), got.Read()) << n;
  }
}

TEST_P(ElementwiseTest, ArgMaxTakesTheFirstAndIgnoresNan) {
  const auto arg_max = [](Device& device, const std::vector<float>& x) {
    Guarded<int64_t> index(device, 1, -7);
    device.Run(&ForwardKernels::arg_max, {device.In(x), std::ssize(x), index.get()});
    return index.Read()[0];
  };
  EXPECT_EQ(arg_max(here(), {}), -1);
  EXPECT_EQ(arg_max(here(), std::vector<float>(40, kNan)), -1);
  EXPECT_EQ(arg_max(here(), std::vector<float>(40, -kInf)), 0);
  for (const int64_t n : {1, 5, 16, 100, 49152}) {
    std::vector<float> x = Random(n);
    EXPECT_EQ(arg_max(here(), x), arg_max(host(), x));
    x[static_cast<size_t>(n / 2)] = x[static_cast<size_t>(n - 1)] = 100.0f;
    x[0] = n > 1 ? kNan : 100.0f;
    EXPECT_EQ(arg_max(here(), x), n / 2) << n;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ElementwiseTest, ::testing::ValuesIn(testing::BackendNames()),
                         testing::BackendCaseName);

}  // namespace
}  // namespace cairn::kernels
