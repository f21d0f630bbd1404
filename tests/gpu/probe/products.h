#pragma once
// How many operations of products a second the device does: ours, and cuBLAS's where it is found.

#include <optional>

#include "tests/gpu/probe/bench.h"

namespace cairn::gpu {

struct ProductRates {
  // Operations a second, a multiplication and an addition counted apart. nullopt: not there.
  std::optional<double> ours, blas;
  std::string why_no_blas = {};
};
Result<ProductRates> MeasureProducts(Bench* bench);

}  // namespace cairn::gpu
