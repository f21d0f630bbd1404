#pragma once
// Head scores that a recipe names by their digest: docs/methods/calibration.md.

#include <cstdint>
#include <string>
#include <string_view>

#include "cairn/common/hash.h"
#include "cairn/common/status.h"
#include "kernels/selections/head_scores.h"

namespace cairn::worker {

// The contents of a file.
struct HeadCalibration {
  std::string method;  // The selection that it was made for: "razor".
  Digest weights;      // SHA-256 of the model file.
  selections::HeadScores scores;

  bool operator==(const HeadCalibration&) const = default;
};

// INVALID_ARGUMENT, which names the line and what was expected there.
Result<HeadCalibration> ParseHeadCalibration(std::string_view text);

// The parts of a file that a recipe and a model need.
struct HeadCalibrationWanted {
  uint64_t digest = 0;  // First eight bytes of the file's SHA-256, the first one highest.
  std::string_view method;
  Digest weights;
  int32_t layers = 0;
  int32_t kv_heads = 0;
};

// Reads the scores from the file in `folder` whose name begins with the digest.
// FAILED_PRECONDITION, which names the folder or the file: it does not exist or cannot be read,
// there are two, its bytes do not match its name, it is damaged, or it is for another method, model
// or shape.
Result<selections::HeadScores> LoadHeadScores(const std::string& folder,
                                              const HeadCalibrationWanted& wanted);

}  // namespace cairn::worker
