#pragma once
// The namespace of a worker's KV.

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/hash.h"
#include "cairn/common/namespace_spec.h"
#include "kernels/selections/selection.h"
#include "services/worker/kv/kv_pool.h"
#include "services/worker/session/kv_codec.h"

namespace cairn::worker {

struct NamespaceInputs {
  std::string tenant = "default";
  std::string salt;
  std::string model;  // For people; `weights` decides.
  Digest weights;     // SHA-256 of the model file.
  KvLayout kv;
  std::string numerics;        // Transformer::numerics_id().
  std::string recipe = "raw";  // common/recipe.
  // Folder of the files that recipes name: head_calibration.h. No part of the namespace: the
  // recipe has the file's digest.
  std::string calibration = "calibration";
};

// Native layout, planes k and v in binary16, the weights' digest as the revision.
// INVALID_ARGUMENT naming the field that the namespace cannot express.
Result<NamespaceSpec> WorkerNamespace(const NamespaceInputs& inputs);

// What the recipe keeps; null where it keeps everything. INVALID_ARGUMENT for what is not a recipe;
// FAILED_PRECONDITION for a calibration that LoadHeadScores refuses.
Result<std::unique_ptr<const selections::Selection>> SelectionOf(const NamespaceInputs& inputs);

// Another namespace that the same KV is pushed to, stored by another recipe.
struct PublishedNamespace {
  NamespaceSpec spec;
  Digest fingerprint;  // Of `spec`.
  std::unique_ptr<const KvCodec> codec;
  std::unique_ptr<const selections::Selection> selection = nullptr;  // Null: all rows are stored.
};

// One a recipe. INVALID_ARGUMENT or UNIMPLEMENTED for one that the KV cannot be stored by, and for
// a namespace that is there twice, or is that of `inputs`; FAILED_PRECONDITION as SelectionOf.
Result<std::vector<PublishedNamespace>> PublishedNamespaces(NamespaceInputs inputs,
                                                            std::span<const std::string> recipes);

}  // namespace cairn::worker
