#pragma once
// The namespace of a worker's KV.

#include <string>

#include "cairn/common/hash.h"
#include "cairn/common/status.h"
#include "common/keys/checked_namespace.h"
#include "services/worker/kv/kv_pool.h"

namespace cairn::worker {

struct NamespaceInputs {
  std::string tenant = "default";
  std::string salt;
  std::string model;  // For people; `weights` decides.
  Digest weights;     // SHA-256 of the model file.
  KvLayout kv;
  std::string numerics;        // Transformer::numerics_id().
  std::string recipe = "raw";  // common/recipe.
  // Folder of the files that recipes name: head_calibration.h. It is not part of the namespace,
  // because the recipe has the digest of the file.
  std::string calibration = "calibration";
};

// A namespace with a native layout, planes k and v in binary16, and the digest of the weights as
// the revision. INVALID_ARGUMENT, which names the field that the namespace cannot express.
Result<CheckedNamespace> WorkerNamespace(const NamespaceInputs& inputs);

}  // namespace cairn::worker
