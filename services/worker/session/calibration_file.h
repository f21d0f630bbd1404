#pragma once
// Files that tell a worker something about its model in advance, and that recipes and read policies
// name by their digest: docs/methods/calibration.md.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cairn/common/hash.h"
#include "cairn/common/status.h"

namespace cairn::worker {

// Far above any model; a damaged number must not become a large allocation.
inline constexpr int32_t kMaxCalibratedLayers = 4096;
inline constexpr int32_t kMaxCalibratedHeads = 4096;

// Lines of a text, comments left out. Not thread-safe.
class CalibrationLines {
 public:
  // The text must outlive it.
  explicit CalibrationLines(std::string_view text) : left_(text) {}

  // nullopt: there are no more.
  std::optional<std::string_view> Next();
  // The text after the lines that were read.
  std::string_view rest() const { return left_; }
  // INVALID_ARGUMENT, which names the last line.
  Status Wrong(std::string_view expected) const;
  // The rest of a line that begins with `key` and a space.
  Result<std::string_view> Field(std::string_view key);
  // A number from 1 to `most` behind `key`.
  Result<int32_t> Count(std::string_view key, int32_t most);
  // The SHA-256 of the model file, behind "weights".
  Result<Digest> Weights();

 private:
  std::string_view left_;
  int number_ = 0;
};

struct CalibrationFile {
  std::string path;
  std::string bytes;

  // FAILED_PRECONDITION, which names the file.
  Status Refused(std::string_view why) const;
};

// Reads the file in `folder` whose name begins with the digest (the first eight bytes of its
// SHA-256, the first one highest) and ends with the suffix. `named_by`: "recipe", for the error.
// FAILED_PRECONDITION, which names the folder or the file: it does not exist or cannot be read,
// there are two, or its bytes do not match its name.
Result<CalibrationFile> LoadCalibrationFile(const std::string& folder, uint64_t digest,
                                            std::string_view suffix, std::string_view named_by);

}  // namespace cairn::worker
