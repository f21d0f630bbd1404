#pragma once
// The namespace of a worker's KV.

#include <string>

#include "services/common/hash/hash.h"
#include "services/common/keys/namespace_spec.h"
#include "services/worker/kv/kv_pool.h"

namespace cairn::worker {

struct NamespaceInputs {
  std::string tenant = "default";
  std::string salt;
  std::string model;      // For people; `weights` decides.
  Digest weights;         // SHA-256 of the model file.
  KvLayout kv;
  std::string numerics;   // Transformer::numerics_id().
  std::string recipe = "raw";  // services/common/recipe.
};

// Native layout, planes k and v in binary16, the weights' digest as the revision.
// INVALID_ARGUMENT naming the field that the namespace cannot express.
Result<NamespaceSpec> WorkerNamespace(const NamespaceInputs& inputs);

}  // namespace cairn::worker
