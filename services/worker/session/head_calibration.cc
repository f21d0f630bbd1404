#include "services/worker/session/head_calibration.h"

#include <charconv>
#include <cmath>
#include <optional>
#include <vector>

#include "services/worker/session/calibration_file.h"

namespace cairn::worker {
namespace {

constexpr std::string_view kFirstLine = "cairn head-scores 1";
constexpr std::string_view kSuffix = ".heads";

// Appends the numbers of a line with one space between them. False unless they are `count` finite
// ones.
bool Numbers(std::string_view line, int32_t count, std::vector<float>* out) {
  for (int32_t i = 0; i < count; ++i) {
    if (i > 0) {
      if (!line.starts_with(' ')) return false;
      line.remove_prefix(1);
    }
    float value = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
    if (error != std::errc() || !std::isfinite(value)) return false;
    line.remove_prefix(static_cast<size_t>(end - line.data()));
    out->push_back(value);
  }
  return line.empty();
}

}  // namespace

Result<HeadCalibration> ParseHeadCalibration(std::string_view text) {
  CalibrationLines lines(text);
  if (lines.Next() != kFirstLine) return lines.Wrong(fmt::format("'{}'", kFirstLine));
  HeadCalibration c;
  CAIRN_ASSIGN_OR_RETURN(const std::string_view method, lines.Field("method"));
  c.method = method;
  CAIRN_ASSIGN_OR_RETURN(c.weights, lines.Weights());
  CAIRN_ASSIGN_OR_RETURN(c.scores.layers, lines.Count("layers", kMaxCalibratedLayers));
  CAIRN_ASSIGN_OR_RETURN(c.scores.kv_heads, lines.Count("kv_heads", kMaxCalibratedHeads));
  for (int32_t layer = 0; layer < c.scores.layers; ++layer) {
    const std::optional<std::string_view> line = lines.Next();
    if (!line || !Numbers(*line, c.scores.kv_heads, &c.scores.scores)) {
      return lines.Wrong(fmt::format("{} finite scores of layer {}", c.scores.kv_heads, layer));
    }
  }
  if (lines.Next()) return lines.Wrong("the end");
  return c;
}

Result<selections::HeadScores> LoadHeadScores(const std::string& folder,
                                              const HeadCalibrationWanted& wanted) {
  CAIRN_ASSIGN_OR_RETURN(const CalibrationFile file,
                         LoadCalibrationFile(folder, wanted.digest, kSuffix, "recipe"));
  const auto refuse = [&](std::string_view why) { return file.Refused(why); };
  Result<HeadCalibration> c = ParseHeadCalibration(file.bytes);
  if (!c.ok()) return refuse(Message(c.status()));
  if (c->method != wanted.method) {
    return refuse(
        fmt::format("made for the selection '{}', the recipe has '{}'", c->method, wanted.method));
  }
  if (c->weights != wanted.weights) {
    return refuse(fmt::format("made for weights {}, the model has {}", c->weights.Hex(),
                              wanted.weights.Hex()));
  }
  if (c->scores.layers != wanted.layers || c->scores.kv_heads != wanted.kv_heads) {
    return refuse(fmt::format("{} layers of {} KV heads, the model has {} of {}", c->scores.layers,
                              c->scores.kv_heads, wanted.layers, wanted.kv_heads));
  }
  return std::move(c->scores);
}

}  // namespace cairn::worker
