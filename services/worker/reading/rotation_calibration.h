#pragma once
// Rotations that a read policy names by the digest of their file: docs/methods/calibration.md.

#include <cstdint>
#include <string>
#include <string_view>

#include "cairn/common/hash.h"
#include "cairn/common/status.h"
#include "services/worker/kv/kv_pool.h"
#include "services/worker/reading/key_rotation.h"

namespace cairn::worker {

// The contents of a file.
struct RotationCalibration {
  Digest weights;  // SHA-256 of the model file.
  KeyRotations rotations;
};

// INVALID_ARGUMENT, which says where, and what was expected there. Directions that are not of
// length 1 or not at right angles, within what binary16 can say, are refused.
Result<RotationCalibration> ParseRotationCalibration(std::string_view bytes);

// The parts of a file that a read policy and a model need.
struct RotationsWanted {
  uint64_t digest = 0;  // ReadPolicy::rotation.
  Digest weights;
  KvLayout kv;
};

// Reads the file in `folder` whose name begins with the digest. FAILED_PRECONDITION, which names
// the folder or the file: as LoadCalibrationFile, or it is damaged, or of another model or shape.
Result<KeyRotations> LoadKeyRotations(const std::string& folder, const RotationsWanted& wanted);

}  // namespace cairn::worker
