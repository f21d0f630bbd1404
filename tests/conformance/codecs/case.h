#pragma once
// Code that the codec tests share: codecs by recipe-like description, planes with strides and
// guards.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/codecs/registry.h"
#include "tests/support/half.h"

namespace cairn::codecs::testing {

struct CodecCase {
  std::string name;
  std::vector<int64_t> values;
  // Bounds of |decoded - x| / rms of the row's head, for normal numbers, root mean square.
  double error = 0;

  std::string Label() const {
    std::string label = name;
    for (const int64_t v : values) {
      label += '_';
      label += std::to_string(v);
    }
    return label;
  }
};

// Every codec, and every parameter that chooses other code.
inline std::vector<CodecCase> AllCases() {
  return {{"raw", {}, 0},
          {"int8", {64, 0}, 0.01},
          {"int8", {16, 1}, 0.01},
          {"int8", {128, 1}, 0.01},
          {"int4", {64, 1}, 0.12},
          {"int4", {32, 0}, 0.11},
          {"turbo", {4, 4, 1}, 0.11},
          {"turbo", {3, 3, 0}, 0.2},
          {"turbo", {2, 2, 1}, 0.37},
          {"turbo", {4, 2, 1}, 0.37},
          {"fp8", {0}, 0.03},
          {"fp8", {1}, 0.03},
          {"mixed", {64, 2, 1}, 0.12},
          {"mixed", {32, 8, 0}, 0.12},
          {"cachegen", {12, 24, 1}, 0.12},
          {"cachegen", {4, 64, 0}, 0.3},
          {"cachegen", {1, 3, 1}, 0.016}};
}

using cairn::testing::FromHalf;
using cairn::testing::ToHalf;

// Keys and values of one slice with gaps between rows and heads, and guards around them.
class TestSlice {
 public:
  TestSlice(const SliceShape& shape, int64_t gap) : shape_(shape), gap_(gap) {
    k_.assign(Numbers(shape.k_heads, shape.k_dim), kGuardBits);
    v_.assign(Numbers(shape.v_heads, shape.v_dim), kGuardBits);
  }

  void FillNormal(uint32_t seed) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    Each([&](uint16_t& x) { x = ToHalf(normal(rng)); });
  }
  void FillBits(uint32_t seed) {
    std::mt19937 rng(seed);
    Each([&](uint16_t& x) { x = static_cast<uint16_t>(rng()); });
  }
  // From contiguous [plane][head][token][dim].
  void Load(const uint16_t* numbers) {
    Each([&](uint16_t& x) { x = *numbers++; });
  }
  // Calls f(number) in the order K, V; head; token; dim.
  template <typename F>
  void Each(F f) {
    for (const bool keys : {true, false}) {
      const MutablePlane plane = Mutable(keys);
      for (int64_t h = 0; h < plane.heads; ++h) {
        for (int64_t t = 0; t < shape_.tokens; ++t) {
          uint16_t* row = plane.data + h * plane.head_stride + t * plane.token_stride;
          for (int64_t d = 0; d < plane.dim; ++d) f(row[d]);
        }
      }
    }
  }
  std::vector<uint16_t> Numbers() {
    std::vector<uint16_t> all;
    Each([&](uint16_t& x) { all.push_back(x); });
    return all;
  }
  Plane k() { return Const(Mutable(true)); }
  Plane v() { return Const(Mutable(false)); }
  MutablePlane mutable_k() { return Mutable(true); }
  MutablePlane mutable_v() { return Mutable(false); }
  const SliceShape& shape() const { return shape_; }

  // Everything that is no number of the planes still has its guard.
  bool GuardsHold() {
    TestSlice copy = *this;
    copy.Each([](uint16_t& x) { x = kGuardBits; });
    const auto whole = [](const std::vector<uint16_t>& v) {
      for (const uint16_t x : v) {
        if (x != kGuardBits) return false;
      }
      return true;
    };
    return whole(copy.k_) && whole(copy.v_);
  }

 private:
  static constexpr uint16_t kGuardBits = 0xa5a5;
  static constexpr int64_t kGuard = 64;

  static Plane Const(const MutablePlane& p) {
    return {p.data, p.heads, p.dim, p.head_stride, p.token_stride};
  }
  int64_t HeadStride(int64_t dim) const { return shape_.tokens * (dim + gap_) + gap_; }
  size_t Numbers(int64_t heads, int64_t dim) const {
    return static_cast<size_t>(heads * HeadStride(dim) + 2 * kGuard);
  }
  MutablePlane Mutable(bool keys) {
    const int64_t dim = keys ? shape_.k_dim : shape_.v_dim;
    return {(keys ? k_ : v_).data() + kGuard, keys ? shape_.k_heads : shape_.v_heads, dim,
            HeadStride(dim), dim + gap_};
  }

  SliceShape shape_;
  int64_t gap_;
  std::vector<uint16_t> k_, v_;
};

inline std::vector<std::byte> ScratchOf(const Codec& codec, const SliceShape& shape) {
  return std::vector<std::byte>(codec.ScratchBytes(shape));
}

// Encodes into exactly as many bytes as the bound, guarded. Empty when refused.
inline std::vector<std::byte> EncodeSlice(const Codec& codec, TestSlice& slice,
                                          const SlicePlace& place, EncodeResult* result = nullptr) {
  constexpr size_t kGuard = 64;
  const size_t most = codec.MaxEncodedBytes(slice.shape(), place);
  std::vector<std::byte> out(most + 2 * kGuard, std::byte{0xa5});
  std::vector<std::byte> scratch = ScratchOf(codec, slice.shape());
  const EncodeResult done = codec.Encode(slice.k(), slice.v(), slice.shape().tokens, place,
                                         std::span(out).subspan(kGuard, most), scratch);
  if (result != nullptr) *result = done;
  for (size_t i = 0; i < kGuard; ++i) {
    EXPECT_EQ(out[i], std::byte{0xa5}) << "written before the output";
    EXPECT_EQ(out[kGuard + most + i], std::byte{0xa5}) << "written behind the output";
  }
  if (done.status != CodecStatus::kOk) return {};
  EXPECT_LE(done.bytes, most);
  EXPECT_TRUE(!codec.FixedSize() || done.bytes == most);
  return {out.begin() + kGuard, out.begin() + kGuard + static_cast<ptrdiff_t>(done.bytes)};
}

inline CodecStatus DecodeSlice(const Codec& codec, std::span<const std::byte> bytes,
                               TestSlice* slice, const SlicePlace& place, bool streaming = false) {
  std::vector<std::byte> scratch = ScratchOf(codec, slice->shape());
  return codec.Decode(bytes, slice->mutable_k(), slice->mutable_v(), slice->shape().tokens, place,
                      scratch, streaming);
}

// Root mean square of the difference over that of `want`.
inline double RelativeError(TestSlice& want, TestSlice& got, bool keys = true, bool values = true) {
  const std::vector<uint16_t> a = want.Numbers(), b = got.Numbers();
  const SliceShape& s = want.shape();
  const auto border = static_cast<size_t>(s.tokens * s.k_heads * s.k_dim);
  double error = 0, all = 0;
  for (size_t i = keys ? 0 : border; i < (values ? a.size() : border); ++i) {
    const double x = FromHalf(a[i]), e = FromHalf(b[i]) - x;
    error += e * e;
    all += x * x;
  }
  return all > 0 ? std::sqrt(error / all) : std::sqrt(error);
}

}  // namespace cairn::codecs::testing
