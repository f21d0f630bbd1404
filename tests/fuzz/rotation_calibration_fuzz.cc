// Any bytes as a file of rotations: an error, or numbers of a model's shape, all of them finite,
// and directions of length 1.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "services/worker/methods/reading/rotation_calibration.h"
#include "tests/fuzz/input.h"

CAIRN_FUZZ_ENTRY(rotation_calibration)(const uint8_t* data, size_t size) {
  const auto parsed = cairn::worker::ParseRotationCalibration(
      std::string_view(reinterpret_cast<const char*>(data), size));
  if (!parsed.ok()) return 0;
  const auto& r = parsed->rotations;
  const auto dim = static_cast<size_t>(r.head_dim);
  const size_t rows = static_cast<size_t>(r.layers) * static_cast<size_t>(r.kv_heads) * dim;
  if (dim == 0 || rows == 0 || r.queries.size() != rows || r.directions.size() != rows * dim) {
    std::abort();
  }
  for (const float x : r.queries) {
    if (!std::isfinite(x) || x < 0) std::abort();
  }
  for (size_t row = 0; row < rows; ++row) {
    float square = 0;
    for (size_t c = 0; c < dim; ++c) {
      square += r.directions[row * dim + c] * r.directions[row * dim + c];
    }
    if (!(std::fabs(square - 1) < 0.01f)) std::abort();
  }
  return 0;
}
