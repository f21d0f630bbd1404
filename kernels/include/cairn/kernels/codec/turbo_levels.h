#pragma once
// Lloyd-Max levels for a normal distribution of variance 1: the fixed points of "level = mean of
// its cell, border = middle of two levels". Symmetric: the positive half, ascending.

namespace cairn::kernels {

inline constexpr float kTurboLevels2[2] = {0.452780035f, 1.51041761f};
inline constexpr float kTurboLevels3[4] = {0.245094179f, 0.756005281f, 1.34390928f, 2.1519457f};
inline constexpr float kTurboLevels4[8] = {0.12839503f, 0.388048299f, 0.656759119f, 0.942340456f,
                                           1.2562312f,  1.61804639f,  2.06901723f,  2.73258957f};

// REQUIRES: bits 2, 3 or 4.
constexpr const float* TurboLevels(int bits) {
  return bits == 2 ? kTurboLevels2 : bits == 3 ? kTurboLevels3 : kTurboLevels4;
}

}  // namespace cairn::kernels
