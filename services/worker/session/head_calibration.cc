#include "services/worker/session/head_calibration.h"

#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <vector>

namespace cairn::worker {
namespace {

constexpr std::string_view kFirstLine = "cairn head-scores 1";
constexpr std::string_view kSuffix = ".heads";
// Far above any model; a damaged number must not become a large allocation.
constexpr int32_t kMaxLayers = 4096;
constexpr int32_t kMaxHeads = 4096;
constexpr std::uintmax_t kMaxBytes = 16u << 20;

// Lines of a text, comments left out.
class Lines {
 public:
  explicit Lines(std::string_view text) : left_(text) {}

  // nullopt: there are no more.
  std::optional<std::string_view> Next() {
    while (!left_.empty()) {
      ++number_;
      const size_t end = left_.find('\n');
      const std::string_view line = left_.substr(0, end);
      left_.remove_prefix(end == std::string_view::npos ? left_.size() : end + 1);
      if (!line.starts_with('#')) return line;
    }
    return std::nullopt;
  }
  Status Wrong(std::string_view expected) const {
    return InvalidArgument("line {}: expected {}", number_, expected);
  }
  // The rest of a line that begins with `key` and a space.
  Result<std::string_view> Field(std::string_view key) {
    std::optional<std::string_view> line = Next();
    if (!line || !line->starts_with(key) || line->substr(key.size(), 1) != " ") {
      return Wrong(fmt::format("'{} ...'", key));
    }
    return line->substr(key.size() + 1);
  }
  Result<int32_t> Count(std::string_view key, int32_t most) {
    CAIRN_ASSIGN_OR_RETURN(const std::string_view text, Field(key));
    int32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > most) {
      return Wrong(fmt::format("'{}' and a number from 1 to {}", key, most));
    }
    return value;
  }

 private:
  std::string_view left_;
  int number_ = 0;
};

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

// The one file whose name begins with the digits.
Result<std::filesystem::path> Find(const std::string& folder, const std::string& digits) {
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  std::optional<std::filesystem::path> found;
  for (const auto end = std::filesystem::directory_iterator(); !error && entries != end;
       entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (!name.starts_with(digits) || !name.ends_with(kSuffix)) continue;
    if (found) {
      return Errorf(StatusCode::kFailedPrecondition,
                    "calibration: '{}' and '{}' both begin with {}", found->string(),
                    entries->path().string(), digits);
    }
    found = entries->path();
  }
  if (error) {
    return Errorf(StatusCode::kFailedPrecondition, "calibration: folder '{}': {}, expected {}*{}",
                  folder, error.message(), digits, kSuffix);
  }
  if (!found) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "calibration: folder '{}' has no file {}*{}, which the recipe names", folder,
                  digits, kSuffix);
  }
  return *found;
}

Result<std::string> Read(const std::filesystem::path& path) {
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file || bytes > kMaxBytes) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "calibration '{}': cannot be read, or is larger than {} bytes", path.string(),
                  kMaxBytes);
  }
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace

Result<HeadCalibration> ParseHeadCalibration(std::string_view text) {
  Lines lines(text);
  if (lines.Next() != kFirstLine) return lines.Wrong(fmt::format("'{}'", kFirstLine));
  HeadCalibration c;
  CAIRN_ASSIGN_OR_RETURN(const std::string_view method, lines.Field("method"));
  c.method = method;
  CAIRN_ASSIGN_OR_RETURN(const std::string_view weights, lines.Field("weights"));
  const Result<Digest> digest = Digest::FromHex(weights, "weights");
  if (!digest.ok()) return lines.Wrong("'weights' and 64 hexadecimal digits");
  c.weights = *digest;
  CAIRN_ASSIGN_OR_RETURN(c.scores.layers, lines.Count("layers", kMaxLayers));
  CAIRN_ASSIGN_OR_RETURN(c.scores.kv_heads, lines.Count("kv_heads", kMaxHeads));
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
  CAIRN_ASSIGN_OR_RETURN(const std::filesystem::path path,
                         Find(folder, fmt::format("{:016x}", wanted.digest)));
  CAIRN_ASSIGN_OR_RETURN(const std::string text, Read(path));
  const auto refuse = [&](std::string_view why) {
    return Errorf(StatusCode::kFailedPrecondition, "calibration '{}': {}", path.string(), why);
  };
  const std::string digest = Sha256::Of(text).Hex();
  if (path.filename() != digest + std::string(kSuffix)) {
    return refuse(fmt::format("damaged: its SHA-256 is {}, expected that of its name", digest));
  }
  Result<HeadCalibration> c = ParseHeadCalibration(text);
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
