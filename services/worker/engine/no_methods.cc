// A worker without the wing for methods (CAIRN_METHODS=OFF).

#include "services/worker/engine/methods.h"
#include "services/worker/engine/published_namespaces.h"

namespace cairn::worker::methods {
namespace {

Status Without(std::string_view got, std::string_view expected) {
  return Errorf(StatusCode::kUnimplemented,
                "got '{}', expected {}: this worker was built without methods "
                "(CAIRN_METHODS=OFF)",
                got, expected);
}

}  // namespace

Status CheckStage(const Recipe& recipe) {
  if (!recipe.selection) return OkStatus();
  return Without(recipe.Canonical(), "a recipe that selects no tokens");
}

Result<std::unique_ptr<const RecipeStage>> StageOf(const Recipe& recipe,
                                                   const NamespaceInputs& /*inputs*/) {
  CAIRN_RETURN_IF_ERROR(CheckStage(recipe));
  return std::unique_ptr<const RecipeStage>();
}

std::unique_ptr<StagePublisher> NewStagePublisher(
    Transformer& /*transformer*/, const model::Model& /*model*/, PushQueue& /*push*/,
    std::span<const PublishedNamespace> /*published*/) {
  return nullptr;
}

std::unique_ptr<PromptWays> NewTurnedPrompts(const MethodServices& /*services*/) { return nullptr; }

Status CheckReadPolicy(std::string_view policy) {
  return Annotate(Without(policy, "an empty one"), "option 'read_policy'");
}

Result<NearNeeds> NearNeedsOf(std::string_view policy, const KvLayout& /*kv*/, int64_t /*tokens*/) {
  return CheckReadPolicy(policy);
}

Result<std::unique_ptr<const ContextOpener>> NewContextOpener(const ReadingInputs& inputs) {
  return CheckReadPolicy(inputs.policy);
}

}  // namespace cairn::worker::methods
