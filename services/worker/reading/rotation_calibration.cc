#include "services/worker/reading/rotation_calibration.h"

#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "cairn/kernels/backend.h"
#include "services/worker/session/calibration_file.h"

namespace cairn::worker {
namespace {

constexpr std::string_view kFirstLine = "cairn key-rotations 1";
constexpr std::string_view kSuffix = ".rotations";
constexpr int32_t kMostDim = 512;
// Each number of a direction is off by up to 2^-11 of itself.
constexpr double kTolerance = 2e-3;

// Binary16 numbers, the lowest byte first.
std::vector<float> Numbers(std::string_view bytes) {
  std::vector<uint16_t> half(bytes.size() / 2);
  std::memcpy(half.data(), bytes.data(), 2 * half.size());
  std::vector<float> numbers(half.size());
  kernels::InlineStream stream;
  kernels::BestCpuBackend().forward->from_half(stream,
                                               {half.data(), numbers.data(), std::ssize(half)});
  return numbers;
}

// Whether [dim][dim] has rows of length 1 at right angles.
bool IsRotation(const float* directions, size_t dim) {
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double dot = 0;
      for (size_t c = 0; c < dim; ++c) {
        dot += static_cast<double>(directions[i * dim + c]) *
               static_cast<double>(directions[j * dim + c]);
      }
      // Not a number compares as false.
      if (!(std::fabs(dot - (i == j ? 1 : 0)) <= kTolerance)) return false;
    }
  }
  return true;
}

}  // namespace

Result<RotationCalibration> ParseRotationCalibration(std::string_view bytes) {
  CalibrationLines lines(bytes);
  if (lines.Next() != kFirstLine) return lines.Wrong(fmt::format("'{}'", kFirstLine));
  RotationCalibration c;
  CAIRN_ASSIGN_OR_RETURN(c.weights, lines.Weights());
  KeyRotations& r = c.rotations;
  CAIRN_ASSIGN_OR_RETURN(r.layers, lines.Count("layers", kMaxCalibratedLayers));
  CAIRN_ASSIGN_OR_RETURN(r.kv_heads, lines.Count("kv_heads", kMaxCalibratedHeads));
  CAIRN_ASSIGN_OR_RETURN(r.head_dim, lines.Count("head_dim", kMostDim));
  const std::string_view numbers = lines.rest();
  const auto heads = static_cast<size_t>(r.layers) * static_cast<size_t>(r.kv_heads);
  const auto dim = static_cast<size_t>(r.head_dim);
  if (numbers.size() != heads * (dim + 1) * dim * 2) {
    return InvalidArgument("got {} bytes of numbers, expected {}", numbers.size(),
                           heads * (dim + 1) * dim * 2);
  }
  for (size_t head = 0; head < heads; ++head) {
    const std::vector<float> of_head =
        Numbers(numbers.substr(head * (dim + 1) * dim * 2, (dim + 1) * dim * 2));
    for (size_t i = 0; i < dim; ++i) {
      if (std::isfinite(of_head[i]) && of_head[i] >= 0) continue;
      return InvalidArgument("layer {}, KV head {}: got {} as a mean, expected 0 or more",
                             head / static_cast<size_t>(r.kv_heads),
                             head % static_cast<size_t>(r.kv_heads), of_head[i]);
    }
    if (!IsRotation(of_head.data() + dim, dim)) {
      return InvalidArgument(
          "layer {}, KV head {}: expected directions of length 1 at right angles",
          head / static_cast<size_t>(r.kv_heads), head % static_cast<size_t>(r.kv_heads));
    }
    const auto directions = of_head.begin() + static_cast<std::ptrdiff_t>(dim);
    r.queries.insert(r.queries.end(), of_head.begin(), directions);
    r.directions.insert(r.directions.end(), directions, of_head.end());
  }
  return c;
}

Result<KeyRotations> LoadKeyRotations(const std::string& folder, const RotationsWanted& wanted) {
  CAIRN_ASSIGN_OR_RETURN(const CalibrationFile file,
                         LoadCalibrationFile(folder, wanted.digest, kSuffix, "read policy"));
  Result<RotationCalibration> c = ParseRotationCalibration(file.bytes);
  if (!c.ok()) return file.Refused(Message(c.status()));
  if (c->weights != wanted.weights) {
    return file.Refused(fmt::format("made for weights {}, the model has {}", c->weights.Hex(),
                                    wanted.weights.Hex()));
  }
  const KeyRotations& r = c->rotations;
  if (r.layers != wanted.kv.layers || r.kv_heads != wanted.kv.kv_heads ||
      r.head_dim != wanted.kv.head_dim) {
    return file.Refused(fmt::format(
        "{} layers of {} KV heads of {} dimensions, the model has {} of {} of {}", r.layers,
        r.kv_heads, r.head_dim, wanted.kv.layers, wanted.kv.kv_heads, wanted.kv.head_dim));
  }
  return std::move(c->rotations);
}

}  // namespace cairn::worker
