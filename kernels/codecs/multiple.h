#pragma once

#include <cstdint>
#include <string>

namespace cairn::codecs {

// The answer of PlaneCodec::Supports for a head size that is not a multiple of `unit`.
inline std::string CheckMultiple(int64_t dim, int64_t unit) {
  if (dim % unit == 0) return {};
  return "dim: got " + std::to_string(dim) + ", expected a multiple of " + std::to_string(unit);
}

}  // namespace cairn::codecs
