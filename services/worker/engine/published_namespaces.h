#pragma once
// The namespaces that a worker pushes to next to its own.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/keys/checked_namespace.h"
#include "services/worker/engine/recipe_stage.h"
#include "services/worker/session/kv_codec.h"
#include "services/worker/session/worker_namespace.h"

namespace cairn::worker {

// Another namespace to which the same KV is pushed, in another recipe.
struct PublishedNamespace {
  CheckedNamespace ns;
  std::unique_ptr<const KvCodec> codec;
  std::unique_ptr<const RecipeStage> stage = nullptr;  // Null: all rows are stored.
};

// Returns one namespace for each recipe. `clock`: as in KvCodec::Create. INVALID_ARGUMENT or
// UNIMPLEMENTED: a recipe cannot store the KV, or a namespace is given twice or is that of
// `inputs`. FAILED_PRECONDITION: as methods::StageOf.
Result<std::vector<PublishedNamespace>> PublishedNamespaces(NamespaceInputs inputs,
                                                            std::span<const std::string> recipes,
                                                            const Clock& clock);

}  // namespace cairn::worker
