// Any text as a calibration file: an error, or scores of a model's shape, all of them finite.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "services/worker/methods/selections/head_calibration.h"
#include "tests/fuzz/input.h"

CAIRN_FUZZ_ENTRY(head_calibration)(const uint8_t* data, size_t size) {
  const auto parsed = cairn::worker::ParseHeadCalibration(
      std::string_view(reinterpret_cast<const char*>(data), size));
  if (!parsed.ok()) return 0;
  const auto& scores = parsed->scores;
  if (scores.layers < 1 || scores.kv_heads < 1 ||
      scores.scores.size() !=
          static_cast<size_t>(scores.layers) * static_cast<size_t>(scores.kv_heads)) {
    std::abort();
  }
  for (const float score : scores.scores) {
    if (!std::isfinite(score)) std::abort();
  }
  return 0;
}
