#pragma once
// The namespace of a worker's KV.

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/hash.h"
#include "cairn/common/status.h"
#include "common/keys/checked_namespace.h"
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
  // Folder of the files that recipes name: head_calibration.h. It is not part of the namespace,
  // because the recipe has the digest of the file.
  std::string calibration = "calibration";
};

// A namespace with a native layout, planes k and v in binary16, and the digest of the weights as
// the revision. INVALID_ARGUMENT, which names the field that the namespace cannot express.
Result<CheckedNamespace> WorkerNamespace(const NamespaceInputs& inputs);

// The selection of a recipe, which is the value of `inputs.recipe`. Null: it keeps everything.
// FAILED_PRECONDITION: LoadHeadScores refuses the calibration.
Result<std::unique_ptr<const selections::Selection>> SelectionOf(const Recipe& recipe,
                                                                 const NamespaceInputs& inputs);

// Another namespace to which the same KV is pushed, in another recipe.
struct PublishedNamespace {
  CheckedNamespace ns;
  std::unique_ptr<const KvCodec> codec;
  std::unique_ptr<const selections::Selection> selection = nullptr;  // Null: all rows are stored.
};

// Returns one namespace for each recipe. INVALID_ARGUMENT or UNIMPLEMENTED: a recipe cannot store
// the KV, or a namespace is given twice or is that of `inputs`. FAILED_PRECONDITION: as
// SelectionOf.
Result<std::vector<PublishedNamespace>> PublishedNamespaces(NamespaceInputs inputs,
                                                            std::span<const std::string> recipes);

}  // namespace cairn::worker
