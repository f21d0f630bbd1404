#include "services/worker/session/calibration_file.h"

#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace cairn::worker {
namespace {

constexpr std::uintmax_t kMaxBytes = 16u << 20;

// The one file whose name begins with the digits.
Result<std::filesystem::path> Find(const std::string& folder, const std::string& digits,
                                   std::string_view suffix, std::string_view named_by) {
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  std::optional<std::filesystem::path> found;
  for (const auto end = std::filesystem::directory_iterator(); !error && entries != end;
       entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (!name.starts_with(digits) || !name.ends_with(suffix)) continue;
    if (found) {
      return Errorf(StatusCode::kFailedPrecondition,
                    "calibration: '{}' and '{}' both begin with {}", found->string(),
                    entries->path().string(), digits);
    }
    found = entries->path();
  }
  if (error) {
    return Errorf(StatusCode::kFailedPrecondition, "calibration: folder '{}': {}, expected {}*{}",
                  folder, error.message(), digits, suffix);
  }
  if (!found) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "calibration: folder '{}' has no file {}*{}, which the {} names", folder, digits,
                  suffix, named_by);
  }
  return *found;
}

}  // namespace

std::optional<std::string_view> CalibrationLines::Next() {
  while (!left_.empty()) {
    ++number_;
    const size_t end = left_.find('\n');
    const std::string_view line = left_.substr(0, end);
    left_.remove_prefix(end == std::string_view::npos ? left_.size() : end + 1);
    if (!line.starts_with('#')) return line;
  }
  return std::nullopt;
}

Status CalibrationLines::Wrong(std::string_view expected) const {
  return InvalidArgument("line {}: expected {}", number_, expected);
}

Result<std::string_view> CalibrationLines::Field(std::string_view key) {
  std::optional<std::string_view> line = Next();
  if (!line || !line->starts_with(key) || line->substr(key.size(), 1) != " ") {
    return Wrong(fmt::format("'{} ...'", key));
  }
  return line->substr(key.size() + 1);
}

Result<int32_t> CalibrationLines::Count(std::string_view key, int32_t most) {
  CAIRN_ASSIGN_OR_RETURN(const std::string_view text, Field(key));
  int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > most) {
    return Wrong(fmt::format("'{}' and a number from 1 to {}", key, most));
  }
  return value;
}

Result<Digest> CalibrationLines::Weights() {
  CAIRN_ASSIGN_OR_RETURN(const std::string_view text, Field("weights"));
  const Result<Digest> digest = Digest::FromHex(text, "weights");
  return digest.ok() ? digest : Wrong("'weights' and 64 hexadecimal digits");
}

Status CalibrationFile::Refused(std::string_view why) const {
  return Errorf(StatusCode::kFailedPrecondition, "calibration '{}': {}", path, why);
}

Result<CalibrationFile> LoadCalibrationFile(const std::string& folder, uint64_t digest,
                                            std::string_view suffix, std::string_view named_by) {
  CAIRN_ASSIGN_OR_RETURN(const std::filesystem::path path,
                         Find(folder, fmt::format("{:016x}", digest), suffix, named_by));
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  std::ifstream in(path, std::ios::binary);
  CalibrationFile file{.path = path.string(), .bytes = {}};
  if (error || !in || bytes > kMaxBytes) {
    return file.Refused(fmt::format("cannot be read, or is larger than {} bytes", kMaxBytes));
  }
  file.bytes.assign(std::istreambuf_iterator<char>(in), {});
  const std::string whole = Sha256::Of(file.bytes).Hex();
  if (path.filename() != whole + std::string(suffix)) {
    return file.Refused(
        fmt::format("damaged: its SHA-256 is {}, expected that of its name", whole));
  }
  return file;
}

}  // namespace cairn::worker
