#pragma once
// Numbers drawn by lot that every machine draws alike.

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace cairn::selections {

// SplitMix64: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014, figure
// 17. Not thread-safe.
class SplitMix {
 public:
  explicit SplitMix(uint64_t seed) : state_(seed) {}
  // Draws of their own for each list of numbers, a layer and a head for example.
  SplitMix(uint64_t seed, std::initializer_list<int64_t> of) : state_(seed) {
    for (const int64_t x : of) state_ = SplitMix(state_ ^ static_cast<uint64_t>(x)).Next();
  }
  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // Above 0 and below 1.
  double Uniform() { return (static_cast<double>(Next() >> 11) + 0.5) * 0x1p-53; }

 private:
  uint64_t state_;
};

// A number of the standard Gumbel distribution.
inline double Gumbel(SplitMix* draw) { return -std::log(-std::log(draw->Uniform())); }

// exp of the standard Gumbel distribution at the middles of 4,096 equal shares. Immutable.
inline constexpr int kGumbelBits = 12;
inline const std::array<float, size_t{1} << kGumbelBits>& GumbelWeights() {
  static const auto weights = [] {
    std::array<float, size_t{1} << kGumbelBits> w;
    for (size_t i = 0; i < w.size(); ++i) {
      const double u = (static_cast<double>(i) + 0.5) / static_cast<double>(w.size());
      w[i] = static_cast<float>(-1.0 / std::log(u));
    }
    return w;
  }();
  return weights;
}

}  // namespace cairn::selections
