#pragma once
// Code that the tests of operations on batches share. They run on every backend that has the table.

#include "tests/conformance/kernels/case.h"

namespace cairn::kernels::testing {

using BatchTest = FamilyTest<&Backend::batch_forward>;

inline uint16_t Bfloat16Of(float x) {
  InlineStream stream;
  uint16_t b;
  ReferenceForwardKernels().to_bf16(stream, {&x, &b, 1});
  return b;
}

inline std::vector<uint16_t> Bfloat16s(const std::vector<float>& x) {
  std::vector<uint16_t> bits;
  for (const float v : x) bits.push_back(Bfloat16Of(v));
  return bits;
}
inline std::vector<uint16_t> Halves(const std::vector<float>& x) {
  std::vector<uint16_t> bits;
  for (const float v : x) bits.push_back(HalfOf(v));
  return bits;
}
inline std::vector<float> FloatsOfBfloat16(const std::vector<uint16_t>& x) {
  std::vector<float> floats;
  for (const uint16_t b : x) floats.push_back(Bfloat16ToFloat(b));
  return floats;
}
inline std::vector<float> FloatsOfHalves(const std::vector<uint16_t>& x) {
  std::vector<float> floats;
  for (const uint16_t h : x) floats.push_back(HalfToFloat(h));
  return floats;
}

// Half the distance between neighbours in bfloat16, as a relative error.
inline constexpr double kBfloat16Rounding = 1.0 / 256;

}  // namespace cairn::kernels::testing
