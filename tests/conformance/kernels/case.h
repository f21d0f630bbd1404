#pragma once
// Code that the kernel conformance tests share: seeded inputs and packed matrices.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/conformance/kernels/device.h"

namespace cairn::kernels::testing {

// Every backend is a case, by its name; see WhySkipped. `kFamily`: the table under test.
template <auto kFamily>
class FamilyTest : public ::testing::TestWithParam<std::string> {
 protected:
  FamilyTest() : host_(*FindBackend("reference")) {}
  void SetUp() override {
    const std::string why = WhySkipped(GetParam(), kFamily);
    if (!why.empty()) GTEST_SKIP() << why;
    here_.emplace(*FindBackend(GetParam()));
  }

  // The backend under test, and the definition.
  Device& here() { return *here_; }
  Device& host() { return host_; }

  std::vector<float> Random(int64_t n, float spread = 1.0f) {
    std::normal_distribution<float> normal(0.0f, spread);
    std::vector<float> v(static_cast<size_t>(n));
    for (float& x : v) x = normal(rng_);
    return v;
  }
  std::mt19937& rng() { return rng_; }

 private:
  std::mt19937 rng_{20240607};
  Device host_;
  std::optional<Device> here_;
};

using KernelTest = FamilyTest<&Backend::forward>;

inline std::string BackendCaseName(const ::testing::TestParamInfo<std::string>& test) {
  std::string name = test.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
}

// |got - want| <= absolute + relative * |want|, NaN only where NaN is expected.
inline void ExpectClose(std::span<const float> want, std::span<const float> got, double relative,
                        double absolute, const std::string& what) {
  ASSERT_EQ(want.size(), got.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(want[i])) {
      ASSERT_TRUE(std::isnan(got[i])) << what << ": index " << i << ": got " << got[i];
      continue;
    }
    if (std::isinf(want[i])) {
      ASSERT_EQ(want[i], got[i]) << what << ": index " << i;
      continue;
    }
    ASSERT_LE(std::fabs(static_cast<double>(want[i]) - got[i]),
              absolute + relative * std::fabs(static_cast<double>(want[i])))
        << what << ": index " << i << ": want " << want[i] << ", got " << got[i];
  }
}

inline constexpr WeightType kWeightTypes[] = {
    WeightType::kF32,  WeightType::kF16,  WeightType::kBF16, WeightType::kQ8_0,
    WeightType::kQ4_0, WeightType::kQ4_1, WeightType::kQ5_0, WeightType::kQ5_1,
    WeightType::kQ4_K, WeightType::kQ5_K, WeightType::kQ6_K};

// A matrix of random numbers of a type, packed, and the same as float32 from DequantiseRow.
struct TestMatrix {
  PackedMatrix packed;
  std::vector<float> floats;  // [rows][cols]
};

inline uint16_t HalfOf(float x) {
  InlineStream stream;
  uint16_t h;
  ReferenceForwardKernels().to_half(stream, {&x, &h, 1});
  return h;
}

// Random blocks of a type whose numbers are mostly below `spread` (K-quants: times their scales).
// Random scale bits would be infinite or NaN now and then, so these are written apart.
inline void FillWeights(WeightType type, float spread, std::span<std::byte> bytes,
                        std::mt19937* rng) {
  for (std::byte& b : bytes) b = static_cast<std::byte>((*rng)());
  std::uniform_real_distribution<float> scale(-spread, spread);
  const auto block = static_cast<size_t>(BlockBytes(type));
  for (size_t at = 0; at < bytes.size(); at += block) {
    const auto put = [&](size_t offset, float value) {
      const uint16_t bits = HalfOf(value);
      std::memcpy(bytes.data() + at + offset, &bits, 2);
    };
    switch (type) {
      case WeightType::kF32: {
        const float v = 10 * scale(*rng);
        std::memcpy(bytes.data() + at, &v, 4);
        break;
      }
      case WeightType::kF16:
        put(0, 10 * scale(*rng));
        break;
      case WeightType::kBF16: {
        const float v = 10 * scale(*rng);
        InlineStream stream;
        uint16_t b;
        ReferenceForwardKernels().to_bf16(stream, {&v, &b, 1});
        std::memcpy(bytes.data() + at, &b, 2);
        break;
      }
      case WeightType::kQ8_0:
      case WeightType::kQ4_0:
      case WeightType::kQ5_0:
        put(0, scale(*rng));
        break;
      case WeightType::kQ4_1:
      case WeightType::kQ5_1:
      case WeightType::kQ4_K:
      case WeightType::kQ5_K:
        put(0, scale(*rng));
        put(2, scale(*rng));
        break;
      case WeightType::kQ6_K:
        put(208, 0.1f * scale(*rng));
        break;
    }
  }
}

inline TestMatrix MakeMatrix(WeightType type, int64_t rows, int64_t cols, std::mt19937* rng) {
  const auto row_bytes = static_cast<size_t>(RowBytes(type, cols));
  std::vector<std::byte> bytes(static_cast<size_t>(rows) * row_bytes);
  FillWeights(type, 0.1f, bytes, rng);
  TestMatrix m;
  m.packed = PackedMatrix(type, rows, cols);
  m.floats.resize(static_cast<size_t>(rows * cols));
  for (int64_t p = 0; p < m.packed.panels(); ++p) {
    const std::byte* pointers[kPanelRows];
    for (int64_t i = 0; i < kPanelRows; ++i) {
      const int64_t r = p * kPanelRows + i;
      pointers[i] = r < rows ? bytes.data() + static_cast<size_t>(r) * row_bytes : nullptr;
    }
    m.packed.PackPanel(p, pointers);
  }
  for (int64_t r = 0; r < rows; ++r) {
    DequantiseRow(type, bytes.data() + static_cast<size_t>(r) * row_bytes,
                  m.floats.data() + r * cols, cols);
  }
  return m;
}

}  // namespace cairn::kernels::testing
